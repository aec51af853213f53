"""Rows of a report that one rank or host fills: itself, its steps, its passes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.report.numbers import Count, NotNegative, Number, Whole


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, its times in ms a step; null where it is not known."""

    rank: Whole
    host: str | None = None
    steps: int = 0
    step_time_ms: Annotated[Number | None, Meta(description="Median over its steps.")] = None
    typical_step_ms: Annotated[
        Number | None, Meta(description="Mean over its typical steps, which its ledger adds up to.")
    ] = None
    idle_pct: Number | None = None
    compute_pct: Number | None = None
    non_compute_pct: Number | None = None
    overlap_pct: Number | None = None
    breakdown_source: Literal["hta", "traceops"] = "traceops"
    breakdown_note: Annotated[str, Meta(description="Why the breakdown is not HTA's.")] = ""
    exposed_comm_ms: Number | None = None
    wait_ms: Annotated[Number | None, Meta(description="Waiting in all collectives a step, hidden or not.")] = None
    transfer_ms: Number | None = None
    caused_wait_ms: Annotated[
        Number | None, Meta(description="What the other ranks waited in collectives this rank entered last, a step.")
    ] = None
    late_share: Annotated[Number | None, Meta(description="Share of all such waiting, 0 to 1.")] = None
    compute_ms: Number | None = None
    comm_transfer_ms: Number | None = None
    comm_wait_ms: Number | None = None
    comm_unmatched_ms: Number | None = None
    memory_ms: Number | None = None
    idle_input_ms: Number | None = None
    idle_sync_ms: Number | None = None
    idle_host_ms: Number | None = None
    idle_dependency_ms: Number | None = None
    idle_unknown_ms: Number | None = 0.0  # older reports count it as idle_dependency
    idle_gap_ms: Number | None = None
    input_ms: Annotated[Number | None, Meta(description="The host in data loading, the device busy or not.")] = None
    peak_memory_bytes: Annotated[Count | None, Meta(description="Most that its tensors held.")] = None
    peak_reserved_bytes: Annotated[Count | None, Meta(description="Most that the allocator held of the device.")] = None
    events: int = 0
    trace: str = ""
    damage: Annotated[str, Meta(description="What is wrong with its trace.")] = ""

    def bucket_ms(self, bucket: str) -> float | None:
        """The time in one of `ledger.BUCKETS`."""
        value: float | None = getattr(self, f"{bucket}_ms")
        return value


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A host of several: means over its ranks, ms a step; null where it is not known of all of them."""

    host: str
    ranks: tuple[Whole, ...]
    step_ms: Annotated[Number | None, Meta(description="Typical recorded step, which the ledger adds up to.")] = None
    compute_ms: Number | None = None
    comm_transfer_ms: Number | None = None
    comm_wait_ms: Number | None = None
    comm_unmatched_ms: Number | None = None
    memory_ms: Number | None = None
    idle_input_ms: Number | None = None
    idle_sync_ms: Number | None = None
    idle_host_ms: Number | None = None
    idle_dependency_ms: Number | None = None
    idle_unknown_ms: Number | None = None
    idle_gap_ms: Number | None = None
    inside_transfer_ms: Annotated[
        Number | None, Meta(description="Transfer, hidden or not, in collectives whose members are all on this host.")
    ] = None
    inside_wait_ms: Annotated[Number | None, Meta(description="Waiting in them.")] = None
    between_transfer_ms: Annotated[Number | None, Meta(description="The same with members on other hosts too.")] = None
    between_wait_ms: Number | None = None
    inside_busbw_gbs: Annotated[
        Number | None, Meta(description="All bytes over all transfer, by nccl-tests' rules.")
    ] = None
    between_busbw_gbs: Number | None = None
    caused_wait_ms: Annotated[
        Number | None, Meta(description="What other ranks waited for its ranks, a step, all together.")
    ] = None
    late_share: Annotated[Number | None, Meta(description="Share of all such waiting, 0 to 1.")] = None
    peak_memory_bytes: Annotated[Count | None, Meta(description="Of its rank that has most.")] = None


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a rank, ms. The buckets add up to duration_ms exactly (in ns).

    What the rank launched in the step is null in reports of an early traceops, bytes also where a collective's size
    is not known.
    """

    rank: Whole
    step: Whole | None = None
    duration_ms: Annotated[float, Meta(ge=0, le=1e15)]
    compute: NotNegative | None = None
    comm_transfer: NotNegative | None = None
    comm_wait: NotNegative | None = None
    comm_unmatched: NotNegative | None = None
    memory: NotNegative | None = None
    idle_input: NotNegative | None = None
    idle_sync: NotNegative | None = None
    idle_host: NotNegative | None = None
    idle_dependency: NotNegative | None = None
    idle_unknown: NotNegative | None = 0.0
    idle_gap: NotNegative | None = None
    kernels: Count | None = None
    collectives: Count | None = None
    collective_bytes: Count | None = None
    blocking_calls: Count | None = None


class UnprofiledStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a rank timed before the profiler started."""

    rank: Whole
    index: Count
    duration_ms: Annotated[float, Meta(gt=0, le=1e15)]
    behind_window: Annotated[
        bool, Meta(description="torch's profiler was still in the process, from a window before it.")
    ] = False


class PassRow(msgspec.Struct, frozen=True, kw_only=True):
    """Passes of one kind of an inference server, ms: medians over passes and ranks."""

    kind: Literal["prefill", "mixed", "decode"]
    count: Annotated[Count, Meta(description="Passes of the rank that has most.")]
    requests: Annotated[Number | None, Meta(description="As the annotations say.")] = None
    tokens: Number | None = None
    device_ms: Annotated[NotNegative, Meta(description="From the first kernel's begin to the last one's end.")]
    device_p95_ms: NotNegative
    busy_pct: Annotated[NotNegative, Meta(description="Of it, in which the device runs something.")]
    host_ms: Annotated[NotNegative, Meta(description="The annotation on the host.")]
    graphs: Annotated[Number | None, Meta(description="Launches of CUDA graphs in a pass.")] = None
    between_ms: Annotated[
        NotNegative | None,
        Meta(description="The device runs nothing between the pass before and this one; null for a first one."),
    ] = None
    scheduling_ms: Annotated[
        NotNegative | None, Meta(description="The host is in neither pass: scheduling, sampling, output.")
    ] = None
    waiting_ms: Annotated[
        NotNegative | None,
        Meta(description="Skew: in collectives, waiting for late members. Null where none was matched."),
    ] = None
    transfer_ms: Annotated[
        NotNegative | None, Meta(description="In collectives, all members there. Null likewise.")
    ] = None
    unmatched_ms: Annotated[NotNegative, Meta(description="Communication that was not matched.")] = 0.0
