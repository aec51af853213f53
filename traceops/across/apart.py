"""Ranks that were recorded at another time than the others and share no collective with them: of another capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.across.match import MatchedCollectives
from traceops.measure.summary import RankSummary, numbered_steps

_LEAST_APART_NS = 10**9
_WINDOWS_APART = 2


@dataclass(frozen=True)
class ApartInTime:
    """A rank whose window begins so long after (negative: before) that of the ranks it is held against, ns."""

    rank: int
    path: str
    after_ns: int
    others: tuple[int, ...]


def apart_in_time(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> tuple[ApartInTime, ...]:
    """Of ranks that mark the same steps and have collectives, those of which none matches, far from the most others.

    Clocks may be apart: then collectives match all the same, and align them.
    """
    matched = {rank for collective in matching.collectives for rank, _ in collective.members}
    alone = [summary for summary in ranks if len(summary.comm.start)]
    main, rest = most_at_one_time(alone, _LEAST_APART_NS, _WINDOWS_APART)
    steps = numbered_steps(main)
    found = []
    for summary in rest:
        if summary.rank not in matched and steps & summary.numbered_steps:
            others = tuple(one.rank for one in main)
            found.append(ApartInTime(summary.rank, summary.path, begin_ns(summary) - begin_ns(main[0]), others))
    return tuple(found)


def most_at_one_time(
    ranks: Sequence[RankSummary], least_ns: int, windows: int
) -> tuple[list[RankSummary], list[RankSummary]]:
    """The most ranks whose windows lie near each other, of two such groups the later, and the rest, in order of time.

    Between groups lies more than `least_ns` and so many of the longest window.
    """
    in_order = sorted(ranks, key=begin_ns)
    longest = max((int(own.step_edges[-1]) - begin_ns(own) for own in in_order), default=0)
    groups: list[list[RankSummary]] = []
    end = 0
    for summary in in_order:
        if not groups or begin_ns(summary) - end > max(least_ns, windows * longest):
            groups.append([])
            end = int(summary.step_edges[-1])
        groups[-1].append(summary)
        end = max(end, int(summary.step_edges[-1]))
    main = max(groups, key=lambda own: (len(own), begin_ns(own[0])), default=[])
    return main, [summary for group in groups if group is not main for summary in group]


def begin_ns(summary: RankSummary) -> int:
    """Where the rank's first step begins, by its own clock."""
    return int(summary.step_edges[0])
