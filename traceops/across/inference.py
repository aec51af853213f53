"""Passes of an inference server over all ranks: time on the device, between passes, and in communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from traceops.across.match import MatchedCollectives, waits_by_rank
from traceops.core.arrays import Int, subtract, union
from traceops.measure.phases import InferencePass, PassKind
from traceops.measure.summary import RankSummary

KINDS: tuple[PassKind, ...] = ("prefill", "mixed", "decode")


class Passes(Struct, frozen=True):
    """Passes of one kind on all ranks, a value each; ns.

    `between`: the device runs nothing from the end of the pass before to the first kernel. `scheduling`: the host is
    in neither pass meanwhile. `waiting` and `transfer`: of matched collectives inside the pass, waiting for late
    members (skew) and moving data. `unmatched`: communication of which that cannot be told.
    """

    kind: PassKind
    of_rank: tuple[int, ...]
    passes: tuple[InferencePass, ...]
    between: Int
    scheduling: Int
    waiting: Int
    transfer: Int
    unmatched: Int


def measure_passes(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> tuple[Passes, ...]:
    """The passes of each kind that the traces annotate; () for anything but inference."""
    if not any(summary.passes for summary in ranks):
        return ()
    waits = waits_by_rank(matching, ranks)
    rows: dict[PassKind, list[tuple[int, InferencePass, tuple[int, ...]]]] = defaultdict(list)
    for summary in ranks:
        start, turn, end = waits[summary.rank]
        moving = union(turn, end)
        waiting = subtract(union(start, turn), moving)
        other = subtract(subtract(union(summary.comm.start, summary.comm.end), moving), waiting)
        before: InferencePass | None = None
        for one in summary.passes:
            edges = np.array([one.device_start]), np.array([one.device_end])
            spent = (int(part.within(*edges)[0]) for part in (waiting, moving, other))
            gap = (-1, -1)
            if before is not None:
                gap = (max(one.device_start - before.device_end, 0), max(one.host_start - before.host_end, 0))
            rows[one.kind].append((summary.rank, one, (*gap, *spent)))
            before = one
    found = []
    for kind in KINDS:
        if own := rows.get(kind):
            columns = np.array([times for _, _, times in own], dtype=np.int64).T
            found.append(Passes(kind, tuple(r for r, _, _ in own), tuple(p for _, p, _ in own), *columns))
    return tuple(found)
