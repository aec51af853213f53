"""What a report holds of its run's GPU memory: by rank, at the ends of steps, and by the line that made it."""

from __future__ import annotations

import msgspec

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
    capacity_bytes: Count | None = None
    peak_bytes: Count | None = None
    reserved_bytes: Count | None = None
    between_steps_bytes: Count | None = None
    parameters_bytes: Count | None = None
    gradients_bytes: Count | None = None
    optimizer_state_bytes: Count | None = None
    grows_bytes: Number | None = None
    lines: tuple[MemoryLine, ...] = ()


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
    moments: tuple[Count, ...]
    held_bytes: tuple[tuple[Number, ...], ...]
    peak: Count


class MemoryByKind(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that tensors held at one moment, by the phases in which each allocation was made and freed."""

    before: Count = 0
    for_backward: Count = 0
    past_backward: Count = 0
    backward_kept: Count = 0
    optimizer_kept: Count = 0
    forward_temporary: Count = 0
    backward_temporary: Count = 0
    optimizer_temporary: Count = 0
    unknown: Count = 0


class MemoryMaker(msgspec.Struct, frozen=True, kw_only=True):
    """What allocations of one kind and one operator held at a step's peak."""

    operator: str | None
    kind: MemoryKind
    held_bytes: Count
    blocks: Count


class MemoryStepPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Where tensors held most in a recorded step, to the byte as the trace has it."""

    step: Whole | None
    at_ms: Number
    peak_bytes: Count
    held: MemoryByKind
    makers: tuple[MemoryMaker, ...] = ()


class MemoryInStep(msgspec.Struct, frozen=True, kw_only=True):
    """What was held over the step with the highest peak, by kind."""

    step: Whole | None
    at_ms: tuple[Number, ...]
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
    steps: tuple[MemoryStep, ...] = ()
    over_time: MemoryOverTime | None = None
    recorded: MemoryRecorded | None = None
