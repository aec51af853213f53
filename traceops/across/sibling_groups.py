"""Groups that transfer the same operation on the same bytes far more slowly than their siblings do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.across.links import collective_bytes
from traceops.across.match import Collective
from traceops.across.replay.simulate import Scenario, simulate

SLOWER = 2.0  # times as long as in groups of the same kind
_LEAST_COUNT = 3
_LEAST_BYTES = 1_000_000

_Kind = tuple[object, ...]


class SlowSibling(Struct, frozen=True):
    """A group, and the worst of the operations in which it is slow. Times in ns.

    median and usual: of one transfer, here and in its siblings. longer: of all its transfers, a step. saved: what a
    step gains with them as long as in its siblings, None where no replay tells.
    """

    group: tuple[int, ...]
    median: float
    usual: float
    count: int
    longer: float
    saved: float | None


def slow_siblings(run: CrossRank) -> tuple[SlowSibling, ...] | None:
    """The slow groups, in order of their ranks; None where no two groups can be compared."""
    kinds: dict[_Kind, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for c in run.matching.collectives:
        if (collective_bytes(c) or 0) >= _LEAST_BYTES:
            kinds[_kind(c)][c.group].append(c.transfer_ns)
    slow: dict[tuple[int, ...], dict[_Kind, tuple[float, float, int]]] = defaultdict(dict)
    compared = False
    for kind, groups in kinds.items():
        medians = {g: float(np.median(ns)) for g, ns in groups.items() if len(ns) >= _LEAST_COUNT}
        for group, median in medians.items():
            others = [other for g, other in medians.items() if g != group]
            compared |= bool(others)
            usual = float(np.median(others)) if others else 0.0
            if usual > 0 and median >= SLOWER * usual:
                slow[group][kind] = (median, usual, len(groups[group]))
    if not compared:
        return None
    steps = max((len(times.duration) for times in run.ranks), default=1)
    found = []
    for group in sorted(slow):
        median, usual, count = max(slow[group].values(), key=lambda own: own[0] / own[1])
        longer = sum((median - usual) * count for median, usual, count in slow[group].values()) / max(steps, 1)
        as_siblings = {kind: usual for kind, (_, usual, _) in slow[group].items()}
        found.append(SlowSibling(group, median, usual, count, longer, _saved(run, group, as_siblings)))
    return tuple(found)


def _kind(c: Collective) -> _Kind:
    return (c.description, c.op, c.elements, c.dtype, len(c.group))


def _saved(run: CrossRank, group: tuple[int, ...], usual: Mapping[_Kind, float]) -> float | None:
    """What a step gains if this group's collectives take as long as those of its siblings, ns."""
    graph, what_if = run.graph, run.what_if
    if graph is None or what_if is None or not what_if.holds:
        return None
    transfer = graph.transfer.copy()
    for number, index in enumerate(graph.kind):
        c = run.matching.collectives[index]
        if c.group == group and _kind(c) in usual:
            transfer[number] = min(int(transfer[number]), round(usual[_kind(c)]))
    cured = simulate(graph, Scenario(transfer=transfer)).step_ns()
    return max(what_if.mean_ns(what_if.replayed_ns - cured), 0.0)
