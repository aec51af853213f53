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

    per_step: Annotated[
        NotNegative | None,
        Meta(description="Of all ranks, without what backward computes again (activation checkpointing)."),
    ] = None
    recomputed_per_step: Annotated[
        NotNegative | None, Meta(description="What backward computes again, on top, at most. Null if not counted.")
    ] = None
    counted_from: Annotated[
        Literal["shapes", "training"] | None,
        Meta(description="shapes: of the operators that were recorded. training: what the training says."),
    ] = None
    why: Annotated[
        Literal["no_products", "no_shapes", "unknown_shape", "uncounted"] | None,
        Meta(
            description="Why they are not known. no_products: no operator that multiplies was recorded. no_shapes: "
            "shapes were not recorded. unknown_shape: of some operators the shapes do not tell the work. uncounted: "
            "kernels multiply that no such operator launched."
        ),
    ] = None
    tflops_per_s: Annotated[NotNegative | None, Meta(description="Of the average device, 1e12 a second.")] = None
    precision: Annotated[
        Literal["fp8", "bf16", "fp16", "tf32", "fp32", "fp64"] | None,
        Meta(description="Of the products, by the kernels' names; null where these tell of several."),
    ] = None
    device: str | None = None
    peak_tflops: Annotated[
        NotNegative | None, Meta(description="What the device can do at most in that precision, dense.")
    ] = None
    peak_source: str | None = None
    mfu_pct: Annotated[NotNegative | None, Meta(description="tflops_per_s in percent of that.")] = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The run in short: medians over ranks of means over typical steps, unless said otherwise."""

    step_time_ms: StepTime = StepTime()
    steps_found_by: Annotated[
        StepsBy | None,
        Meta(
            description="What said where steps begin: the profiler's marks, other marks, the backward passes, or "
            "kernels that repeat. window: nothing did, and numbers are of the whole window. cut_off: a capture of "
            "traceops recorded no step whole. Null in reports of earlier versions."
        ),
    ] = None
    step_mark: Annotated[str | None, Meta(description="The name of that mark.")] = None
    ledger_ms: Annotated[
        Ledger, Meta(description="Per bucket the median over ranks of the mean over typical steps.")
    ] = Ledger()
    ledger_pct: Annotated[Ledger, Meta(description="The same in percent of the step.")] = Ledger()
    ledger_worst_rank: dict[str, WorstRank] = {}
    bubble_ms: Annotated[
        BubbleTimes | None, Meta(description="Of comm_wait, the bubble of pipelines. Null where there are none.")
    ] = None
    overlap_pct: Annotated[
        float | None, Meta(description="Communication time with computation beside it, over all communication time.")
    ] = None
    exposed_comm_ms: Annotated[
        float | None, Meta(description="Communication with no computation beside it, waiting included.")
    ] = None
    idle_pct: float | None = None
    compute_pct: float | None = None
    non_compute_pct: float | None = None
    unprofiled_step_time_ms: Annotated[
        float | None,
        Meta(description="The median of the steps that profiler_slowdown holds the recorded ones against."),
    ] = None
    step_without_profiler_ms: Annotated[
        NotNegative | None,
        Meta(
            description="What a step takes without the profiler: the typical step of the whole run; of the steps "
            "before the first window where the profiler slowed those behind it; of those right before a window that "
            "was asked for later. Where the run was not observed, unprofiled_step_time_ms. Null without such steps, "
            "and in reports of earlier versions."
        ),
    ] = None
    first_steps: Annotated[
        bool,
        Meta(
            description="The recorded steps are the first whole ones of a program that did not reach its schedule's "
            "window. Such steps often take longer than later ones, so profiler_slowdown is null."
        ),
    ] = False
    step_kinds: Annotated[StepKindsRow | None, Meta(description="Null where all steps are alike, as far as known.")] = (
        None
    )
    samples_per_s: Annotated[
        NotNegative | None,
        Meta(
            description="Of all ranks together, by the steps without the profiler where such were timed, else by the "
            "typical recorded one. Null where the run does not say how many samples a step has."
        ),
    ] = None
    tokens_per_s: Annotated[NotNegative | None, Meta(description="Likewise.")] = None
    flops: Annotated[
        Flops | None, Meta(description="Null in reports of earlier versions, and where no step was found.")
    ] = None
    profiler_slowdown: float | None = None
    recording_ms: Annotated[
        NotNegative | None,
        Meta(
            description="About how much of `idle_host` may be the profiler's own cost, on the rank where it is most: a "
            "bound, by how close the host's recorded events lie. Null where steps were timed without the profiler."
        ),
    ] = None
    uncharged_wait_pct: Annotated[
        Number | None,
        Meta(
            description="Of the exposed waiting, what is charged to no rank. Where it is more than 5 %, and more than "
            "2 % of the steps, stragglers are not evaluated, and no rank has a `late_share`."
        ),
    ] = None
    unjudged: Annotated[
        tuple[UnjudgedTime, ...],
        Meta(description="What no rule could judge, most first, on the rank where it is most of the step."),
    ] = ()
    matching: Matching | None = None
    clocks: Clocks | None = None
    replay: Replay | None = None
    no_replay: Annotated[
        NoReplay | None,
        Meta(
            description="Why steps were not replayed, so that nothing says what a change would save. one_rank: the run "
            "has one. other_ranks_missing: it has more, and one has a trace. no_collectives: the traces show none. "
            "nothing_matched: none was found on all its ranks. no_common_step: ranks share no step with most of its "
            "collectives matched. Null where they were, and in reports of earlier versions."
        ),
    ] = None
    hta_failed: Annotated[
        dict[str, str], Meta(description="HTA's analyses that failed: the error, and on which ranks.")
    ] = {}
    hta_agreement: Annotated[
        HtaAgreement | msgspec.UnsetType, Meta(description="Where HTA's own code was asked for the same tables.")
    ] = msgspec.UNSET
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
