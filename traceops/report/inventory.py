"""What runs in a step: the inventory of the average rank, and how well the kernels of one rank use its GPU."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.compute.attainable import Source
from traceops.compute.model import Bound, Cause, Phase
from traceops.report.rows import Count, NotNegative


class KernelUse(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel by name, kind and the operator that launches it, a step of the average rank."""

    name: str
    kind: Literal["compute", "comm", "memory"] | None = None
    operator: str | None = None
    count_per_step: NotNegative
    ms_per_step: NotNegative
    place: Annotated[float, Meta(ge=0, le=1)] | None = None


class OperatorUse(msgspec.Struct, frozen=True, kw_only=True):
    """An operator by name and shapes, a step of the average rank."""

    name: str
    shapes: str | None = None
    count_per_step: NotNegative
    host_ms_per_step: NotNegative
    device_ms_per_step: NotNegative = 0.0


class CollectiveUse(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of collective, a step of the average rank."""

    op: str
    group_size: Count | None = None
    dtype: str | None = None
    elements: Count | None = None
    bytes: Count | None = None
    count_per_step: NotNegative
    kernel_ms_per_step: NotNegative


class CallUse(msgspec.Struct, frozen=True, kw_only=True):
    """A call in which the host waits for the device, a step of the average rank."""

    call: str
    operator: str | None = None
    count_per_step: NotNegative
    ms_per_step: NotNegative


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """What the average rank runs in a step, most time first."""

    kernels: tuple[KernelUse, ...] = ()
    operators: tuple[OperatorUse, ...] = ()
    collectives: tuple[CollectiveUse, ...] = ()
    blocking_calls: tuple[CallUse, ...] = ()


class LossRow(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why kernels take longer than their work needs; times per step."""

    cause: Cause
    device_ms: NotNegative
    device_ms_uncertain: NotNegative = 0.0
    kernels_ms: NotNegative
    launches: NotNegative
    step_after_ms: tuple[NotNegative, NotNegative]
    where: tuple[str, ...]
    sizes: tuple[int, ...] = ()


class OperatorKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that an operator launches, per step."""

    name: str
    launches: NotNegative
    ms: NotNegative


class OperatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """An operator on one set of inputs in one place, per step; null where its shapes do not show its work."""

    name: str
    kind: str
    shape: str
    calls: NotNegative
    ms: NotNegative
    flops: NotNegative | None
    bytes: NotNegative | None
    attainable_ms: NotNegative | None
    cause: Cause | None
    known_ms: NotNegative | None = None
    phase: Phase = "forward"
    module: str = ""
    line: str = ""
    kernels: tuple[OperatorKernel, ...] = ()


class RoofRows(msgspec.Struct, frozen=True, kw_only=True):
    """What large operators attain on this GPU."""

    half_tflops: NotNegative
    tf32_tflops: NotNegative
    float32_tflops: NotNegative
    float64_tflops: NotNegative
    memory_tbs: NotNegative


class ComputeRows(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of the rank whose GPU is busiest, per step, without collectives."""

    rank: int
    busy_ms: NotNegative
    attainable_ms: NotNegative | None
    efficiency_pct: NotNegative | None
    rates: Source
    bound: Bound
    losses: tuple[LossRow, ...]
    operators: tuple[OperatorRow, ...] = ()
    gpu: str = ""
    roofs: RoofRows | None = None
