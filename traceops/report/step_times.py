"""How long steps take, and where their time goes: medians over ranks."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.core.claims import first_phrase
from traceops.measure.recording import SLOWED
from traceops.report.rows import Count, NotNegative, Number, Whole


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long steps take, each the median over ranks, ms."""

    median: Number | None = None
    p5: Number | None = None
    p95: Number | None = None
    n: int = 0
    typical: Annotated[
        Number | None,
        Meta(description="The typical step: mean over steps neither `unlike` nor `unshared`. Shares are of this step."),
    ] = None
    unlike: Annotated[
        tuple[Whole, ...],
        Meta(description="Steps that take far longer than most (TO-T001); no mean and no what-if counts them."),
    ] = ()
    unshared: Annotated[
        tuple[Whole, ...],
        Meta(description="Steps that only some ranks recorded (TO-V003); no mean counts them where others are left."),
    ] = ()

    @property
    def left_out(self) -> frozenset[int]:
        """Numbers of the recorded steps that no mean counts."""
        return frozenset((*self.unlike, *self.unshared))


class UnjudgedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a step that no rule could judge, on the rank that has most of such time."""

    bucket: str
    rank: Whole
    pct: Annotated[Number, Meta(description="Of the rank's typical step.")]
    why: Annotated[
        Literal["unmatched", "no_launch", "not_recorded", "no_device", "not_evaluated", "no_rule"],
        Meta(
            description="unmatched: communication without its partners on other ranks. no_launch: idle time before "
            "kernels whose launch the trace does not hold. not_recorded: idle time before the host's first event. "
            "no_device: operators of the host in a trace that names a GPU and holds nothing of it. not_evaluated: its "
            "rule lacked what it needs, see `checks`. no_rule: no rule judges this bucket."
        ),
    ]
    rule: Annotated[str | None, Meta(description="The rule that would judge it.")] = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """A number for each bucket of the step ledger, null where it is not known."""

    compute: Number | None = None
    comm_transfer: Number | None = None
    comm_wait: Number | None = None
    comm_unmatched: Number | None = None
    memory: Number | None = None
    idle_input: Number | None = None
    idle_sync: Number | None = None
    idle_host: Number | None = None
    idle_dependency: Number | None = None
    idle_unknown: Number | None = 0.0  # older reports count it as idle_dependency
    idle_gap: Number | None = None

    def of(self, bucket: str) -> float | None:
        """The number of one of `ledger.BUCKETS`."""
        value: float | None = getattr(self, bucket)
        return value


class BubbleTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the stages of pipelines wait for each other, ms per step: of comm_wait, and the parts that it is made of.
    Each is the median over all ranks, as the ledger's buckets."""

    bubble: NotNegative
    fill: NotNegative
    drain: NotNegative
    imbalance: NotNegative
    late: NotNegative


class WorstRank(msgspec.Struct, frozen=True):
    """The rank that spends most on a bucket, and how much, ms per step."""

    rank: int
    ms: float


class StepKindsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of two kinds, as a WGAN has: no step is a whole round of the training."""

    ends: Annotated[tuple[str, ...], Meta(description="What ended the steps, such as Adam.step.")]
    another: Annotated[str, Meta(description="What is within some of them only, perhaps of the same name.")]
    count: Annotated[int, Meta(gt=0, description="How many of the run's steps have it.")]
    steps: Annotated[int, Meta(gt=0, description="Of how many.")]
    round_ms: Annotated[
        NotNegative | None,
        Meta(description="A round by the mean step of the whole run, ms. Null where that was not timed."),
    ] = None


class UndisturbedRankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's undisturbed step, ms; the parts add up to it, unless the device is busy for longer."""

    rank: Whole
    light_ms: Annotated[NotNegative, Meta(description="Its step in the light windows.")]
    compute_ms: NotNegative
    comm_transfer_ms: Annotated[NotNegative, Meta(description="Exposed communication, less waiting.")]
    comm_wait_ms: Annotated[NotNegative, Meta(description="Exposed, until a collective's last member came.")]
    comm_unmatched_ms: Annotated[NotNegative, Meta(description="Exposed, of which waiting cannot be told.")]
    memory_ms: NotNegative
    idle_ms: Annotated[NotNegative, Meta(description="Nothing ran on the device.")]
    unseen_ms: Annotated[
        NotNegative, Meta(description="Of a light window whose own steps are shorter: what of the step is not known.")
    ] = 0.0


class LightWindowRankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in one light window, ms per step, as recorded there."""

    rank: Whole
    comm_wait_ms: NotNegative
    idle_ms: NotNegative


class LightWindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """One of the light windows that the undisturbed step is the mean of."""

    first: Annotated[Whole, Meta(description="Its first measured step.")]
    last: Whole
    ranks: tuple[LightWindowRankRow, ...]


class StepsBeforeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps before the recorded ones, which no profiler has touched yet."""

    count: Count
    least_ms: NotNegative
    most_ms: NotNegative


class CuptiStayedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks in which torch's profiler stayed behind the windows for one reason."""

    ranks: tuple[Whole, ...]
    why_not: Annotated[str | None, Meta(description="Why it was not ended; null where nobody asked for it.")]


class UndisturbedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step goes that is not recorded (docs/observe.md)."""

    source: Annotated[str, Meta(description="cupti, or torch: its profiler recording the device alone.")]
    step_ms: Annotated[NotNegative, Meta(description="Without recording.")]
    light_ms: Annotated[NotNegative, Meta(description="In the light windows, the median over ranks.")]
    recorded_ms: Annotated[NotNegative, Meta(description="In the full window: the typical step.")]
    light_steps: Annotated[Count, Meta(description="Typical steps of the light windows.")]
    ranks: tuple[UndisturbedRankRow, ...]
    behind_ms: Annotated[
        NotNegative | None, Meta(description="A step behind the windows, where it is longer than before them.")
    ] = None
    before: Annotated[
        StepsBeforeRow | None,
        Meta(description="The steps that step_ms is the mean of. Null: all of the run's without the profiler."),
    ] = None

    stayed: Annotated[
        tuple[CuptiStayedRow, ...],
        Meta(description="Where behind_ms is told: ranks whose profiler was not ended, by the reason."),
    ] = ()
    windows: Annotated[
        tuple[LightWindowRow, ...],
        Meta(description="The light windows, in order; of hosts alike another one may be late in each."),
    ] = ()

    @property
    def scaled(self) -> bool:
        """Whether idle time and waiting are an estimate, scaled down from a light window that cost much itself."""
        return self.light_ms >= SLOWED * self.step_ms


class OccasionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps unlike the others, for one reason (TO-W001's causes; unknown where nothing shows one)."""

    cause: str
    where: Annotated[str | None, Meta(description="Function and line of the program.")] = None
    times: Annotated[Count, Meta(description="How often such steps came; neighbours are one time.")]
    more_ms: Annotated[NotNegative, Meta(description="Beyond the typical step, each time.")]
    share_pct: Annotated[NotNegative, Meta(description="Of the whole run, from its second step on.")]
    ranks: tuple[Whole, ...] = ()
    steps: Annotated[tuple[Whole, ...], Meta(description="The first 256 of them.")] = ()


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the program's own in which a rank's host was seen outside of recorded steps."""

    rank: Whole
    function: str
    file: str
    line: Annotated[Count, Meta(description="On which most of that time goes.")]
    text: str | None = None
    ms: Annotated[NotNegative, Meta(description="A typical step, with the libraries that it calls.")]
    looks: Count
    waits: Annotated[bool, Meta(description="For other ranks or the device.")] = False


class StepsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a rank, one or, in long runs, neighbours together."""

    rank: Whole
    first: Whole
    last: Whole
    median_ms: NotNegative
    most_ms: NotNegative
    recorded: Annotated[bool, Meta(description="The profiler was at one of them.")] = False
    mean_ms: Annotated[
        NotNegative | msgspec.UnsetType, Meta(description="Of neighbours, where input comes late in every few steps.")
    ] = msgspec.UNSET


class OwnProfilerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A profiler of the script's own, at work while ours was not."""

    first: Annotated[Whole, Meta(description="The first step of these.")]
    last: Whole
    steps: Count
    step_ms: Annotated[NotNegative | None, Meta(description="The median of these steps.")] = None
    where: Annotated[str | None, Meta(description="File and line of who began it.")] = None


class MachineRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine did for a rank; null where it does not tell."""

    rank: Whole
    host: str
    cpu_pct: Annotated[Number | None, Meta(description="Of one core.")] = None
    waited_pct: Annotated[
        Number | None, Meta(description="Of the time, in which its main thread wanted a core and had none.")
    ] = None
    faults: Annotated[Number | None, Meta(description="Major page faults.")] = None
    mhz: Annotated[Number | None, Meta(description="Of its GPU while busy, in the median.")] = None
    most_mhz: Number | None = None
    power_w: Number | None = None
    limit_w: Number | None = None
    celsius: Number | None = None
    lower_clock_pct: Annotated[
        dict[str, Number] | None, Meta(description="Of the looks, by the driver's reason for a lower clock.")
    ] = None
    gpu_busy_pct: Annotated[Number | None, Meta(description="Of its GPU's time, on average.")] = None
    host_cores: Annotated[Number | None, Meta(description="Cores in which the whole host wanted to compute.")] = None
    received_mbs: Annotated[Number | None, Meta(description="By all network devices of the host, MB a second.")] = None
    sent_mbs: Number | None = None
    read_mbs: Annotated[Number | None, Meta(description="By the rank and its loaders' workers, MB a second.")] = None
    from_storage_mbs: Annotated[Number | None, Meta(description="What of that no cache had.")] = None
    storage: Annotated[str | None, Meta(description="Mount and file system of the largest open file.")] = None
    others_on_gpu: Annotated[tuple[Count, ...], Meta(description="Processes that are not of the run.")] = ()


class EarlyWindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a step took just before the recorded ones, and takes behind them, where that is far from it."""

    before_ms: NotNegative
    later_ms: NotNegative
    settled: Annotated[Whole, Meta(description="The first step that is like the later ones.")]
    rank: Annotated[
        Whole | None, Meta(description="Whose host spends most of what those before take longer in one function.")
    ] = None
    where: Annotated[str | None, Meta(description="That function, with its line.")] = None
    where_ms: Annotated[NotNegative | None, Meta(description="A step, beyond later ones.")] = None

    @property
    def note(self) -> str:
        """What it means for the reader, and what records later steps."""
        return first_phrase(
            "views", "report", "unlike_later", before=self.before_ms, later=self.later_ms, settled=self.settled,
            rank=self.rank, more=self.where_ms, bucket=self.where,
        )  # fmt: skip


class EndedRow(msgspec.Struct, frozen=True, kw_only=True):
    """That ranks made different numbers of steps, as with uneven inputs."""

    least: Count
    most: Count
    first: Annotated[tuple[Count, ...], Meta(description="The ranks with the fewest, the first 64 of them.")]


class PhaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of the training's loop."""

    where: Annotated[str, Meta(description="Function and line of the program.")]
    ms: Annotated[NotNegative, Meta(description="A round.")]
    pct: Annotated[NotNegative, Meta(description="Of the round, by the time of the host.")]
    trains: Annotated[bool, Meta(description="Backward or the optimizer runs in it.")]


class RoundsRow(msgspec.Struct, frozen=True, kw_only=True):
    """A round of the training's loop: its steps repeat with a period."""

    steps: Annotated[Count, Meta(description="Steps of the optimizer in a round; 1 where all are alike.")]
    ms: NotNegative
    count: Annotated[Count, Meta(description="Rounds that were timed.")]
    phases: tuple[PhaseRow, ...] = ()


class WholeRunRows(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run, as far as it was observed (docs/observe.md)."""

    steps: Annotated[Count, Meta(description="Timed without the profiler, from the second on.")]
    typical_steps: Count
    typical_ms: NotNegative
    before_ms: Annotated[
        NotNegative | None, Meta(description="Before the recorded steps, where those behind take longer.")
    ] = None
    behind_ms: Annotated[NotNegative | None, Meta(description="Behind them, there.")] = None
    recorded_steps: Count = 0
    start_steps: Annotated[Count, Meta(description="At the beginning, longer than the typical one.")] = 0
    skipped_steps: Annotated[Count, Meta(description="Whose optimizer a gradient scaler left out.")] = 0
    ended_after: Annotated[
        EndedRow | None, Meta(description="Null where all ranks that finished made as many steps, or nobody knows.")
    ] = None
    clock: Annotated[str, Meta(description="device: the GPU's own timeline; host.")] = "host"
    early_window: Annotated[
        EarlyWindowRow | None, Meta(description="Null where the recorded steps are like later ones.")
    ] = None
    looks: Annotated[Count, Meta(description="At the hosts, of all ranks.")] = 0
    input_by_turns: Annotated[
        bool, Meta(description="Input comes late in every few steps: typical_ms is the mean of these and the others.")
    ] = False
    own_profiler: Annotated[OwnProfilerRow | None, Meta(description="Null where no script profiled itself.")] = None
    rounds: Annotated[RoundsRow | None, Meta(description="Null where all steps are alike and one phase.")] = None
    occasions: tuple[OccasionRow, ...] = ()
    hosts: tuple[HostRow, ...] = ()
    machine: tuple[MachineRow, ...] = ()
    timeline: Annotated[
        tuple[StepsRow, ...], Meta(description="All steps of up to 64 ranks, in at most 1000 pieces each.")
    ] = ()
