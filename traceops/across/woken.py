"""Whether a thread that went on before its collective's recorded end had waited for it: the other ranks tell."""

from __future__ import annotations

from collections.abc import Sequence
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
    return [_decided(summary, matching) if len(summary.program.spell_comm) else summary for summary in ranks]


def _decided(summary: RankSummary, matching: MatchedCollectives) -> RankSummary:
    program = summary.program
    last_came, matched = summary.comm.start.copy(), np.zeros(len(summary.comm.start), dtype=bool)
    for collective in matching.collectives:
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            if rank == summary.rank:
                last_came[position] += wait
                matched[position] = True
    known, there = matched[program.spell_comm], program.spell_end >= last_came[program.spell_comm]
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
