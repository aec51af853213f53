"""TO-I001 to TO-I003: why the device was idle, judged on the rank where it hurts most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.across.replay.what_if import HOST_IN_TIME, NO_LOADING
from traceops.core.findings import severity_of
from traceops.core.rule import Rule, Verdict
from traceops.rules.idle_anomaly import ANOMALY, ANOMALY_ADVICE, of_anomaly
from traceops.rules.idle_behind import BehindLate, behind_late, hidden_loading
from traceops.rules.idle_behind_copies import ADVICE as COPIES_ADVICE
from traceops.rules.idle_behind_copies import CAUSE as COPIES
from traceops.rules.idle_behind_copies import of_copies
from traceops.rules.idle_cores import loading_ranks, unsure_of_all, without_waiting
from traceops.rules.idle_findings import IdleJudgement, blocking_calls, finding_of, impact_ms, stretched
from traceops.rules.idle_held import CALLS, CALLS_ADVICE, UNSEEN, UNSEEN_ADVICE, of_held
from traceops.rules.idle_input import seen_waiting_ms, waits_for_input
from traceops.rules.idle_loading import loading_evidence
from traceops.rules.idle_optimizer import ADVICE as OPTIMIZER_ADVICE
from traceops.rules.idle_recording import certain_severity, may_be_recording, measured
from traceops.rules.idle_time import Idle, few_steps, host_share, idle_of, unknown_pct
from traceops.rules.incomplete import why_incomplete
from traceops.rules.inputs import Inputs
from traceops.rules.stragglers import PERSISTENTLY_LATE

HOST_BOUND = Rule(
    id="TO-I001",
    title="GPUs starve: kernels wait for the host to launch them",
    fires=(
        "Idle time that ends with a kernel launched after the idle time began, on the worst rank: info from 10 % "
        "of the step, warning from 20 %, error from 40 %. Where the profiler's cost was not measured: at most a "
        "warning, and by what is left when the most that recording may take of the host is taken off; not evaluated "
        "where that leaves under 10 %, or where it leaves a remark of what looks like a warning and may mostly be "
        "recording. Where steps were timed without the profiler, the rule claims at most the time that "
        "such a step leaves beside the device's work, or that the light window shows, and judges it against that step. "
        "Ranks with less than half of the worst rank's share are not named."
    ),
    advice=(
        "Give the GPU more work per launch: a larger batch, torch.compile or CUDA graphs, fused optimizers "
        "(fused=True); look for Python work in the step, and for too few CPU cores per rank."
    ),
    by_cause=(("optimizer", OPTIMIZER_ADVICE), (CALLS, CALLS_ADVICE), (UNSEEN, UNSEEN_ADVICE)),
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
        "with it cured is told from the same bounds, as a remark, or a warning where the late rank is an error. A rank "
        "whose loader's workers mostly have nothing to do, and that waits for a core as long, does not wait for its "
        "loader. Info where the workers were looked at too seldom to tell. Where input comes late in every few steps, "
        "a step with input in time takes as long as the others. What a rank without workers waits for a core in the "
        "recorded steps is taken off before the bounds."
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
        "Idle time that began while the launching thread waited in a device synchronisation (of 1 ms and more no "
        "longer than it had waited), on the worst rank: info from 1 % of the step, warning from 3 %, error from 15 %. "
        "Ranks with less than half of the worst one's share are not named. Info where nearly all of it lies in less "
        "than half of the recorded steps: how often that comes these do not tell."
    ),
    advice=(
        "Keep values on the device: no .item(), .cpu(), print or `if tensor` in the step; log every N steps; "
        "use non_blocking=True and torch.where."
    ),
    by_cause=((COPIES, COPIES_ADVICE), (ANOMALY, ANOMALY_ADVICE)),
    loses=("runs dry while the host blocks on the device for", "run dry while the host blocks on the device for up to"),
    cured="without these calls",
)
RULES = (HOST_BOUND, INPUT_BOUND, BLOCKED_ON_DEVICE)

CAPTURED = "a CUDA graph is captured here: what is launched into it does not run, so an idle device says nothing"
THROUGH_HOST = "the ranks exchange data through their hosts (gloo), and how long these wait for that is not told"
NO_DEVICE = "the traces hold no GPU activity"
_UNKNOWN_PCT = 10.0  # of the step: idle time of unknown cause beyond which no cause is ruled out


def judge(inputs: Inputs) -> list[Verdict]:
    """Why the device was idle: one verdict a rule."""
    behind = behind_late(inputs.run, inputs.found_before(PERSISTENTLY_LATE))
    return [_judge(kind, inputs, behind) for kind in _JUDGEMENTS]


def _judge(kind: IdleJudgement, inputs: Inputs, behind: BehindLate | None) -> Verdict:
    """behind: what ranks would wait for input if no rank were late."""
    run, manifest = inputs.run, inputs.manifest
    judged = [times for times in run.ranks if times.summary.on_gpu or not kind.gpu_only]
    if not judged:
        return kind.rule.not_evaluated(NO_DEVICE)
    whole = [times for times in judged if not (times.summary.incomplete and times.summary.on_gpu)]
    if not whole:
        return kind.rule.not_evaluated(why_incomplete(judged))
    judged = whole
    if any(times.summary.captures_graphs for times in judged):
        return kind.rule.not_evaluated(CAPTURED)
    if kind.rule is HOST_BOUND and not run.split and run.world > 1 and _through_host(judged, manifest):
        return kind.rule.not_evaluated(THROUGH_HOST)
    # What a damaged trace lost looks like idle time: it is judged only where there is no whole one.
    judged = [times for times in judged if not times.summary.damage] or judged
    share = host_share(judged)
    idle = [
        idle_of(
            times, kind.bucket, inputs.unprofiled_ms, inputs.undisturbed, share, seen_waiting_ms(times, inputs.whole)
        )
        for times in judged
        if times.step_ms > 0
    ]
    if not idle:
        return kind.rule.not_evaluated("the traces hold no complete step")
    saved, spared = _saved_ms(run, kind), ""
    if kind.rule is INPUT_BOUND:
        idle = waits_for_input(idle, inputs.whole)
        idle, spared = loading_ranks(inputs, idle, kind.bounds[0])
        if not idle:
            return kind.rule.clear(spared)
    if behind is not None and kind.rule is INPUT_BOUND:
        late = behind.late_by_input
        beside = [one for one in idle if late and one.times.summary.rank not in late]
        if any(one.pct >= kind.bounds[0] for one in beside):
            idle, saved = beside, behind.waits_ms  # what one rank loads longer is TO-S001's
    worst = max(idle, key=lambda one: one.pct)
    severity = severity_of(_graded_pct(kind, inputs, idle, worst, saved), *kind.bounds)
    if severity is None and behind is not None and kind.rule is INPUT_BOUND:
        hidden = hidden_loading(kind.rule, kind.bounds, inputs, behind)
        if hidden is not None:
            return kind.rule.verdict(hidden)
    if severity is None and (unknown := unknown_pct(judged)) > _UNKNOWN_PCT:
        return kind.rule.not_evaluated(
            f"{unknown:.0f} % of {run.step_words.the} is idle time of unknown cause: the traces do not hold the "
            "calls that launched the kernels behind it"
        )
    if severity is None:
        return kind.rule.clear(
            f"at most {worst.pct:.1f} % of {run.step_words.the} on any rank (bound {kind.bounds[0]:g} "
            f"%){stretched(idle)}{'; ' * bool(spared)}{spared}"
        )
    if severity == "error" and kind.bucket == "idle_host" and inputs.slowdown is None:
        severity = "warning"  # the profiler stretches the host's work, and nothing says by how much
    if kind.bucket == "idle_host" and not measured(inputs):
        severity = certain_severity(worst, kind.bounds, severity)
        if severity is None:
            return kind.rule.not_evaluated(may_be_recording(run, worst))
    few = few_steps(worst.times, kind.bucket) if kind.rule is BLOCKED_ON_DEVICE else None
    if few is not None:
        severity = "info"
    if kind.rule is INPUT_BOUND and unsure_of_all(inputs, idle, kind.bounds[0]):
        severity = "info"
    damaged = bool(judged[0].summary.damage)
    found = finding_of(kind, severity, inputs, idle, saved, damaged=damaged)
    if kind.rule is HOST_BOUND:
        found = of_held(found, HOST_BOUND, inputs)
    if kind.rule is INPUT_BOUND:
        found = without_waiting(found, inputs, idle, worst, kind.bounds)
    if kind.rule is BLOCKED_ON_DEVICE:
        found = of_anomaly(of_copies(found, inputs), inputs)
        found = replace(found, message=found.message + _of_few(few, worst.times))
    return kind.rule.verdict(found)


def _graded_pct(kind: IdleJudgement, inputs: Inputs, idle: Sequence[Idle], worst: Idle, saved: float | None) -> float:
    """The worst rank's share. Where hosts are late by turns, no rank has all of it: what launches in time save."""
    undisturbed = inputs.undisturbed if kind.rule is HOST_BOUND and worst.light else None
    if undisturbed is None or undisturbed.turns(kind.bounds[0]) is None:
        return worst.pct
    return max(worst.pct, 100 * (impact_ms(kind, inputs, idle, worst, saved) or 0.0) / worst.step_ms)


def _of_few(few: int | None, times: RankTimes) -> str:
    if few is None:
        return ""
    steps = int(times.typical.sum())
    return f" Nearly all of it lies in {few} of {steps} recorded steps: how often that comes is not known."


def _through_host(ranks: Sequence[RankTimes], manifest: Mapping[str, Any]) -> bool:
    return manifest.get("backend") == "gloo" or any(times.summary.through_host for times in ranks)


def _saved_ms(run: CrossRank, kind: IdleJudgement) -> float | None:
    """What the replay says that a step gains without this idle time on any rank; None without a replay."""
    saved = run.what_if.saved_ns(kind.change) if run.what_if is not None else None
    return None if saved is None else max(saved, 0.0) / 1e6


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
        blocking_calls,
    ),
)
