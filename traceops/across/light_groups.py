"""Which group each collective of a light window is of: told by the full window, which knows names and members."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from traceops.across.groups import Ranks, group_of, only_group
from traceops.measure.light import LightActivity
from traceops.measure.summary import RankSummary

_MESSAGES = ("send", "recv")


def groups_of(light: LightActivity, summary: RankSummary, world: Ranks) -> list[Ranks | None]:
    """Of each collective, its group; None where it cannot be told, and for sends and receives.

    A rank of one group has no choice. Else the stream tells, where all on it are of one group; else the place in the
    step, where a step of the full window has as many, on the same streams in the same order.
    """
    known = _of_full(summary, world)
    everywhere = {group for _, _, group in known}
    if len(everywhere) == 1:
        return [next(iter(everywhere))] * len(light.name)
    of_stream: dict[int, set[Ranks | None]] = defaultdict(set)
    for _, stream, group in known:
        of_stream[stream].add(group)
    by_place = _by_place(light, known)
    found: list[Ranks | None] = []
    for at, stream in enumerate(light.stream.tolist()):
        own = of_stream.get(stream, set())
        found.append(next(iter(own)) if len(own) == 1 else by_place[at])
    return found


def _of_full(summary: RankSummary, world: Ranks) -> list[tuple[int, int, Ranks | None]]:
    """Step, stream and group of each collective of the full window, in order."""
    default, comm = only_group(summary, world), summary.comm
    found = []
    for step, stream, name, args in zip(comm.step.tolist(), comm.stream.tolist(), comm.name, comm.args, strict=True):
        op = "" if args is None or args.op is None else args.op.lower()
        message = any(word in op for word in _MESSAGES) or ("sendrecv" in name.lower() and "all_to_all" not in op)
        found.append((step, stream, None if message else group_of(args, default)))
    return found


def _by_place(light: LightActivity, known: Sequence[tuple[int, int, Ranks | None]]) -> list[Ranks | None]:
    """Of each collective the group of the one that stands at its place in a step of the full window."""
    none: list[Ranks | None] = [None] * len(light.name)
    patterns: dict[int, list[tuple[int, Ranks | None]]] = defaultdict(list)
    for step, stream, group in known:
        patterns[step].append((stream, group))
    inner = [patterns[step] for step in sorted(patterns) if step >= 0]
    if not inner or not light.by_step or any(pattern != inner[0] for pattern in inner[1:]):
        return none
    streams, groups = zip(*inner[0], strict=True)
    in_order = np.argsort(light.start, kind="stable")
    step_of = np.searchsorted(light.edges, light.start[in_order], side="right")
    found = none.copy()
    for step in np.unique(step_of).tolist():
        own = in_order[step_of == step]
        if light.stream[own].tolist() == list(streams):
            for at, group in zip(own.tolist(), groups, strict=True):
                found[at] = group
    return found
