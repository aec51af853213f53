"""The run of a report, and its rows: ranks, hosts, steps, collectives, roles, pipelines, experts, links, memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from traceops.core.rank_text import runs_of
from traceops.core.words import MemoryKind
from traceops.measure.ledger import IDLE_BUCKETS

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
    step_time_ms: Number | None = None
    typical_step_ms: Number | None = None
    idle_pct: Number | None = None
    compute_pct: Number | None = None
    non_compute_pct: Number | None = None
    overlap_pct: Number | None = None
    breakdown_source: Literal["hta", "traceops"] = "traceops"
    breakdown_note: str = ""
    exposed_comm_ms: Number | None = None
    wait_ms: Number | None = None
    transfer_ms: Number | None = None
    caused_wait_ms: Number | None = None
    late_share: Number | None = None
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
    input_ms: Number | None = None
    peak_memory_bytes: Count | None = None
    peak_reserved_bytes: Count | None = None
    events: int = 0
    trace: str = ""
    damage: str = ""

    def bucket_ms(self, bucket: str) -> float | None:
        """The time in one of `ledger.BUCKETS`."""
        value: float | None = getattr(self, f"{bucket}_ms")
        return value

    @property
    def idle_ms(self) -> float:
        """All idle buckets together."""
        return sum(self.bucket_ms(bucket) or 0.0 for bucket in IDLE_BUCKETS)


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A host of several: means over its ranks, ms per step; null where it is not known of all of them."""

    host: str
    ranks: tuple[Whole, ...]
    step_ms: Number | None = None
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
    inside_transfer_ms: Number | None = None
    inside_wait_ms: Number | None = None
    between_transfer_ms: Number | None = None
    between_wait_ms: Number | None = None
    inside_busbw_gbs: Number | None = None
    between_busbw_gbs: Number | None = None
    caused_wait_ms: Number | None = None
    late_share: Number | None = None
    peak_memory_bytes: Count | None = None


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
    behind_window: bool = False


class PassRow(msgspec.Struct, frozen=True, kw_only=True):
    """Passes of one kind of an inference server, ms: medians over passes and ranks."""

    kind: Literal["prefill", "mixed", "decode"]
    count: Count
    requests: Number | None = None
    tokens: Number | None = None
    device_ms: NotNegative
    device_p95_ms: NotNegative
    busy_pct: NotNegative
    host_ms: NotNegative
    graphs: Number | None = None
    between_ms: NotNegative | None = None
    scheduling_ms: NotNegative | None = None
    waiting_ms: NotNegative | None = None
    transfer_ms: NotNegative | None = None
    unmatched_ms: NotNegative = 0.0


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
    median_ms: Number | None = None
    total_ms: NotNegative | None = None
    median_wait_ms: Number | None = None
    busbw_gbs: Number | None = None
    role: RoleName | None = None
    places: tuple[Count, ...] = ()
    places_of: Count | None = None


class RoleRow(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of one kind of parallelism, ms per step: medians over the ranks that take part in it."""

    role: RoleName
    told_by: tuple[ToldBy, ...]
    names: tuple[str, ...] = ()
    groups: Count = 0
    group_sizes: tuple[Count, ...] = ()
    ranks: Count
    exposed_ms: NotNegative | None = None
    wait_ms: NotNegative | None = None
    transfer_ms: NotNegative | None = None
    unmatched_ms: NotNegative | None = None
    worst_rank: Whole | None = None
    worst_exposed_ms: NotNegative | None = None
    reach: Literal["inside", "between"] | None = None
    host: str | None = None
    busbw_gbs: Number | None = None
    waits_for_rank: Whole | None = None
    waits_for_pct: Number | None = None
    fused: bool = False
    saved_ms: NotNegative | None = None


class ExpertTimesRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's experts of one layer get and do, a step."""

    rank: Whole
    layer: Count
    received_bytes: Count
    compute_ms: NotNegative


class StepImbalance(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a rank receives in a step over the mean of all."""

    step: Whole
    share: NotNegative


class ExpertsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Experts that a group of ranks shares: ms per step, bandwidth in 1e9 bytes a second that leave a rank."""

    ranks: tuple[Whole, ...]
    layers: Count
    imbalance: NotNegative
    imbalance_by_step: tuple[StepImbalance, ...]
    dispatch_ms: NotNegative
    combine_ms: NotNegative
    dispatch_gbs: Number | None = None
    combine_gbs: Number | None = None
    reference_gbs: Number | None = None
    even_saves_ms: NotNegative | None = None
    times: tuple[ExpertTimesRow, ...]


class WhatIfRow(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step of the window as replayed, and under one change."""

    change: str
    ranks: tuple[int, ...]
    step_time_ms: float | None
    predicted_step_time_ms: float | None
    saved_pct: float | None
    predicted_least_ms: Number | None = None


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank of a pipeline, ms per step, the mean over its typical steps. `bubble_ms` is waiting for activations and
    gradients with nothing else to do; the three after it add up to it."""

    rank: Whole
    stage: Count
    step_time_ms: NotNegative
    work_ms: NotNegative
    bubble_ms: NotNegative
    imbalance_ms: NotNegative
    fill_drain_ms: NotNegative
    late_ms: NotNegative
    fill_ms: NotNegative | None = None
    drain_ms: NotNegative | None = None


class PipelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks in the order of their stages."""

    ranks: tuple[Whole, ...]
    schedule: ScheduleName
    stages_per_rank: Count | None = None
    micro_batches: Count | None = None
    bubble_pct: NotNegative
    schedule_bubble_pct: Number | None = None
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
    busbw_gbs: float | None
    reference_gbs: float | None
    reference_source: LinkSource | None
    reference_link: str | None
    reference_pct: float | None
    lost_ms: float | None
    role: RoleName | None = None


class Git(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the code that ran; branch is null where HEAD is detached and no CI names it."""

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None


MOST_MISSING = 4096  # ranks that are listed one by one


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The run: from its manifest, or else from what its traces say; null where neither does."""

    name: str | None = None
    world_size: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    ranks_present: tuple[Whole, ...] = ()
    ranks_missing: tuple[Whole, ...] = ()
    ranks_missing_runs: tuple[tuple[Whole, Whole], ...] = ()
    hosts: tuple[str, ...] = ()
    device: str | None = None
    device_type: Literal["cuda", "cpu"] | None = None
    backend: str | None = None
    torch_version: str | None = None
    nccl_version: str | None = None
    strategy: str | None = None
    steps: tuple[Whole, ...] = ()
    training: dict[str, Any] | None = None
    samples_per_step: NotNegative | None = None
    tokens_per_step: NotNegative | None = None
    flops_per_step: NotNegative | None = None
    environment: dict[str, str] | None = None
    git: Git | None = None
    cuda_version: str | None = None
    driver_version: str | None = None
    command: tuple[str, ...] | None = None
    options: dict[str, Any] | None = None
    started_ns: Whole | None = None

    @property
    def missing(self) -> tuple[tuple[int, int], ...]:
        """Runs of ranks without a trace, also of a report that lists them only one by one."""
        return self.ranks_missing_runs or runs_of(self.ranks_missing)


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
