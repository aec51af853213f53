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
    place: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Where in the step it is launched on average, 0 first, 1 last."),
    ] = None


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
    device_ms: Annotated[NotNegative, Meta(description="GPU time that the fix saves.")]
    device_ms_uncertain: Annotated[
        NotNegative, Meta(description="What it may save besides; the trace does not show whether.")
    ] = 0.0
    kernels_ms: Annotated[NotNegative, Meta(description="GPU time of the kernels in question.")]
    launches: Annotated[NotNegative, Meta(description="Kernels that the fix removes.")]
    step_after_ms: Annotated[
        tuple[NotNegative, NotNegative],
        Meta(description="Least and most that the step takes after this fix alone, without the profiler."),
    ]
    where: Annotated[
        tuple[str, ...], Meta(description="Operators in question, by their time; then module and line, where recorded.")
    ]
    sizes: tuple[int, ...] = ()


class OperatorKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that an operator launches, per step."""

    name: str
    launches: NotNegative
    ms: NotNegative


class OperatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """An operator on one set of inputs in one place, per step; null where its shapes do not show its work."""

    name: Annotated[str, Meta(description="Empty for all operators of the place that have no row of their own.")]
    kind: str
    shape: str
    calls: NotNegative
    ms: NotNegative
    flops: NotNegative | None
    bytes: NotNegative | None
    attainable_ms: NotNegative | None
    cause: Cause | None
    known_ms: Annotated[
        NotNegative | None, Meta(description="The part of ms whose work is known, which attainable_ms is of.")
    ] = None
    phase: Phase = "forward"
    module: Annotated[
        str, Meta(description="Classes of the modules around it, as in GPT/Block/Linear; empty if not recorded.")
    ] = ""
    line: Annotated[str, Meta(description="file:line of the function around it, where stacks were recorded.")] = ""
    kernels: Annotated[tuple[OperatorKernel, ...], Meta(description="Those that take most of its time.")] = ()


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
    attainable_ms: Annotated[
        NotNegative | None,
        Meta(description="What the same operators take at attainable speed. Null where too little is known."),
    ]
    efficiency_pct: Annotated[NotNegative | None, Meta(description="attainable_ms in percent of their time.")]
    rates: Annotated[
        Source,
        Meta(
            description="Where attainable rates are from. measured: on this kind of GPU. own: on this machine's GPU, "
            "by traceops doctor --compute. scaled: its data sheet, by the "
            "share that an H200 attains. assumed: an H200's, as the GPU is unknown."
        ),
    ]
    bound: Annotated[Bound, Meta(description="What limits the step without the profiler.")]
    losses: Annotated[
        tuple[LossRow, ...],
        Meta(description="Largest first: by GPU time; where the host limits the step, by the launches they remove."),
    ]
    operators: tuple[OperatorRow, ...] = ()
    gpu: Annotated[str, Meta(description="Its name; empty where neither the trace nor the user tells.")] = ""
    roofs: RoofRows | None = None
