"""What tensors held in the recorded steps, by the phases that made and freed it, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from traceops.core.units import gib_text
from traceops.core.words import MEMORY_KINDS
from traceops.render.cells import Table
from traceops.render.memory import plain_table
from traceops.report.memory import MemoryRecorded, MemoryStepPeak

_MIB = 1 << 20


def headline(rows: MemoryRecorded) -> str:
    """The highest peak of the recorded steps."""
    most = highest(rows)
    where = "" if most.step is None else f" in step {most.step}"
    return (
        f"Rank {rows.rank}, GPU {rows.device}: tensors held {gib_text(most.peak_bytes)} at the peak of its recorded "
        f"steps{where}."
    )


def highest(rows: MemoryRecorded) -> MemoryStepPeak:
    """The step of which the course is told."""
    return max(rows.steps, key=lambda step: step.peak_bytes)


def kinds_table(rows: MemoryRecorded) -> Table:
    """What the peak consists of, most first."""
    most = highest(rows)
    held = sorted(((getattr(most.held, kind), words) for kind, words in MEMORY_KINDS.items()), reverse=True)
    shown = [(f"{size / _MIB:,.1f}", words) for size, words in held if size]
    return plain_table("Held at that peak", ("MiB", "what"), shown)


def makers_table(rows: MemoryRecorded) -> Table:
    """The operators that made most of what is held there, and was made in the recording."""
    return plain_table(
        "Made in the recording and held at that peak, by operator", ("MiB", "blocks", "operator", "what"),
        tuple(_makers(highest(rows))),
    )  # fmt: skip


def _makers(most: MemoryStepPeak) -> Iterator[tuple[str, ...]]:
    for one in most.makers:
        name = one.operator or "no operator"
        yield f"{one.held_bytes / _MIB:,.1f}", str(one.blocks), name, MEMORY_KINDS[one.kind]
