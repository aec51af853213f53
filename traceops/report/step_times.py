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
    typical: Number | None = None
    unlike: tuple[Whole, ...] = ()
    unshared: tuple[Whole, ...] = ()

    @property
    def left_out(self) -> frozenset[int]:
        """Numbers of the recorded steps that no mean counts."""
        return frozenset((*self.unlike, *self.unshared))


class UnjudgedTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a step that no rule could judge, on the rank that has most of such time."""

    bucket: str
    rank: Whole
    pct: Number
    why: Literal["unmatched", "no_launch", "not_recorded", "no_device", "unrated", "not_evaluated", "no_rule"]
    rule: str | None = None


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

    ends: tuple[str, ...]
    another: str
    count: Annotated[int, Meta(gt=0)]
    steps: Annotated[int, Meta(gt=0)]
    round_ms: NotNegative | None = None


class UndisturbedRankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's undisturbed step, ms; the parts add up to it, unless the device is busy for longer."""

    rank: Whole
    light_ms: NotNegative
    compute_ms: NotNegative
    comm_transfer_ms: NotNegative
    comm_wait_ms: NotNegative
    comm_unmatched_ms: NotNegative
    memory_ms: NotNegative
    idle_ms: NotNegative
    unseen_ms: NotNegative = 0.0


class LightWindowRankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in one light window, ms per step, as recorded there."""

    rank: Whole
    comm_wait_ms: NotNegative
    idle_ms: NotNegative


class LightWindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """One of the light windows that the undisturbed step is the mean of."""

    first: Whole
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
    why_not: str | None


class UndisturbedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Where a step goes that is not recorded (docs/observe.md)."""

    source: str
    step_ms: NotNegative
    light_ms: NotNegative
    recorded_ms: NotNegative
    light_steps: Count
    ranks: tuple[UndisturbedRankRow, ...]
    behind_ms: NotNegative | None = None
    before: StepsBeforeRow | None = None
    stayed: tuple[CuptiStayedRow, ...] = ()
    windows: tuple[LightWindowRow, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether idle time and waiting are an estimate, scaled down from a light window that cost much itself."""
        return self.light_ms >= SLOWED * self.step_ms


class OccasionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps unlike the others, for one reason (TO-W001's causes; unknown where nothing shows one)."""

    cause: str
    where: str | None = None
    times: Count
    more_ms: NotNegative
    share_pct: NotNegative
    ranks: tuple[Whole, ...] = ()
    steps: tuple[Whole, ...] = ()


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the program's own in which a rank's host was seen outside of recorded steps."""

    rank: Whole
    function: str
    file: str
    line: Count
    text: str | None = None
    ms: NotNegative
    looks: Count
    waits: bool = False


class StepsRow(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a rank, one or, in long runs, neighbours together."""

    rank: Whole
    first: Whole
    last: Whole
    median_ms: NotNegative
    most_ms: NotNegative
    recorded: bool = False
    mean_ms: NotNegative | msgspec.UnsetType = msgspec.UNSET


class OwnProfilerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A profiler of the script's own, at work while ours was not."""

    first: Whole
    last: Whole
    steps: Count
    step_ms: NotNegative | None = None
    where: str | None = None


class MachineRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine did for a rank; null where it does not tell."""

    rank: Whole
    host: str
    cpu_pct: Number | None = None
    waited_pct: Number | None = None
    faults: Number | None = None
    mhz: Number | None = None
    most_mhz: Number | None = None
    power_w: Number | None = None
    limit_w: Number | None = None
    celsius: Number | None = None
    lower_clock_pct: dict[str, Number] | None = None
    gpu_busy_pct: Number | None = None
    host_cores: Number | None = None
    received_mbs: Number | None = None
    sent_mbs: Number | None = None
    read_mbs: Number | None = None
    from_storage_mbs: Number | None = None
    storage: str | None = None
    others_on_gpu: tuple[Count, ...] = ()


class EarlyWindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a step took just before the recorded ones, and takes behind them, where that is far from it."""

    before_ms: NotNegative
    later_ms: NotNegative
    settled: Whole
    rank: Whole | None = None
    where: str | None = None
    where_ms: NotNegative | None = None

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
    first: tuple[Count, ...]


class PhaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of the training's loop."""

    where: str
    ms: NotNegative
    pct: NotNegative
    trains: bool


class RoundsRow(msgspec.Struct, frozen=True, kw_only=True):
    """A round of the training's loop: its steps repeat with a period."""

    steps: Count
    ms: NotNegative
    count: Count
    phases: tuple[PhaseRow, ...] = ()


class WholeRunRows(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run, as far as it was observed (docs/observe.md)."""

    steps: Count
    typical_steps: Count
    typical_ms: NotNegative
    before_ms: NotNegative | None = None
    behind_ms: NotNegative | None = None
    recorded_steps: Count = 0
    start_steps: Count = 0
    skipped_steps: Count = 0
    ended_after: EndedRow | None = None
    clock: str = "host"
    early_window: EarlyWindowRow | None = None
    looks: Count = 0
    input_by_turns: bool = False
    own_profiler: OwnProfilerRow | None = None
    rounds: RoundsRow | None = None
    occasions: tuple[OccasionRow, ...] = ()
    hosts: tuple[HostRow, ...] = ()
    machine: tuple[MachineRow, ...] = ()
    timeline: tuple[StepsRow, ...] = ()
