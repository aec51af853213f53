"""Ranks that were recorded at another time than the others and share no collective with them: of another capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.across.match import MatchedCollectives
from traceops.measure.summary import RankSummary

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
    clusters = clusters_in_time(alone, _LEAST_APART_NS, _WINDOWS_APART)
    if len(clusters) < 2:
        return ()
    main = max(clusters, key=lambda own: (len(own), _begin(own[0])))
    steps = {int(n) for summary in main for n in summary.step_numbers}
    found = []
    for summary in (one for cluster in clusters if cluster is not main for one in cluster):
        if summary.rank not in matched and steps & {int(n) for n in summary.step_numbers if n >= 0}:
            others = tuple(one.rank for one in main)
            found.append(ApartInTime(summary.rank, summary.path, _begin(summary) - _begin(main[0]), others))
    return tuple(found)


def clusters_in_time(ranks: Sequence[RankSummary], least_ns: int, windows: int) -> list[list[RankSummary]]:
    """Ranks whose windows lie near each other, in order of time.

    Between clusters lies more than `least_ns` and so many of the longest window.
    """
    in_order = sorted(ranks, key=_begin)
    longest = max((int(own.step_edges[-1]) - _begin(own) for own in in_order), default=0)
    clusters: list[list[RankSummary]] = []
    end = 0
    for summary in in_order:
        if not clusters or _begin(summary) - end > max(least_ns, windows * longest):
            clusters.append([])
            end = int(summary.step_edges[-1])
        clusters[-1].append(summary)
        end = max(end, int(summary.step_edges[-1]))
    return clusters


def _begin(summary: RankSummary) -> int:
    return int(summary.step_edges[0])
