"""The run's numbers in short, and what they rest on."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.core.words import STEP, WINDOW, NoReplay, StepsBy, StepWords
from traceops.measure.hta_tables import HtaAgreement
from traceops.measure.recording import SLOWED
from traceops.report.rows import NotNegative, Number
from traceops.report.step_times import BubbleTimes, Ledger, StepKindsRow, StepTime, UnjudgedTime, WorstRank


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """How many communication events of the ranks belong together; reasons for the others with their counts."""

    events: int
    matched_pct: float | None
    unmatched: dict[str, int]


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks' clocks were brought together; offset and drift by rank."""

    anchors: int
    residual_p50_us: float | None
    residual_p95_us: float | None
    offset_us: dict[str, float | None] = {}
    drift_ppm: dict[str, float | None] = {}
    unaligned: tuple[int, ...] = ()


LoadersUnknown = Annotated[
    tuple[int, ...],
    Meta(
        description="Ranks whose data loader has workers of which nobody knows how fast they are: predicted "
        "steps are the least."
    ),
]
HostsUnknown = Annotated[
    tuple[int, ...],
    Meta(
        description="Ranks whose host takes longer than the recorded steps and uses up what it was ahead, or of "
        "which no launch in the first step tells how far ahead it was: nobody knows how fast it is without the "
        "profiler, and predicted steps are the least."
    ),
]


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """How good the replay is, and the whole job's slowdown by its stragglers."""

    error_pct: float | None
    straggler_slowdown: float | None
    steps: tuple[int, ...] = ()
    loaders_unknown: LoadersUnknown = ()
    hosts_unknown: HostsUnknown = ()


class Flops(msgspec.Struct, frozen=True, kw_only=True):
    """Floating point operations of matrix products, attention and convolutions; null where not known."""

    per_step: NotNegative | None = None
    recomputed_per_step: NotNegative | None = None
    counted_from: Literal["shapes", "training"] | None = None
    why: Literal["no_products", "no_shapes", "unknown_shape", "uncounted"] | None = None
    tflops_per_s: NotNegative | None = None
    precision: Literal["fp8", "bf16", "fp16", "tf32", "fp32", "fp64"] | None = None
    device: str | None = None
    peak_tflops: NotNegative | None = None
    peak_source: str | None = None
    mfu_pct: NotNegative | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The run in short: medians over ranks of means over typical steps, unless said otherwise."""

    step_time_ms: StepTime = StepTime()
    steps_found_by: StepsBy | None = None
    step_mark: str | None = None
    ledger_ms: Ledger = Ledger()
    ledger_pct: Ledger = Ledger()
    ledger_worst_rank: dict[str, WorstRank] = {}
    bubble_ms: BubbleTimes | None = None
    overlap_pct: float | None = None
    exposed_comm_ms: float | None = None
    idle_pct: float | None = None
    compute_pct: float | None = None
    non_compute_pct: float | None = None
    unprofiled_step_time_ms: float | None = None
    step_without_profiler_ms: NotNegative | None = None
    first_steps: bool = False
    step_kinds: StepKindsRow | None = None
    samples_per_s: NotNegative | None = None
    tokens_per_s: NotNegative | None = None
    flops: Flops | None = None
    profiler_slowdown: float | None = None
    recording_ms: NotNegative | None = None
    uncharged_wait_pct: Number | None = None
    unjudged: tuple[UnjudgedTime, ...] = ()
    matching: Matching | None = None
    clocks: Clocks | None = None
    replay: Replay | None = None
    no_replay: NoReplay | None = None
    hta_failed: dict[str, str] = {}
    hta_agreement: HtaAgreement | msgspec.UnsetType = msgspec.UNSET
    notes: tuple[str, ...] = ()

    @property
    def step_words(self) -> StepWords:
        """What to call a step in a sentence about times."""
        return WINDOW if self.steps_found_by == "window" else STEP

    @property
    def plain_ms(self) -> float | None:
        """What a step takes without the profiler, ms; None where none was timed."""
        return self.unprofiled_step_time_ms if self.step_without_profiler_ms is None else self.step_without_profiler_ms

    @property
    def stretched_from_ms(self) -> float | None:
        """The same where the profiler makes the recorded steps much longer than that."""
        plain, slowdown, recorded = self.plain_ms, self.profiler_slowdown, self.step_time_ms.typical
        if plain is None or slowdown is None or slowdown < SLOWED:
            return None
        return plain if recorded is None or recorded >= SLOWED * plain else None

    @property
    def own_step_ms(self) -> float | None:
        """What a step takes by itself, ms: without the profiler where such steps were timed, else as recorded."""
        if self.steps_found_by in ("window", "cut_off"):
            return None
        return self.plain_ms or self.step_time_ms.typical
