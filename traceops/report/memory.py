"""What a report holds of its run's GPU memory: by rank, at the ends of steps, and by the line that made it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.core.words import MemoryKind
from traceops.report.rows import Count, Number, Whole


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
        Count | None, Meta(description="Held by tensors at the end of a step; the rest of the peak is within it.")
    ] = None
    parameters_bytes: Count | None = None
    gradients_bytes: Annotated[Count | None, Meta(description="Where the step ends before they are set back.")] = None
    optimizer_state_bytes: Count | None = None
    grows_bytes: Annotated[Number | None, Meta(description="A step, where it grows all through the run.")] = None
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


class MemoryByKind(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that tensors held at one moment, by the phases in which each allocation was made and freed."""

    before: Annotated[Count, Meta(description="Held from before the recording.")] = 0
    for_backward: Annotated[Count, Meta(description="Made before backward, freed while it ran.")] = 0
    past_backward: Annotated[Count, Meta(description="Made before backward, held after it.")] = 0
    backward_kept: Annotated[Count, Meta(description="Made in backward, held after it.")] = 0
    optimizer_kept: Annotated[Count, Meta(description="Made in the optimizer's step, held after it.")] = 0
    forward_temporary: Annotated[
        Count, Meta(description="Made outside backward and the optimizer's step, freed before a backward.")
    ] = 0
    backward_temporary: Annotated[Count, Meta(description="Made and freed in one backward.")] = 0
    optimizer_temporary: Annotated[Count, Meta(description="Made and freed in one step of the optimizer.")] = 0
    unknown: Annotated[Count, Meta(description="Made with no backward after it, not freed in the recording.")] = 0


class MemoryMaker(msgspec.Struct, frozen=True, kw_only=True):
    """What allocations of one kind and one operator held at a step's peak."""

    operator: Annotated[
        str | None, Meta(description="The innermost that does more than to allocate; null where none ran.")
    ]
    kind: MemoryKind
    held_bytes: Count
    blocks: Count


class MemoryStepPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Where tensors held most in a recorded step, to the byte as the trace has it."""

    step: Annotated[Whole | None, Meta(description="Null where the trace marks no steps.")]
    at_ms: Annotated[Number, Meta(description="From the step's begin on the host.")]
    peak_bytes: Count
    held: MemoryByKind
    makers: Annotated[tuple[MemoryMaker, ...], Meta(description="The first 5, most first.")] = ()


class MemoryInStep(msgspec.Struct, frozen=True, kw_only=True):
    """What was held over the step with the highest peak, by kind."""

    step: Whole | None
    at_ms: Annotated[tuple[Number, ...], Meta(description="Up to 200 moments, and the peak.")]
    held: tuple[MemoryByKind, ...]


class MemoryRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """Of the rank with the highest peak whose trace has torch's memory events: what its recorded steps held."""

    rank: Whole
    device: Whole
    steps: tuple[MemoryStepPeak, ...]
    in_step: MemoryInStep


class MemoryRows(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a run."""

    ranks: tuple[MemoryRank, ...]
    steps: Annotated[tuple[MemoryStep, ...], Meta(description="Up to 300 of each of the first 64 ranks.")] = ()
    over_time: MemoryOverTime | None = None
    recorded: MemoryRecorded | None = None
