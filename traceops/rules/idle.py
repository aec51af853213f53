"""TO-I001 to TO-I003: why the device was idle, judged on the rank where it hurts most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.across.replay.what_if import HOST_IN_TIME, NO_LOADING
from traceops.across.undisturbed import Undisturbed
from traceops.core.findings import Confidence, Evidence, severity_of
from traceops.core.rank_text import who
from traceops.core.rule import Rule, Verdict
from traceops.core.step_words import StepWords
from traceops.core.units import stored
from traceops.measure.ledger import IDLE_BUCKETS
from traceops.rules.idle_behind import BehindLate, behind_late, hidden_loading
from traceops.rules.idle_loading import loading_evidence, workers_needed
from traceops.rules.idle_optimizer import ADVICE as OPTIMIZER_ADVICE
from traceops.rules.idle_optimizer import optimizer_time
from traceops.rules.inputs import Inputs
from traceops.rules.stragglers import PERSISTENTLY_LATE

HOST_BOUND = Rule(
    id="TO-I001",
    title="GPUs starve: kernels wait for the host to launch them",
    fires=(
        "Idle time that ends with a kernel launched after the idle time began, on the worst rank: info from 10 % "
        "of the step, warning from 20 %, error from 40 %. At most a warning where the profiler's cost is not "
        "known. Where steps were timed without the profiler, the rule claims at most the time that such a step "
        "leaves beside the device's work, or that the light window shows, and judges it against that step. Ranks "
        "with less than half of the worst rank's share are not named."
    ),
    advice=(
        "Give the GPU more work per launch: a larger batch, torch.compile or CUDA graphs, fused optimizers "
        "(fused=True); look for Python work in the step, and for too few CPU cores per rank."
    ),
    by_cause=(("optimizer", OPTIMIZER_ADVICE),),
    loses=("waits for its host to launch kernels for", "wait for their hosts to launch kernels for up to"),
    cured="with launches in time",
)

INPUT_BOUND = Rule(
    id="TO-I002",
    title="Waiting for input",
    fires=(
        "Idle time in which the launching thread was inside data loading, on the worst rank: info from 5 % of "
        "the step, warning from 10 %, error from 30 %. "
        "Ranks with less than half of the worst one's share are not named. Beside ranks that are late for their input "
        "(TO-S001) the others are judged by themselves. A late rank hides the others' loading: what ranks would wait "
        "with it cured is told from the same bounds, as a remark, or a warning where the late rank is an error."
    ),
    advice=(
        "Load ahead of need: more DataLoader workers (num_workers), prefetch_factor, pin_memory with "
        "non_blocking copies, cheaper transforms, data nearer to the node."
    ),
    loses=("waits for input for", "wait for input for up to"),
    cured="with input in time",
)

BLOCKED_ON_DEVICE = Rule(
    id="TO-I003",
    title="The host blocks on the device inside the step",
    fires=(
        "Idle time that began while the launching thread waited in a device synchronisation, on the worst "
        "rank: info from 1 % of the step, warning from 3 %, error from 15 %. "
        "Ranks with less than half of the worst one's share are not named."
    ),
    advice=(
        "Keep values on the device: no .item(), .cpu(), print or `if tensor` in the step; log every N steps; "
        "use non_blocking=True and torch.where."
    ),
    loses=(
        "runs dry while the host blocks on the device for",
        "run dry while the host blocks on the device for up to",
    ),
    cured="without these calls",
)
RULES = (HOST_BOUND, INPUT_BOUND, BLOCKED_ON_DEVICE)

CAPTURED = (
    "a CUDA graph is captured here: what is launched into it does not run, so an idle device says nothing"
)
_DEVICE_WORK = ("compute", "comm_transfer", "comm_unmatched", "memory")
_UNKNOWN_PCT = 10.0  # of the step: idle time of unknown cause beyond which no cause is ruled out
_ALSO = 0.5  # of the worst rank's share: from there on a rank is named beside it
_SLOWED = 1.2  # profiled ÷ unprofiled step from which host times are mostly the profiler's


@dataclass(frozen=True)
class IdleJudgement:
    """Which bucket a rule judges, and from which percent of the step it is how severe."""

    rule: Rule
    bucket: str
    bounds: tuple[float, float, float]  # info, warning, error
    cause: str
    gpu_only: bool
    change: str  # of traceops.across.replay.what_if
    message: str  # {where}, {ms}, {pct}, {words}: StepWords
    whole_change: bool = (
        True  # whether `change` takes away this bucket only, so that its saving is the rule's
    )
    detail: Callable[[RankTimes, StepWords], tuple[Evidence, ...]] = lambda times, words: ()


THROUGH_HOST = (
    "the ranks exchange data through their hosts (gloo), and how long these wait for that is not told"
)


@dataclass(frozen=True)
class _Idle:
    """Idle time of one rank in one bucket, ms a step; `step_ms` is the step that it is a part of.

    `recorded_ms` is what the trace shows, `ms` what of it a step without the profiler has room for.
    """

    times: RankTimes
    ms: float
    step_ms: float
    recorded_ms: float
    light: bool = False  # whether the light window tells how long the device is idle

    @property
    def pct(self) -> float:
        return 100.0 * self.ms / self.step_ms

    @property
    def bounded(self) -> bool:
        """Whether it is not what the trace shows: the step without the profiler has no room for all of it."""
        return self.light or self.ms < self.recorded_ms


def judge(inputs: Inputs) -> list[Verdict]:
    """Why the device was idle."""
    behind = behind_late(inputs.run, inputs.found_before(PERSISTENTLY_LATE))
    return judge_idle(
        inputs.run, inputs.slowdown, inputs.unprofiled_ms, inputs.manifest, inputs.undisturbed, behind
    )


def judge_idle(
    run: CrossRank,
    profiler_slowdown: float | None,
    unprofiled_ms: float | None = None,
    manifest: Mapping[str, Any] | None = None,
    undisturbed: Undisturbed | None = None,
    behind: BehindLate | None = None,
) -> list[Verdict]:
    """One verdict a rule. `profiler_slowdown` (profiled ÷ unprofiled step) lowers confidence in host causes.

    `unprofiled_ms` is the median step without the profiler, None where none was timed. `manifest`: run.json.
    `undisturbed`: the step where a light window tells of it; no more idle time is claimed than it has. behind: what
    ranks would wait for input if no rank were late.
    """
    return [
        _judge(kind, run, profiler_slowdown, unprofiled_ms, manifest or {}, undisturbed, behind)
        for kind in _JUDGEMENTS
    ]


def _judge(
    kind: IdleJudgement,
    run: CrossRank,
    profiler_slowdown: float | None,
    unprofiled_ms: float | None,
    manifest: Mapping[str, Any],
    undisturbed: Undisturbed | None,
    behind: BehindLate | None,
) -> Verdict:
    judged = [times for times in run.ranks if times.summary.on_gpu or not kind.gpu_only]
    if not judged:
        return kind.rule.not_evaluated("the traces hold no GPU activity")
    if any(times.summary.captures_graphs for times in judged):
        return kind.rule.not_evaluated(CAPTURED)
    if kind.rule is HOST_BOUND and not run.split and run.world > 1 and _through_host(judged, manifest):
        return kind.rule.not_evaluated(THROUGH_HOST)
    # What a damaged trace lost looks like idle time: it is judged only where there is no whole one.
    judged = [times for times in judged if not times.summary.damage] or judged
    damaged = bool(judged[0].summary.damage)
    share = _host_share(judged)
    idle = [
        _idle(times, kind.bucket, unprofiled_ms, undisturbed, share) for times in judged if times.step_ms > 0
    ]
    if not idle:
        return kind.rule.not_evaluated("the traces hold no complete step")
    late = behind.late_by_input if behind is not None and kind.rule is INPUT_BOUND else ()
    beside = [one for one in idle if late and one.times.summary.rank not in late]
    if any(one.pct >= kind.bounds[0] for one in beside):
        idle = beside  # what one rank loads longer is TO-S001's
    worst = max(idle, key=lambda one: one.pct)
    hit = [one for one in idle if one.pct >= max(kind.bounds[0], _ALSO * worst.pct)]
    severity = severity_of(worst.pct, *kind.bounds)
    if severity is None and behind is not None and kind.rule is INPUT_BOUND:
        hidden = hidden_loading(kind.rule, kind.bounds, run, behind, manifest)
        if hidden is not None:
            return kind.rule.verdict(hidden)
    if severity is None and (unknown := _unknown_pct(judged)) > _UNKNOWN_PCT:
        return kind.rule.not_evaluated(
            f"{unknown:.0f} % of {run.step_words.the} is idle time of unknown cause: the traces do not hold the "
            "calls that launched the kernels behind it",
        )
    if severity is None:
        return kind.rule.clear(
            f"at most {worst.pct:.1f} % of {run.step_words.the} on any rank (bound {kind.bounds[0]:g} "
            f"%){_stretched(idle)}",
        )
    words, untold = run.step_words, kind.bucket == "idle_host" and profiler_slowdown is None
    if untold and severity == "error":
        severity = "warning"  # the profiler stretches the host's work, and nothing says by how much
    saved = _saved_ms(run, kind)
    if idle is beside and behind is not None:
        saved = behind.waits_ms
    ranks, rank = [one.times.summary.rank for one in hit], worst.times.summary.rank
    shares = [one.pct for one in idle]
    evidence = (
        Evidence(kind.bucket, stored(worst.ms), words.unit("ms"), rank=rank),
        Evidence(f"{kind.bucket}_pct", round(worst.pct, 1), "%", kind.bounds[0], rank=rank),
        Evidence(
            f"{kind.bucket}_pct (least, median, most over ranks)",
            f"{min(shares):.1f} / {np.median(shares):.1f} / {worst.pct:.1f}",
            "%",
        ),
        Evidence("step", stored(worst.step_ms if worst.bounded else run.step_ms), "ms"),
        *(() if saved is None else (Evidence("saved without it", stored(saved), words.unit("ms")),)),
        *_recorded(worst, words),
        *kind.detail(worst.times, words),
    )
    at_most = "" if len(ranks) == 1 else "up to "
    message = kind.message.format(
        where=_where(ranks, len(run.ranks)), ms=f"{at_most}{worst.ms:.2f}", pct=worst.pct, words=words
    )
    if worst.light and kind.bucket != "idle_host" and worst.ms >= worst.recorded_ms:
        message += f" The share is of a step without the profiler, which takes {worst.step_ms:.2f} ms."
    elif worst.light:
        shown = max(idle, key=lambda one: one.recorded_ms)
        message += (
            " That is of a step without the profiler, by the light window; the traces show up to "
            f"{shown.recorded_ms:.2f} of {shown.times.step_ms:.2f} ms."
        )
    elif worst.bounded:
        message += (
            f" The trace shows {worst.recorded_ms:.2f} of {worst.times.step_ms:.2f} ms, but a step without the "
            f"profiler takes {worst.step_ms:.2f} ms and has no room for more."
        )
    elif kind.bucket == "idle_host" and profiler_slowdown is not None and profiler_slowdown > _SLOWED:
        message += f" The profiler made the step {profiler_slowdown:.2f} times as long, most of it host time."
    elif untold:
        message += " These traces do not tell how much of it is the profiler's own cost."
    optimizer = optimizer_time(worst.times, worst.recorded_ms) if kind.rule is HOST_BOUND else None
    if optimizer is not None:
        name, took = optimizer
        when, of = (" In the recorded steps, on", "") if worst.light else (" On", f" of {words.each}")
        message += f"{when} rank {rank} the optimizer alone ({name}) keeps the host for {took:.1f} ms{of}."
        evidence += (Evidence("the optimizer's step", stored(took), words.unit("ms"), rank=rank),)
    if kind.rule is INPUT_BOUND and not worst.bounded:
        said, told = workers_needed(worst.times, saved, manifest, words)
        message, evidence = message + said, evidence + told
    found = kind.rule.finding(
        severity,
        "low" if damaged else _confidence(kind, profiler_slowdown, worst.light),
        message,
        evidence,
        ranks=ranks,
        impact_ms=stored(_impact_ms(kind, worst, saved)),
        cause=kind.cause,
    )
    return kind.rule.verdict(
        found if optimizer is None else replace(found, advice=kind.rule.advice_for("optimizer"))
    )


def _through_host(ranks: Sequence[RankTimes], manifest: Mapping[str, Any]) -> bool:
    return manifest.get("backend") == "gloo" or any(times.summary.through_host for times in ranks)


def _host_share(ranks: Sequence[RankTimes]) -> float:
    """What part of all idle time is the host's, as recorded; all of it where nothing is idle."""
    idle = sum(times.mean_ms(bucket) for times in ranks for bucket in IDLE_BUCKETS)
    return sum(times.mean_ms("idle_host") for times in ranks) / idle if idle > 0 else 1.0


def _unknown_pct(ranks: Sequence[RankTimes]) -> float:
    """The most that any of these ranks is idle for an unknown cause, percent of its step."""
    return max((times.share_pct("idle_unknown") or 0.0 for times in ranks), default=0.0)


def _impact_ms(kind: IdleJudgement, worst: _Idle, saved: float | None) -> float:
    """How much shorter a step would be, ms: as the replay has it, within what is this bucket's."""
    if saved is None:
        return worst.ms
    return saved if kind.whole_change and not worst.bounded else min(worst.ms, saved)


def _idle(
    times: RankTimes,
    bucket: str,
    unprofiled_ms: float | None,
    undisturbed: Undisturbed | None,
    host_share: float,
) -> _Idle:
    """A rank's idle time in a bucket, as far as a step without the profiler leaves room for it.

    The device's own work takes as long without the profiler; the host's does not. Where there is a light window, it
    shows how long the device is idle: no cause of that can take longer. host_share: of idle time, as recorded.
    """
    recorded, step = times.mean_ms(bucket), times.step_ms
    own = None if undisturbed is None or not times.summary.on_gpu else undisturbed.of(times.summary.rank)
    if undisturbed is not None and own is not None:
        # The host's part of it: a rank that waited in the recorded steps may starve in others, and the other way round.
        most = own.idle_ms * host_share if bucket == "idle_host" else min(recorded, own.idle_ms)
        return _Idle(times, most, undisturbed.step_ms, recorded, light=True)
    if unprofiled_ms is None or not times.summary.on_gpu or unprofiled_ms >= step:
        return _Idle(times, recorded, step, recorded)
    busy = sum(times.mean_ms(own) for own in _DEVICE_WORK)
    return _Idle(times, min(recorded, max(unprofiled_ms - busy, 0.0)), unprofiled_ms, recorded)


def _recorded(worst: _Idle, words: StepWords) -> tuple[Evidence, ...]:
    if not worst.bounded:
        return ()
    rank = worst.times.summary.rank
    return (Evidence("recorded with the profiler", stored(worst.recorded_ms), words.unit("ms"), rank=rank),)


def _stretched(idle: Sequence[_Idle]) -> str:
    """What to add where only the profiler makes it look worse."""
    worst = max(idle, key=lambda one: one.recorded_ms)
    if worst.ms >= worst.recorded_ms:
        return ""
    if worst.light:
        return (
            f"; the trace shows up to {worst.recorded_ms:.1f} ms, but by the light window it is {worst.ms:.1f} of "
            f"{worst.step_ms:.1f} ms at most"
        )
    return (
        f"; the trace shows up to {worst.recorded_ms:.1f} ms, but a step without the profiler takes "
        f"{worst.step_ms:.1f} ms and has no room for it"
    )


def _saved_ms(run: CrossRank, kind: IdleJudgement) -> float | None:
    """What the replay says that a step gains without this idle time on any rank; None without a replay."""
    saved = run.what_if.saved_ns(kind.change) if run.what_if is not None else None
    return None if saved is None else max(saved, 0.0) / 1e6


def _confidence(kind: IdleJudgement, profiler_slowdown: float | None, light: bool) -> Confidence:
    """The profiler costs host time, so a claim about the host is as good as what is known of that cost."""
    if kind.bucket != "idle_host":
        return "high"
    if light and profiler_slowdown is not None and profiler_slowdown > _SLOWED:
        return "medium"  # the device is idle for so long; that the host is the cause is the trace's word
    if profiler_slowdown is None:
        return "medium"
    return "low" if profiler_slowdown > _SLOWED else "high"


def _where(ranks: list[int], count: int) -> str:
    if len(ranks) == count:
        return "all ranks" if count > 1 else f"rank {ranks[0]}"
    return who(ranks)


def _blocking(times: RankTimes, words: StepWords) -> tuple[Evidence, ...]:
    steps = max(len(times.duration), 1)
    counted: Counter[str] = Counter()
    for call in times.summary.host.blocking:
        counted[f"{call.call} in {call.operator}" if call.operator else call.call] += call.count
    return tuple(
        Evidence(what, round(count / steps, 1), words.unit("calls"), rank=times.summary.rank)
        for what, count in counted.most_common(3)
    )


_JUDGEMENTS: tuple[IdleJudgement, ...] = (
    IdleJudgement(
        HOST_BOUND,
        "idle_host",
        (10.0, 20.0, 40.0),
        "host",
        True,
        HOST_IN_TIME,
        "On {where} the GPU has nothing to run because the host has not launched it yet: {ms} ms of "
        "{words.each} ({pct:.0f} %).",
    ),
    IdleJudgement(
        INPUT_BOUND,
        "idle_input",
        (5.0, 10.0, 30.0),
        "input",
        False,
        NO_LOADING,
        "On {where} nothing runs while the next batch is loaded: {ms} ms of {words.each} ({pct:.0f} %).",
        True,
        loading_evidence,
    ),
    IdleJudgement(
        BLOCKED_ON_DEVICE,
        "idle_sync",
        (1.0, 3.0, 15.0),
        "host",
        True,
        HOST_IN_TIME,
        "On {where} the host waits for the device inside {words.the}, and the device then runs dry: {ms} ms "
        "of {words.each} ({pct:.1f} %).",
        False,
        _blocking,
    ),
)
