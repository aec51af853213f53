"""What a report holds of its run's GPU memory: by rank, at the ends of steps, and by the line that made it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.report.numbers import Count, Number, Whole


class MemoryLine(msgspec.Struct, frozen=True, kw_only=True):
    """What allocations of one line of the program held when most was held, from a memory snapshot."""

    line: str
    held_bytes: Count
    blocks: Count


class MemoryRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's memory; null where nothing tells."""

    rank: Whole
    capacity_bytes: Annotated[Count | None, Meta(description="Of its GPU.")] = None
    peak_bytes: Annotated[Count | None, Meta(description="Most that tensors held.")] = None
    reserved_bytes: Annotated[Count | None, Meta(description="Most that torch reserved.")] = None
    between_steps_bytes: Annotated[
        Count | None,
        Meta(description="Held by tensors at the end of a step; the rest of the peak is within it."),
    ] = None
    parameters_bytes: Count | None = None
    gradients_bytes: Annotated[
        Count | None, Meta(description="Where the step ends before they are set back.")
    ] = None
    optimizer_state_bytes: Count | None = None
    grows_bytes: Annotated[Number | None, Meta(description="A step, where it grows all through the run.")] = (
        None
    )
    lines: Annotated[tuple[MemoryLine, ...], Meta(description="The first 20, most first.")] = ()


class MemoryStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank held at the end of a step."""

    rank: Whole
    step: Whole
    held_bytes: Count
    reserved_bytes: Count


class MemoryOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """Of the rank with the highest peak in a snapshot: what each line held, a row a moment and a column a line."""

    rank: Whole
    lines: tuple[str, ...]
    moments: Annotated[tuple[Count, ...], Meta(description="Numbers of allocations and frees.")]
    held_bytes: tuple[tuple[Number, ...], ...]
    peak: Annotated[Count, Meta(description="The moment of the peak.")]


class MemoryRows(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a run."""

    ranks: tuple[MemoryRank, ...]
    steps: Annotated[
        tuple[MemoryStep, ...], Meta(description="Up to 300 of each of the first 64 ranks.")
    ] = ()
    over_time: MemoryOverTime | None = None
