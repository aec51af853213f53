"""What `traceops memory` says before a run, as data: memory.json (docs/formats.md), and what its processes exchange."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.core.errors import UsageError

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
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    least_allocated_bytes: Bytes
    least_reserved_bytes: Bytes
    categories: list[CategoryMemory]
    activations: list[ModuleMemory]
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
    strategy: str
    world_size: int
    parameters: int
    ranks: list[RankMemory]
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    context_bytes: Bytes
    nccl_bytes: Bytes
    device_bytes: Bytes
    error_share: float | None
    capacity_bytes: Bytes | None
    verdict: Verdict
    spare_bytes: int | None
    changes: list[MemoryChange]
    assumptions: list[str]
    seconds: float


_MIB = 1 << 20

# Measured on H200 (CUDA 13.0, NCCL 2.28): a process with a context alone, and one that has used a communicator of
# two ranks. On an A6000 a failed training told of 0.48 GiB outside of torch, without NCCL.
CONTEXT_BYTES = 520 * _MIB
NCCL_BYTES = 1_076 * _MIB

_LARGEST = 1e18  # of the number in a size
_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


def is_size(text: str) -> bool:
    """Whether it is a number with or without a unit of bytes."""
    return _SIZE.fullmatch(text) is not None


def size_of(text: str) -> int:
    """``47.4GB`` or ``44.1GiB`` in bytes. Raises UsageError."""
    if (match := _SIZE.fullmatch(text)) is None or not 0 < float(match[1]) < _LARGEST:
        raise UsageError(f"{text}: give a size such as 47.4GiB or 80GB")
    unit = _UNITS[match[2].upper()]
    if match[3]:
        unit = 1 << {1: 0, 1000: 10, 1000**2: 20, 1000**3: 30, 1000**4: 40}[unit]
    if (size := round(float(match[1]) * unit)) < _MIB:
        raise UsageError(f"{text}: that is {size:,} bytes, too few for a GPU; give a unit, such as 80GB")
    return size


# What of the script was left out or done otherwise; words for it are in estimate.py.
Note = Literal["compiled", "saved", "workers", "network", "ended_early", "hooked"]
# Why it could not be run: a shape that depends on values, an operator without a fake kernel, data that is not there,
# the network, no GPU used, no step of an optimizer, the script's own end, no code to run, another error.
Trouble = Literal["shape", "operator", "data", "network", "no_gpu", "no_step", "left", "not_loaded", "raised"]


class ScriptRequest(msgspec.Struct):
    """Run ``SCRIPT ARGS`` or ``-m MODULE ARGS`` as `rank` of `world_size` until `steps` training steps are over. gpus:
    of a host. memory: of each, in bytes. answer: the file for a `ScriptAnswer` in JSON."""

    words: list[str]
    rank: int
    world_size: int
    gpus: int
    memory: int
    steps: int
    workspaces: dict[str, int]
    answer: str


class ScriptProblem(msgspec.Struct):
    """`place` is FILE:LINE of the script, "" where it has none in the trace; `said` the error's own first line."""

    trouble: Trouble
    place: str = ""
    source: str = ""
    said: str = ""


class ScriptAnswer(msgspec.Struct):
    """Peaks of the rank, or why there are none."""

    rank: RankMemory | None = None
    parameters: int = 0
    steps: int = 0
    values_read: int = 0
    notes: list[Note] = []
    problem: ScriptProblem | None = None


def environment(request: ScriptRequest) -> dict[str, str]:
    """What torchrun would set for the rank."""
    local = request.rank % request.gpus
    hosts = -(-request.world_size // request.gpus)
    return {
        "RANK": str(request.rank), "WORLD_SIZE": str(request.world_size),
        "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(min(request.gpus, request.world_size)),
        "GROUP_RANK": str(request.rank // request.gpus), "GROUP_WORLD_SIZE": str(hosts),
        "ROLE_RANK": str(request.rank), "ROLE_WORLD_SIZE": str(request.world_size), "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "memory",
    }  # fmt: skip
