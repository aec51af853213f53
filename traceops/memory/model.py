"""What `traceops memory` says before a run, as data: memory.json (docs/formats.md)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Bytes = Annotated[int, Meta(ge=0)]
Verdict = Literal["fits", "does_not_fit", "too_close", "unknown"]


class CategoryMemory(msgspec.Struct):
    """What one kind of thing held at the peak."""

    name: str
    held_bytes: Bytes


class ModuleMemory(msgspec.Struct):
    """Activations that one module made and that were held at the peak."""

    name: str
    held_bytes: Bytes


class RankMemory(msgspec.Struct):
    """A rank's peaks, and what held the memory when most was allocated."""

    rank: int
    peak_allocated_bytes: Annotated[Bytes, Meta(description="Most that its tensors hold; see least_allocated_bytes.")]
    peak_reserved_bytes: Annotated[Bytes, Meta(description="Most that torch's allocator takes from the device.")]
    least_allocated_bytes: Annotated[
        Bytes, Meta(description="The peak where NCCL lets go of the first buckets of DDP before the second step.")
    ]
    least_reserved_bytes: Bytes
    categories: list[CategoryMemory]
    activations: Annotated[list[ModuleMemory], Meta(description="By the module that made them, most first.")]
    peak_step: int
    peak_phase: str
    peak_module: str
    peak_operation: str
    peak_operation_bytes: Bytes


class MemoryChange(msgspec.Struct):
    """A change of the options, estimated in the same way."""

    name: str
    options: list[str]
    peak_allocated_bytes: Bytes
    device_bytes: Bytes
    saves_bytes: int
    cost: str
    verdict: Verdict


class MemoryEstimate(msgspec.Struct):
    """What a training would need of each GPU. Bytes are of 8 bits, GB of 10⁹ bytes, GiB of 2³⁰."""

    schema_version: int
    command: list[str]
    method: Literal["fake_tensors", "formula"]
    strategy: Annotated[str, Meta(description="Of the built-in training; 'script' for that behind -- in command.")]
    world_size: int
    parameters: int
    ranks: list[RankMemory]
    peak_allocated_bytes: Annotated[Bytes, Meta(description="Of the rank that needs most.")]
    peak_reserved_bytes: Bytes
    context_bytes: Annotated[Bytes, Meta(description="Of the CUDA context and its libraries, outside torch.")]
    nccl_bytes: Bytes
    device_bytes: Annotated[Bytes, Meta(description="Needed of the device: reserved, context and NCCL.")]
    error_share: Annotated[
        float | None, Meta(description="What the estimate may be off by, as a share; null for a formula.")
    ]
    capacity_bytes: Bytes | None
    verdict: Verdict
    spare_bytes: int | None
    changes: list[MemoryChange]
    assumptions: list[str]
    seconds: float
