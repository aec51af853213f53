"""Rows of a report that one rank or host fills: itself, its steps, its passes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# Numbers as a report holds them. A file is from anybody, so what sums and squares cannot hold is not read.

Whole = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
NotNegative = Annotated[float, Meta(ge=0, le=1e300)]


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, its times in ms per step; null where it is not known."""

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
    breakdown_source: Annotated[
        Literal["hta", "traceops"],
        Meta(
            description="hta: HTA's values, which traceops computes and --hta checks with HTA's own code. traceops: by "
            "the same definitions where HTA has none, or a wrong one."
        ),
    ] = "traceops"
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
    """A host of several: means over its ranks, ms per step; null where it is not known of all of them."""

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
    """A step of a rank, ms. The buckets add up to duration_ms exactly (in ns). What the rank launched in the step is
    null in reports of an early traceops, bytes also where a collective's size is not known."""

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


# Rows of a report that several ranks fill together: collectives, roles, pipelines, experts, what-ifs, links.

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "looped_bfs", "zero_bubble", "forward_only", "other"]
RoleName = Literal["data", "shard", "tensor", "context", "pipeline", "expert", "unknown"]
ToldBy = Literal["description", "operations", "messages", "kernels", "nothing"]
LinkSource = Literal["doctor", "graph", "table", "siblings"]


class CollectiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one group, operation and size. Bandwidth in 1e9 bytes a second, by nccl-tests' rules."""

    group: str = ""
    ranks: tuple[Whole, ...]
    op: str
    bytes: Count | None = None
    count: Count
    median_ms: Annotated[Number | None, Meta(description="Transfer, all members there.")] = None
    total_ms: NotNegative | None = None
    median_wait_ms: Annotated[Number | None, Meta(description="Of the member that waits longest.")] = None
    busbw_gbs: Number | None = None
    role: Annotated[RoleName | None, Meta(description="What the group is for; null in older reports.")] = None
    places: Annotated[
        tuple[Count, ...],
        Meta(
            description="Which of the group's collectives in a step they are, counted from 1; the first 64. Empty in "
            "older reports, and where no step is marked."
        ),
    ] = ()
    places_of: Annotated[Count | None, Meta(description="How many the group has in a step, most often.")] = None


class RoleRow(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of one kind of parallelism, ms per step: medians over the ranks that take part in it."""

    role: RoleName
    told_by: Annotated[
        tuple[ToldBy, ...],
        Meta(
            description="description: the group's name. operations: what it does in which pass. messages: who sends to "
            "whom. kernels: their library. nothing: the role is unknown."
        ),
    ]
    names: Annotated[tuple[str, ...], Meta(description="Descriptions of its groups, at most 8.")] = ()
    groups: Annotated[Count, Meta(description="0 where only messages between ranks are known.")] = 0
    group_sizes: tuple[Count, ...] = ()
    ranks: Count
    exposed_ms: Annotated[
        NotNegative | None,
        Meta(description="What nothing hides. All roles of a rank add up to its exposed communication."),
    ] = None
    wait_ms: Annotated[NotNegative | None, Meta(description="Of it: waiting for late members.")] = None
    transfer_ms: Annotated[NotNegative | None, Meta(description="Of it: transfer, all members there.")] = None
    unmatched_ms: Annotated[NotNegative | None, Meta(description="Of it: not matched across ranks.")] = None
    worst_rank: Whole | None = None
    worst_exposed_ms: NotNegative | None = None
    reach: Annotated[
        Literal["inside", "between"] | None,
        Meta(description="Whether its groups lie inside hosts or between them; null where hosts are not named."),
    ] = None
    host: Annotated[
        str | None, Meta(description="The one host of several whose ranks have 95 % of the exposed time.")
    ] = None
    busbw_gbs: Annotated[Number | None, Meta(description="All bytes over all transfer, by nccl-tests' rules.")] = None
    waits_for_rank: Annotated[
        Whole | None, Meta(description="The rank that comes last where most is waited, hidden or not.")
    ] = None
    waits_for_pct: Annotated[Number | None, Meta(description="Its part of that waiting.")] = None
    fused: Annotated[
        bool,
        Meta(
            description="Products gather or scatter what they multiply themselves (asynchronous tensor parallel): "
            "that communication counts as compute."
        ),
    ] = False
    saved_ms: Annotated[
        NotNegative | None,
        Meta(description="A step without its transfers; null where it is the only role, see `what_if`."),
    ] = None


class ExpertTimesRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's experts of one layer get and do, a step."""

    rank: Whole
    layer: Annotated[Count, Meta(description="In the order of forward.")]
    received_bytes: Annotated[Count, Meta(description="Dispatched in forward, and gradients in backward.")]
    compute_ms: Annotated[NotNegative, Meta(description="Computation of the rank between a dispatch and its combine.")]


class StepImbalance(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a rank receives in a step over the mean of all."""

    step: Whole
    share: NotNegative


class ExpertsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Experts that a group of ranks shares: ms per step, bandwidth in 1e9 bytes a second that leave a rank."""

    ranks: tuple[Whole, ...]
    layers: Count
    imbalance: Annotated[NotNegative, Meta(description="Mean of imbalance_by_step; 1 where all get as much.")]
    imbalance_by_step: tuple[StepImbalance, ...]
    dispatch_ms: Annotated[NotNegative, Meta(description="Transfer, all members there.")]
    combine_ms: NotNegative
    dispatch_gbs: Number | None = None
    combine_gbs: Number | None = None
    reference_gbs: Annotated[Number | None, Meta(description="What the link should give.")] = None
    even_saves_ms: Annotated[
        NotNegative | None, Meta(description="What even routing would save, by the replay with the work shared evenly.")
    ] = None
    times: tuple[ExpertTimesRow, ...]


class WhatIfRow(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step of the window as replayed, and under one change."""

    change: str
    ranks: tuple[int, ...]
    step_time_ms: float | None
    predicted_step_time_ms: float | None
    saved_pct: float | None
    predicted_least_ms: Annotated[
        Number | None,
        Meta(
            description="Where more than the change decides: with work shared, kernels at the best pace that any "
            "rank has; with faster transfers, hosts that are never late. predicted_step_time_ms is then the most."
        ),
    ] = None


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a pipeline, ms per step, the mean over its typical steps. `bubble_ms` is waiting for activations and
    gradients with nothing else to do; the three after it add up to it."""

    rank: Whole
    stage: Annotated[Count, Meta(description="The first one, where it holds several.")]
    step_time_ms: NotNegative
    work_ms: Annotated[NotNegative, Meta(description="Computation and copies.")]
    bubble_ms: NotNegative
    imbalance_ms: Annotated[NotNegative, Meta(description="Of the bubble: for a slower stage.")]
    fill_drain_ms: Annotated[
        NotNegative, Meta(description="Of the bubble: while the first micro-batch comes in and the last leaves.")
    ]
    late_ms: Annotated[
        NotNegative, Meta(description="Of the bubble: the rest. All that is no imbalance, without a known schedule.")
    ]
    fill_ms: Annotated[
        NotNegative | None,
        Meta(description="Of fill_drain_ms: while it waits for activations. Null in reports of earlier versions."),
    ] = None
    drain_ms: Annotated[NotNegative | None, Meta(description="Of fill_drain_ms: while it waits for gradients.")] = None


class PipelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks in the order of their stages."""

    ranks: tuple[Whole, ...]
    schedule: Annotated[
        ScheduleName, Meta(description="The order of sends and receives; other where it is none of these.")
    ]
    stages_per_rank: Count | None = None
    micro_batches: Annotated[Count | None, Meta(description="A step.")] = None
    bubble_pct: Annotated[NotNegative, Meta(description="Of the step, mean over the stages.")]
    schedule_bubble_pct: Annotated[
        Number | None,
        Meta(description="What even stages wait by the schedule alone, (p - 1) / (v m + p - 1); null if not known."),
    ] = None
    stages: tuple[StageRow, ...]


class ReferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one group, operation and class of size against what their links can do."""

    group: str
    ranks: tuple[int, ...]
    op: str
    bytes_min: Count | None
    bytes_p50: Count | None
    bytes_max: Count | None
    count: Count
    busbw_gbs: Annotated[float | None, Meta(description="Median.")]
    reference_gbs: float | None
    reference_source: Annotated[
        LinkSource | None,
        Meta(
            description="Measured by traceops doctor, NCCL's own search, known of the link, or the best group like it."
        ),
    ]
    reference_link: str | None
    reference_pct: Annotated[float | None, Meta(description="Null for messages below 8 MB, where latency counts too.")]
    lost_ms: Annotated[float | None, Meta(description="A step, against the reference.")]
    role: Annotated[RoleName | None, Meta(description="What the group is for; null in older reports.")] = None
