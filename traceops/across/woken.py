"""Whether a thread that went on before its collective's recorded end had waited for it: the other ranks tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from traceops.across.match import MatchedCollectives
from traceops.core.intervals import merge, union
from traceops.measure.summary import RankSummary


def with_woken_threads(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> list[RankSummary]:
    """The ranks, with each open spell of a thread decided that the other ranks decide.

    A backend's own thread records a collective's end, and where it gets no core it does so long after the end. A thread
    that went on once the last member was there, and before that record, had waited for the collective. One that
    went on while a member was still missing had not: it did something of its own.
    """
    asked = {summary.rank: summary for summary in ranks if len(summary.program.spell_comm)}
    came: dict[int, dict[int, int]] = {rank: {} for rank in asked}  # by position: when the last member had begun
    for collective in matching.collectives if asked else ():
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            if rank in asked:
                came[rank][position] = int(asked[rank].comm.start[position]) + wait
    return [_decided(summary, came[summary.rank]) if summary.rank in asked else summary for summary in ranks]


def _decided(summary: RankSummary, came: Mapping[int, int]) -> RankSummary:
    program = summary.program
    waited_for = program.spell_comm.tolist()
    known = np.array([position in came for position in waited_for])
    there = program.spell_end >= np.array([came.get(position, 0) for position in waited_for])
    waited, own = known & there, known & ~there
    start = np.concatenate((program.join_start, program.spell_start[waited]))
    order = np.argsort(start, kind="stable")
    return replace(
        summary,
        program=replace(
            program,
            join_start=start[order],
            join_end=np.concatenate((program.join_end, program.spell_end[waited]))[order],
            join_comm=np.concatenate((program.join_comm, program.spell_comm[waited]))[order],
            unheld=merge(program.unheld, union(program.spell_start[own], program.spell_end[own])),
        ),
    )
