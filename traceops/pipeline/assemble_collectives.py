"""What each group's collectives achieved, by itself and against what their links should give."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.across.links import (
    LARGE_BYTES,
    LinkReference,
    bus_factor,
    busbw_gbs,
    collective_bytes,
    reference_transfer_ns,
)
from traceops.across.match import Collective
from traceops.core.units import stored
from traceops.core.words import Role
from traceops.report.cross_rows import CollectiveRow, ReferenceRow

_MOST_PLACES = 64


def collective_rows(run: CrossRank) -> tuple[CollectiveRow, ...]:
    """A row per group, operation and size: count, median transfer and waiting, bus bandwidth.

    Bandwidths in GB/s (1e9 bytes) by nccl-tests' rules; null where the size is not known.
    """
    by_kind: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    places = places_in_steps(run)
    for collective, role in zip(run.matching.collectives, run.roles.of_collective, strict=True):
        by_kind[
            collective.group, collective.description, collective.op, collective.elements, collective.dtype, role
        ].append(collective)
    rows = []
    for (group, description, op, _, _, role), same in by_kind.items():
        nbytes = collective_bytes(same[0])
        transfer = float(np.median([c.transfer_ns for c in same]))
        waits = [max(c.wait_ns) for c in same]
        busbw = None
        if nbytes and transfer > 0:
            busbw = stored(nbytes / transfer * bus_factor(op, len(group)))  # bytes per ns are GB/s
        rows.append(
            CollectiveRow(
                group=description or f"{len(group)} ranks",
                ranks=tuple(group),
                op=op,
                bytes=nbytes,
                count=len(same),
                median_ms=stored(transfer / 1e6),
                total_ms=stored(sum(c.transfer_ns for c in same) / 1e6),
                median_wait_ms=stored(float(np.median(waits)) / 1e6),
                busbw_gbs=busbw,
                role=role,
                places=tuple(sorted({places[id(c)][0] for c in same if id(c) in places}))[:_MOST_PLACES],
                places_of=next((places[id(c)][1] for c in same if id(c) in places), None),
            )
        )
    return tuple(sorted(rows, key=lambda row: -(row.total_ms or 0.0)))


def places_in_steps(run: CrossRank) -> dict[int, tuple[int, int]]:
    """By a collective's id(): which of its group's in a step it is, from 1, and how many the group has in most steps.

    By the order on its first member. Only of steps that have that many: in another one a place means something else.
    """
    if run.unit != "step":
        return {}
    by_rank = {times.summary.rank: times.summary for times in run.ranks}
    in_step: dict[tuple[tuple[int, ...], str], dict[int, list[tuple[int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for collective in run.matching.collectives:
        rank, position = collective.members[0]
        summary = by_rank[rank]
        step = summary.step_number(position)
        if step is not None and step >= 0 and not collective.links:
            start = int(summary.comm.start[position])
            in_step[collective.group, collective.description][step].append((start, id(collective)))
    found: dict[int, tuple[int, int]] = {}
    for steps in in_step.values():
        usual = Counter(len(own) for own in steps.values()).most_common(1)[0][0]
        for own in steps.values():
            if len(own) == usual:
                found |= {key: (place, usual) for place, (_, key) in enumerate(sorted(own), 1)}
    return found


def reference_rows(run: CrossRank) -> tuple[ReferenceRow, ...]:
    """A row a group, operation and class of size (8 MB and more, less), those that lose most time first.

    busbw_gbs: median. reference_source: ``doctor``, ``graph``, ``table``, ``siblings`` (the best group of the same
    kind), null with the other reference columns where nothing is known; below 8 MB latency counts too, and there is
    no percentage. lost_ms: a step, beyond the time at the reference, hidden or not.
    """
    steps = max((len(times.duration) for times in run.ranks), default=1) or 1
    kinds: dict[tuple[Any, ...], list[Collective]] = defaultdict(list)
    roles: dict[tuple[Any, ...], Role] = {}
    for collective, role in zip(run.matching.collectives, run.roles.of_collective, strict=True):
        if busbw_gbs(collective) is not None and collective.last_rank is not None:
            large = (collective_bytes(collective) or 0) >= LARGE_BYTES
            roles[collective.description, collective.op, large, collective.group] = role
            kinds[collective.description, collective.op, large, collective.group].append(collective)
    medians = {kind: float(np.median([busbw_gbs(c) or 0.0 for c in same])) for kind, same in kinds.items()}
    rows = []
    for kind, same in kinds.items():
        description, op, large, group = kind
        known = run.reference(group) or _best_sibling(kind, medians)
        sizes = [collective_bytes(c) or 0 for c in same]
        lost_ns = [max(c.transfer_ns - reference_transfer_ns(c, known), 0.0) for c in same]
        rows.append(
            ReferenceRow(
                group=description or f"{len(group)} ranks",
                ranks=tuple(group),
                op=op,
                bytes_min=min(sizes),
                bytes_p50=int(np.median(sizes)),
                bytes_max=max(sizes),
                count=len(same),
                busbw_gbs=stored(medians[kind]),
                reference_gbs=None if known is None else stored(known.busbw_gbs),
                reference_source=None if known is None else known.source,
                reference_link=None if known is None else known.link,
                reference_pct=None if known is None or not large else stored(100.0 * medians[kind] / known.busbw_gbs),
                lost_ms=None if known is None else stored(sum(lost_ns) / 1e6 / steps),
                role=roles[kind],
            )
        )
    return tuple(sorted(rows, key=lambda row: (-(row.lost_ms or 0.0), row.group, row.op, row.ranks)))


def _best_sibling(kind: tuple[Any, ...], medians: dict[tuple[Any, ...], float]) -> LinkReference | None:
    """The best of the groups of the same description and size, for large messages and where there are others."""
    description, op, large, group = kind
    others = [
        value
        for (d, o, big, g), value in medians.items()
        if (d, o, big) == (description, op, True) and len(g) == len(group)
    ]
    return LinkReference("the best group like it", max(others), "siblings") if large and len(others) > 1 else None
