"""The collectives in which ranks first met in a window that marks no steps: they show when each began to record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceops.across.match import MatchedCollectives
from traceops.measure.steps import NO_STEP
from traceops.measure.summary import RankSummary

FIRST_MEETING = "the first between its ranks, which shows how far apart they began to record"


def without_first_meetings(matching: MatchedCollectives, ranks: Sequence[RankSummary]) -> MatchedCollectives:
    """The matching less those collectives, if no rank has steps: what ranks wait there says nothing of the run.

    Where there are steps the profiler was at work before the first of them, and ranks had met.
    """
    if any((summary.step_numbers != NO_STEP).any() for summary in ranks):
        return matching
    ends = {summary.rank: summary.comm.end for summary in ranks}
    order = sorted(
        matching.collectives, key=lambda one: max(int(ends[rank][position]) for rank, position in one.members)
    )
    root = {summary.rank: summary.rank for summary in ranks}

    def find(rank: int) -> int:
        while root[rank] != rank:
            root[rank] = rank = root[root[rank]]
        return rank

    first = set()
    for collective in order:
        apart = {find(rank) for rank, _ in collective.members}
        if len(apart) > 1:
            first.add(collective.members)
            one = apart.pop()
            for other in apart:
                root[other] = one
    if not first:
        return matching
    events = sum(len(members) for members in first)
    return replace(
        matching,
        collectives=tuple(one for one in matching.collectives if one.members not in first),
        unmatched={**matching.unmatched, FIRST_MEETING: events},
    )
