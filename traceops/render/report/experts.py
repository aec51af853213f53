"""Experts: a section of the page, and a line on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.rank_text import ranks_text
from traceops.core.step_words import STEP, StepWords
from traceops.core.units import ms_text
from traceops.render.cells import Column, Table, build_table
from traceops.render.document import Block, Section, TableBlock, soft, text
from traceops.report.cross_rows import ExpertsRow
from traceops.report.model import Report

_UNEVEN = 1.05  # times the mean: a rank that gets more is worth a line


def experts(report: Report, shown: Sequence[int]) -> Section | None:
    """What the experts of each rank and layer get and compute."""
    if not report.experts:
        return None
    blocks: list[Block] = [
        soft(
            "Bytes that the experts of a rank get in a layer (in backward gradients), and what it computes between a "
            f"dispatch and its combine, {report.summary.step_words.choose('per step', 'in the window')}."
        )
    ]
    for row in report.experts:
        blocks += [text(experts_sentence(row, report.summary.step_words)), TableBlock(experts_table(row))]
    return Section("experts", "Experts", tuple(blocks), "Experts")


def experts_lines(report: Report) -> list[Block]:
    """The terminal's line for each group whose ranks do not get as much."""
    return [
        text(experts_sentence(row, report.summary.step_words), indent=(0, 2))
        for row in report.experts
        if row.imbalance >= _UNEVEN
    ]


def experts_sentence(row: ExpertsRow, words: StepWords = STEP) -> str:
    """'Experts of ranks 0–1, 6 layers: rank 1 gets 1.50 times the mean (1.50 to 1.50 in its steps). …'"""
    got = {rank: sum(t.received_bytes for t in row.times if t.rank == rank) for rank in row.ranks}
    most = max(row.ranks, key=lambda rank: got[rank])
    shares = [one.share for one in row.imbalance_by_step]
    said = f"Experts of ranks {ranks_text(row.ranks, 8)}, {row.layers} layer{'s' if row.layers != 1 else ''}: "
    if row.imbalance < _UNEVEN:
        said += "all ranks get about as much"
    else:
        mean = sum(got.values()) / len(got)
        said += f"rank {most} gets {got[most] / mean if mean else 1.0:.2f} times the mean "
        said += f"({min(shares):.2f} to {max(shares):.2f} times for the most loaded rank of {words.a})"
    said += f". Dispatch takes {ms_text(row.dispatch_ms)} ms {words.per}{_speed(row.dispatch_gbs, row.reference_gbs)}, "
    said += f"combine {ms_text(row.combine_ms)} ms{_speed(row.combine_gbs, row.reference_gbs)}"
    if row.even_saves_ms:
        said += f". Even routing would save {ms_text(row.even_saves_ms)} ms {words.per}"
    return f"{said}."


def experts_table(row: ExpertsRow) -> Table:
    """A row a layer and rank."""
    columns = [
        Column("layer", "Layer", decimals=0),
        Column("rank", "Rank", decimals=0),
        Column("received_bytes", "Bytes received", decimals=0),
        Column("compute_ms", "Compute ms"),
    ]
    return build_table("Experts by layer and rank", columns, sorted(row.times, key=lambda t: (t.layer, t.rank)))


def _speed(gbs: float | None, reference: float | None) -> str:
    if gbs is None:
        return ""
    return f" ({gbs:.1f} GB/s)" if reference is None else f" ({gbs:.1f} of {reference:.0f} GB/s)"
