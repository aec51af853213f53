"""Waiting where hosts run the collectives: it is over when the last member came, however late a thread goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceops.across.clocks import ClockAlignment
from traceops.across.match import Collective, MatchedCollectives
from traceops.measure.summary import RankSummary


def without_late_ends(
    matching: MatchedCollectives, ranks: Sequence[RankSummary], clocks: ClockAlignment
) -> MatchedCollectives:
    """The same with waiting on hosts ended where the last member came, on the common clock.

    Kernels of a collective end together, so that what a rank spends beyond the shortest is waiting. A backend's
    thread on a busy CPU may end milliseconds after the others: that is no waiting for a rank.
    """
    on_cpu = {summary.rank for summary in ranks if summary.exchanges_on_host} - set(clocks.unaligned)
    if not on_cpu:
        return matching
    begin = {
        summary.rank: clocks.fits[summary.rank].correct(summary.comm.start).tolist()
        for summary in ranks
        if summary.rank in on_cpu
    }
    return replace(
        matching,
        collectives=tuple(
            one if one.links or not on_cpu.issuperset(one.group) else _until_last_came(one, begin)
            for one in matching.collectives
        ),
    )


def _until_last_came(collective: Collective, begin: dict[int, list[int]]) -> Collective:
    came = [begin[rank][position] for rank, position in collective.members]
    last = max(came)
    waits = zip(collective.wait_ns, came, strict=True)
    return replace(
        collective,
        wait_ns=tuple(min(wait, last - moment) for wait, moment in waits),
        came_last=None if collective.is_rooted else collective.members[came.index(last)][0],
    )
