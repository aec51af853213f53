"""What of a report.json is compared, with the types it must have: other people's files are not trusted."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

_Duration = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
_Number = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
_Time = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class _Step(msgspec.Struct):
    rank: _Time
    duration_ms: _Duration
    step: _Time | None = None
    kernels: _Number | None = None
    collectives: _Number | None = None
    collective_bytes: _Number | None = None
    blocking_calls: _Number | None = None
    compute: _Number | None = None
    comm_transfer: _Number | None = None
    comm_wait: _Number | None = None
    comm_unmatched: _Number | None = None
    memory: _Number | None = None
    idle_input: _Number | None = None
    idle_sync: _Number | None = None
    idle_host: _Number | None = None
    idle_dependency: _Number | None = None
    idle_gap: _Number | None = None


class _Unprofiled(msgspec.Struct):
    rank: _Time
    index: _Time
    duration_ms: _Duration


class _Rank(msgspec.Struct):
    rank: _Time
    peak_memory_bytes: _Number | None = None
    peak_reserved_bytes: _Number | None = None


class _Collective(msgspec.Struct):
    op: str
    ranks: list[_Time]
    count: _Number
    bytes: _Number | None = None
    total_ms: _Number | None = None


class _Kernel(msgspec.Struct):
    name: str
    count_per_step: _Number
    ms_per_step: _Number
    kind: str | None = None
    operator: str | None = None
    place: _Number | None = None


class _Operator(msgspec.Struct):
    name: str
    count_per_step: _Number
    host_ms_per_step: _Number
    shapes: str | None = None


class _CollectiveUse(msgspec.Struct):
    op: str
    count_per_step: _Number
    kernel_ms_per_step: _Number
    group_size: _Number | None = None
    dtype: str | None = None
    elements: _Number | None = None
    bytes: _Number | None = None


class _Call(msgspec.Struct):
    call: str
    count_per_step: _Number
    ms_per_step: _Number
    operator: str | None = None


class _Inventory(msgspec.Struct):
    kernels: list[_Kernel] = []
    operators: list[_Operator] = []
    collectives: list[_CollectiveUse] = []
    blocking_calls: list[_Call] = []


class _Finding(msgspec.Struct):
    rule: str
    severity: str
    ranks: list[_Time] = []
    cause: str | None = None
    title: str | None = None
    message: str | None = None
    advice: str | None = None
    impact_ms: Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)] | None = None
    evidence: list[dict[str, Any]] = []


class _Git(msgspec.Struct):
    commit: str | None = None
    dirty: bool | None = None


class _Run(msgspec.Struct):
    name: str | None = None
    world_size: _Time | None = None
    device: str | None = None
    device_type: str | None = None
    hosts: list[str] = []
    ranks_missing: list[_Time] = []
    samples_per_step: _Number | None = None
    training: dict[str, Any] | None = None
    environment: dict[str, str] | None = None
    options: dict[str, Any] | None = None
    command: list[str] | None = None
    started_ns: _Time | None = None
    git: _Git | None = None


class ReportShape(msgspec.Struct):
    """What must be right in a report.json for it to be compared; the rest may be anything."""

    run: _Run
    ranks: list[_Rank]
    steps: list[_Step]
    findings: list[_Finding]
    collectives: list[_Collective]
    schema_version: int = 1
    unprofiled_steps: list[_Unprofiled] = []
    inventory: _Inventory | None = None


def shape_of(report: Any) -> ReportShape:
    """The report as far as it is compared. Raises ValueError saying where a value is not what it must be."""
    try:
        return msgspec.convert(report, ReportShape)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).encode("ascii", "backslashreplace").decode()) from error
    except (OverflowError, RecursionError, UnicodeError) as error:
        raise ValueError(f"a value in it cannot be used ({error})") from error
