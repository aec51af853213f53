"""The inventory of a report: what the average rank runs in a step, which comparisons read."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

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
