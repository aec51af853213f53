"""The section about GPU memory: by rank, at the ends of steps, and over time by the line that made it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from traceops.core.claims import first_phrase
from traceops.core.units import UNKNOWN, gib_text
from traceops.core.words import MEMORY_KINDS, NO_STACK
from traceops.render.cells import Cell, Table, table_of
from traceops.render.document import Block, Chart, Section, TableBlock, text
from traceops.render.report.figures import Figure, axis, dots, laid_out, line, worded
from traceops.render.report.terms import section_of
from traceops.report.model import Report
from traceops.report.rows import MemoryInStep, MemoryRank, MemoryRows, MemoryStep

_GIB = 1 << 30
say = partial(first_phrase, "gpu_memory")
_MOST_LINES = 8  # ranks that have a line in the figure
_PALER = ("#a9c3dd", "#f9c795", "#acd3a6", "#d8bcd0", "#bbdad8", "#f6e6a3", "#d0bdb3", "#dcd6d4")
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#bab0ac")


def memory(report: Report, shown: Sequence[int]) -> Section | None:
    """What the ranks' GPUs held; nothing where only peaks are known."""
    rows = report.memory
    if not isinstance(rows, MemoryRows):
        return None
    blocks: list[Block] = []
    if rows.ranks:
        most = max(rows.ranks, key=lambda row: row.peak_bytes or 0)
        capacity = None if most.capacity_bytes is None else gib_text(most.capacity_bytes)
        if most.peak_bytes:
            peak = gib_text(most.peak_bytes)
            blocks.append(text(say("run", "most", peak=peak, capacity_bytes=capacity, rank=most.rank)))
        blocks.append(TableBlock(_table(rows.ranks), "narrow"))
    if rows.steps:
        blocks.append(Chart("memory-steps", say("run", "steps_chart"), steps_figure(rows.steps)))
    if rows.over_time is not None:
        # Stack each line of the program upon those before it, so that the uppermost is all that was held.
        traces, moments = [], rows.over_time.moments
        sums = [0.0] * len(moments)
        for number, place in enumerate(rows.over_time.lines):
            sums = [below + row[number] for below, row in zip(sums, rows.over_time.held_bytes, strict=True)]
            traces.append(_line(place, moments, sums, _COLOURS[number % len(_COLOURS)]))
        at = moments.index(rows.over_time.peak) if rows.over_time.peak in moments else 0
        marker = {"color": "#d62728", "size": 8, "symbol": "circle"}
        traces.append(dots("peak", [moments[at]], [sums[at] / _GIB], marker, "peak: %{y:.2f} GiB"))
        at_peak = sorted(zip(rows.over_time.held_bytes[at], rows.over_time.lines, strict=True), reverse=True)[:3]
        held = [gib_text(sum(rows.over_time.held_bytes[at]))]
        held += [f"{gib_text(size)} made in {line}" for size, line in at_peak if line not in ("others", NO_STACK)]
        chart = Chart("memory-over-time", say("run", "over_time_chart"), _figure(traces, "allocations and frees"))
        blocks += [text(say("run", "peak", rank=rows.over_time.rank, held=", ".join(held))), chart]
    if rows.recorded is not None:
        from traceops.render.memory import kinds_table, makers_table, recorded_headline  # most runs recorded none

        blocks += [
            text(recorded_headline(rows.recorded)),
            TableBlock(kinds_table(rows.recorded), "narrow"),
            TableBlock(makers_table(rows.recorded), "narrow"),
            Chart("memory-in-step", say("run", "in_step_chart"), in_step_figure(rows.recorded.in_step)),
        ]
    peak_bytes = max((row.peak_memory_bytes or 0 for row in report.ranks), default=0) or None
    return section_of("memory", blocks, peak_bytes=peak_bytes)


def steps_figure(steps: Sequence[MemoryStep]) -> Figure:
    """Two lines a rank, of the first eight."""
    by_rank: dict[int, list[MemoryStep]] = defaultdict(list)
    for row in steps:
        by_rank[row.rank].append(row)
    traces = []
    for number, (rank, own) in enumerate(list(by_rank.items())[:_MOST_LINES]):
        colour = _COLOURS[number]
        at = [row.step for row in own]
        traces.append(_line(f"rank {rank}", at, [row.held_bytes for row in own], colour))
        traces.append(_line(f"rank {rank} reserved", at, [row.reserved_bytes for row in own], _PALER[number]))
    return _figure(traces, "step")


def in_step_figure(rows: MemoryInStep) -> Figure:
    """Each kind upon those before it, so that the uppermost is all that was held."""
    traces = []
    sums = [0.0] * len(rows.at_ms)
    for number, (kind, words) in enumerate(MEMORY_KINDS.items()):
        own = [getattr(held, kind) for held in rows.held]
        if any(own):
            sums = [held + more for held, more in zip(sums, own, strict=True)]
            traces.append(_line(words, rows.at_ms, sums, _COLOURS[number % len(_COLOURS)]))
    return _figure(traces, worded("memory_axis"))


def _line(name: str, at: Sequence[float], held: Sequence[float], colour: str) -> dict[str, Any]:
    hover = f"{name}: %{{y:.2f}} GiB<extra></extra>"
    return line(name, at, [size / _GIB for size in held], colour, hovertemplate=hover)


def _figure(traces: list[dict[str, Any]], x: str) -> Figure:
    return laid_out(traces, 10, pixels=22, xaxis=axis(x), yaxis=axis("GiB", rangemode="tozero"), grid_y=True)


def _table(ranks: Sequence[MemoryRank]) -> Table:
    def cell(key: str, row: MemoryRank) -> Cell:
        size, unit = getattr(row, key), 1 << 20 if key == "grows_bytes" else _GIB
        return Cell(UNKNOWN if size is None else f"{size / unit:.2f}")

    keys = [key for key in MemoryRank.__struct_fields__ if key.endswith("_bytes")]
    return table_of("memory", ranks, make={key: partial(cell, key) for key in keys})
