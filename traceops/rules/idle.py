"""TO-I001 to TO-I003: why the device was idle, judged on the rank where it hurts most."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.across.rank_times import RankTimes
from traceops.across.replay.what_if import HOST_IN_TIME, NO_LOADING
from traceops.core.arrays import mean_ms
from traceops.core.claims import reason, restated
from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Confidence, Evidence, Finding, Lacking, Severity, severity_of
from traceops.core.rule import Bounds, Rule, Verdict, described
from traceops.core.units import stored
from traceops.core.words import WINDOW
from traceops.rules.compute import of_launches
from traceops.rules.idle_findings import IdleJudgement, blocking_calls, finding_of, impact_ms, of_held, stretched
from traceops.rules.idle_time import (
    BlockedOnDevice,
    HiddenLoading,
    HostBound,
    Idle,
    InputBound,
    OutsideTorch,
    certain_severity,
    few_steps,
    host_share,
    idle_of,
    loading_evidence,
    loading_ranks,
    may_be_recording,
    measured,
    next_batch,
    seen_waiting_ms,
    unsure_of_all,
    waits_for_input,
    without_waiting,
)
from traceops.rules.inputs import Inputs, why_incomplete
from traceops.rules.shared import IMPACT_BOUNDS, on_cpu

# TO-I002 beside ranks that are late: loading that they hide, and loading of the ranks that are not.

_ALSO = 0.5  # of the rank that loads longest: from there on a rank is named beside it


class BehindLate(Struct, frozen=True):
    """A step with the late ranks cured, and what of it is waiting for input, ms. serious: whether one is an error."""

    late: tuple[int, ...]
    late_by_input: tuple[int, ...]
    step_ms: float
    waits_ms: float
    serious: bool


def behind_late(run: CrossRank, late: Sequence[Finding]) -> BehindLate | None:
    """late: what TO-S001 found. None where nothing is late, or the replay cured others than those."""
    serious = [found for found in late if found.severity != "info"]
    if run.replay is None or not run.replay.what_if.holds:
        return None
    known, what_if = run.replay.stragglers, run.replay.what_if
    whole = what_if.mean_ns(known.step_ns) / 1e6
    named = serious or [found for found in late if _as_slow_as_loaders(run, found, whole)]
    ranks = {rank for found in named for rank in found.ranks}
    if not named:
        return None
    if {straggler.rank for straggler in known.found} != ranks or known.joint_ns is None or known.fed_ns is None:
        return None
    step, fed = (what_if.mean_ns(steps) / 1e6 for steps in (known.joint_ns, known.fed_ns))
    return BehindLate(
        late=tuple(sorted(ranks)),
        late_by_input=tuple(sorted(r for f in serious if f.cause == "input" for r in f.ranks)),
        step_ms=step,
        waits_ms=max(step - fed, 0.0),
        serious=any(found.severity == "error" for found in serious),
    )


def _as_slow_as_loaders(run: CrossRank, found: Finding, step_ms: float) -> bool:
    """Whether a remark may be none but for the loaders: they would make the steps about as long."""
    small = found.impact_ms is not None and 100 * found.impact_ms < IMPACT_BOUNDS[0] * step_ms
    return bool(run.loading_ms) and small


def hidden_loading(
    rule: Rule, bounds: tuple[float, float, float], run: CrossRank, behind: BehindLate
) -> Finding | None:
    """Loading that costs nothing as long as a rank is late, and would bound the steps without it. It comes after the
    late rank: it is a remark, or a warning where that is an error."""
    by_workers = run.loading_ms
    reached = severity_of(100 * behind.waits_ms / behind.step_ms if behind.step_ms else 0.0, *bounds)
    if reached is None:
        return None
    severity: Severity = "warning" if behind.serious and reached != "info" else "info"
    loads = by_workers or {times.summary.rank: times.loading_ms for times in run.ranks}
    ranks = [rank for rank in loads if loads[rank] >= _ALSO * max(loads.values())]
    worst = max((t for t in run.ranks if t.summary.rank in loads), key=lambda t: loads[t.summary.rank])
    words = run.step_words
    rest_ms = behind.step_ms - behind.waits_ms
    if by_workers and loads[worst.summary.rank] < rest_ms:
        return None  # they have it ready by then: what is left is the price of taking a batch from them
    waits_ms, rank = stored(behind.waits_ms), worst.summary.rank
    claim = HiddenLoading(
        window=words is WINDOW,
        ranks=tuple(ranks),
        late=behind.late,
        ms=waits_ms,
        step=stored(behind.step_ms),
        pct=stored(100 * behind.waits_ms / behind.step_ms),
        rank=rank,
    )
    evidence = [
        Evidence(Fact.WAITS_FOR_INPUT_BEHIND_LATE_RANKS, waits_ms, words.unit("ms")),
        Evidence(Fact.STEP, stored(behind.step_ms), "ms", subject=words.noun),
        *loading_evidence(worst, words),
    ]
    if by_workers:
        loading = stored(loads[rank])
        claim = replace(claim, loading=loading, rest=stored(rest_ms))
        evidence.append(Evidence(Fact.LOADING_OF_A_BATCH_BY_THE_WORKERS, loading, words.unit("ms"), rank=rank))
    return rule.finding(severity, "medium", claim, evidence, ranks=ranks, impact_ms=waits_ms, cause="input")


# TO-I003 where the host waits for copies: the device is idle behind them, and their cure is another.

CAUSE = "copies"
_MOSTLY = 0.5  # of this idle time
_BESIDE = 0.1  # of the idle time before late launches
_COPIES = re.compile(r" in aten::(?:to|_to_copy|copy_)$")
_SYNCHRONIZES = re.compile(r"(?:Device|Stream|Event)Synchronize$|DeviceSynchronize( in Torch-Compiled)")


def of_copies(found: Finding, inputs: Inputs) -> Finding:
    """The finding with what of its idle time begins while the host waits for a copy, and the advice for most of it."""
    bucket = found.proof(Fact.BUCKET)
    times = None if bucket is None else inputs.run.times_of(bucket.rank)
    if bucket is None or times is None:
        return found
    idle, behind = float(bucket.value or 0.0), mean_ms(times.summary.copies.sync_ns[times.typical])
    if behind < _MOSTLY * idle or not behind:
        after = found.proof(Fact.IDLE_AFTER)  # the call that most idle time follows
        copies = after is not None and _COPIES.search(str(after.subject))
        return replace(found, advice=BLOCKED_ON_DEVICE.advice_for(CAUSE)) if copies else found
    found = restated(found, BlockedOnDevice, copies_pct=stored(min(100 * behind / idle, 100)))
    return replace(found, cause=CAUSE, advice=BLOCKED_ON_DEVICE.advice_for(CAUSE))


def of_synchronize(found: Finding, *, operators: bool = True) -> Finding:
    """The finding with the advice for a program that waits for the device by itself, where that costs most: in no
    operator, of a trace that has operators. Inside compiled code torch.compile does, as it records a graph."""
    after = found.proof(Fact.IDLE_AFTER)  # the call that most idle time follows
    own = _SYNCHRONIZES.search(str(after and after.subject))
    if own is None or not (operators or "Device" in own[0]):
        return found
    rule, key = (HOST_BOUND, "compiles") if own[1] else (BLOCKED_ON_DEVICE, "synchronize")
    return replace(found, advice=rule.advice_for(key))


# TO-I003 where autograd's anomaly detection is on: it makes the host wait behind each function of backward.

ANOMALY = "anomaly_detection"
_LEAST = 3.0  # reads a step: of fewer functions nobody's step is long

_LITTLE_MBS = 1.0


def of_storage(found: Finding, inputs: Inputs, worst: Idle) -> Finding:
    """What the rank that waits longest reads meanwhile, and where from, as far as the launcher saw that."""
    use = next((one for one in inputs.machine if one.rank == worst.times.summary.rank), None)
    if use is None or use.read is None or use.from_storage is None:
        return found
    mbs, place = use.read / 1e6, None if use.storage is None else "{} ({})".format(*use.storage)
    if mbs < _LITTLE_MBS:
        return restated(found, InputBound, little=stored(mbs))
    return restated(found, InputBound, read=stored(mbs), stored=stored(use.from_storage / 1e6), place=place)


def of_anomaly(found: Finding, inputs: Inputs) -> Finding:
    """The finding with how often autograd looks for NaN in a step, where it does."""
    bucket = found.proof(Fact.BUCKET)
    times = None if bucket is None else inputs.run.times_of(bucket.rank)
    checks = None if times is None else times.summary.anomaly
    if times is None or checks is None or not times.typical.any():
        return found
    count, ms = float(checks.count[times.typical].mean()), mean_ms(checks.host_ns[times.typical])
    if count < _LEAST:
        return found
    found = restated(found, BlockedOnDevice, reads=stored(count), reads_ms=stored(ms))
    return replace(found, cause=ANOMALY, advice=BLOCKED_ON_DEVICE.advice_for(ANOMALY))


HOST_BOUND = described("idle", "TO-I001")
INPUT_BOUND = described("idle", "TO-I002")
BLOCKED_ON_DEVICE = described("idle", "TO-I003")
OUTSIDE_TORCH = described("idle", "TO-I005")
RULES = (HOST_BOUND, INPUT_BOUND, BLOCKED_ON_DEVICE)


def judge(inputs: Inputs) -> list[Verdict]:
    """Why the device was idle: one verdict a rule."""
    behind = behind_late(inputs.run, inputs.found_before("TO-S001"))
    return [*(_judge(kind, inputs, behind) for kind in _JUDGEMENTS), judge_outside_torch(inputs)]


def _judge(kind: IdleJudgement, inputs: Inputs, behind: BehindLate | None) -> Verdict:
    """behind: what ranks would wait for input if no rank were late."""
    judged = _judgeable(kind, inputs)
    if isinstance(judged, Verdict):
        return judged
    share, plain_ms, light = host_share(judged), inputs.unprofiled_ms, inputs.undisturbed
    idle = [
        idle_of(times, kind.bucket, plain_ms, light, share, seen_waiting_ms(times, inputs.whole))
        for times in judged
        if times.step_ms > 0
    ]
    if not idle:
        return kind.rule.not_evaluated(reason("idle", "no_step"))
    saved, spared = _saved_ms(inputs.run, kind), ""
    if kind.rule is INPUT_BOUND:
        idle, saved, spared = _of_loading(kind, inputs, idle, saved, behind)
        if not idle:
            return kind.rule.clear(spared)
    worst = max(idle, key=lambda one: one.pct)
    if (severity := severity_of(_graded_pct(kind, inputs, idle, worst, saved), *kind.bounds)) is None:
        return _little(kind, inputs, judged, idle, behind, spared)
    late = worst.times.mean_ms("idle_host")
    if kind.rule is BLOCKED_ON_DEVICE and worst.recorded_ms < _BESIDE * late:
        window = inputs.run.unit == "window"
        return kind.rule.clear(reason("idle", "beside", ms=worst.recorded_ms, late=late, window=window))
    if kind.bucket == "idle_host" and (severity := _beyond_recording(kind, inputs, worst, severity)) is None:
        return kind.rule.not_evaluated(may_be_recording(inputs.run, worst), "may_be_recording")
    few = None if kind.rule is HOST_BOUND else few_steps(worst.times, kind.bucket)
    if (kind.rule is BLOCKED_ON_DEVICE and few is not None) or (
        kind.rule is INPUT_BOUND and unsure_of_all(inputs, idle, kind.bounds[0])
    ):
        severity = "info"
    found = finding_of(kind, severity, inputs, idle, saved, damaged=bool(judged[0].summary.damage))
    if few is not None:
        found = restated(found, kind.claim, few=few, of=int(worst.times.typical.sum()))
    return kind.rule.verdict(_with_causes(kind, found, inputs, idle, worst))


def _little(
    kind: IdleJudgement,
    inputs: Inputs,
    judged: Sequence[RankTimes],
    idle: Sequence[Idle],
    behind: BehindLate | None,
    spared: str,
) -> Verdict:
    """Of too little idle time: loading that a late rank hides, or why the rule is clear or was not evaluated."""
    window = inputs.run.unit == "window"
    if behind is not None and kind.rule is INPUT_BOUND:
        hidden = hidden_loading(kind.rule, kind.bounds, inputs.run, behind)
        if hidden is not None:
            return kind.rule.verdict(hidden)
    unknown = max((times.share_pct("idle_unknown") or 0.0 for times in judged), default=0.0)
    if unknown > BOUNDS.unknown_pct:
        return kind.rule.not_evaluated(reason("idle", "unknown_cause", pct=f"{unknown:.0f}", window=window))
    numbers = {"pct": f"{max(one.pct for one in idle):.1f}", "bound": kind.bounds[0], "window": window}
    return kind.rule.clear(reason("idle", "little", **numbers, spared=spared, **stretched(idle)))


def judge_outside_torch(inputs: Inputs) -> Verdict:
    """TO-I005: the main thread of a training on the CPU is outside torch's operators, and does not load or wait. What
    the profiler makes longer, and what the thread waits for a core, is no work of the program."""
    run, plain_ms = inputs.run, inputs.unprofiled_ms
    if (
        run.unit != "step"
        or not run.world == len(run.ranks) == 1
        or not on_cpu(run)
        or run.ranks[0].summary.kernels_lost
    ):
        return OUTSIDE_TORCH.not_evaluated(reason("idle", "not_alone"))
    (times,) = run.ranks
    step = times.step_ms if plain_ms is None else min(times.step_ms, plain_ms)
    if not step:
        return OUTSIDE_TORCH.not_evaluated(reason("idle", "no_step"))
    cost = times.recording_ms if plain_ms is None else times.step_ms - step
    spent = max(times.mean_ms("idle_host") - cost, 0.0)
    waited = [use.waited_pct for use in inputs.machine if use.waited_pct is not None]
    spent = max(spent - max(waited, default=0.0) / 100 * step, 0.0)
    pct, words = 100 * spent / step, inputs.run.step_words
    if (severity := severity_of(pct, *BOUNDS.outside_pct)) is None:
        numbers = {"pct": f"{pct:.1f}", "bound": BOUNDS.outside_pct[0], "window": words is WINDOW, "spared": ""}
        late = min(spent + cost, times.mean_ms("idle_host"))
        if plain_ms is not None or severity_of(100 * late / step, *BOUNDS.outside_pct) is None:
            return OUTSIDE_TORCH.clear(reason("idle", "little", **numbers))
        facts = {"late": late, "cost": cost if cost < late else None, "window": words is WINDOW, "all": cost >= late}
        return OUTSIDE_TORCH.not_evaluated(reason("idle", "outside_recording", **facts), "may_be_recording")
    rank, ms = times.summary.rank, stored(spent)
    graded: Severity = severity if plain_ms is not None else min(severity, "warning", key=SEVERITIES.index)
    confidence: Confidence = "high" if plain_ms is not None else "medium"
    claim = OutsideTorch(window=words is WINDOW, rank=rank, ms=ms, step=stored(step), pct=stored(pct))
    evidence = (
        Evidence(Fact.BUCKET, ms, words.unit("ms"), rank=rank, subject="idle_host"),
        Evidence(Fact.STEP, stored(step), "ms", subject=words.noun),
    )
    found = OUTSIDE_TORCH.finding(graded, confidence, claim, evidence, ranks=[rank], impact_ms=ms, cause="host")
    return OUTSIDE_TORCH.verdict(found)


def _judgeable(kind: IdleJudgement, inputs: Inputs) -> list[RankTimes] | Verdict:
    """The ranks that a rule can be judged on; where there are none, the verdict that says why."""
    run = inputs.run
    judged = [times for times in run.ranks if times.summary.on_gpu or kind.rule is INPUT_BOUND]
    if not judged:
        return _lacking(kind, "no_gpu_activity")
    whole = [times for times in judged if not (times.summary.incomplete and times.summary.on_gpu)]
    if not whole:
        return kind.rule.not_evaluated(why_incomplete(judged))
    if any(times.summary.captures_graphs for times in whole):
        return _lacking(kind, "captured")
    through_host = inputs.manifest.get("backend") == "gloo" or any(times.summary.through_host for times in whole)
    if kind.rule is HOST_BOUND and not run.split and run.world > 1 and through_host:
        return _lacking(kind, "through_host")
    # What a damaged trace lost looks like idle time: it is judged only where there is no whole one.
    return [times for times in whole if not times.summary.damage] or whole


def _lacking(kind: IdleJudgement, what: Lacking) -> Verdict:
    return kind.rule.not_evaluated(reason("idle", what), what)


def _of_loading(
    kind: IdleJudgement, inputs: Inputs, idle: Sequence[Idle], saved: float | None, behind: BehindLate | None
) -> tuple[list[Idle], float | None, str]:
    """Who waits for loading, what a step gains without that, ms, and why others are left out. What one rank loads
    longer is TO-S001's: next to it those are judged that are not late by their input."""
    loading, spared = loading_ranks(inputs, waits_for_input(idle, inputs.whole), kind.bounds[0])
    late = behind.late_by_input if behind is not None else ()
    others = [one for one in loading if late and one.times.summary.rank not in late]
    if behind is not None and any(one.pct >= kind.bounds[0] for one in others):
        return others, behind.waits_ms, spared
    return loading, saved, spared


def _with_causes(kind: IdleJudgement, found: Finding, inputs: Inputs, idle: Sequence[Idle], worst: Idle) -> Finding:
    """The finding with what is known of the cause."""
    if kind.rule is HOST_BOUND:
        return of_launches(of_held(found, HOST_BOUND, inputs), HOST_BOUND, worst.times.summary.compute)
    if kind.rule is INPUT_BOUND:
        batch = next_batch(inputs, worst)
        if batch is not None and batch.work is None:  # nothing tells if they are late, or handing over is slow
            found = replace(found, advice=INPUT_BOUND.advice_for("workers"))
        return without_waiting(of_storage(found, inputs, worst), inputs, idle, worst, kind.bounds)
    return of_anomaly(
        of_copies(of_synchronize(found, operators=bool(worst.times.summary.host.regions)), inputs), inputs
    )


def _graded_pct(kind: IdleJudgement, inputs: Inputs, idle: Sequence[Idle], worst: Idle, saved: float | None) -> float:
    """The worst rank's share. Where hosts are late by turns, no rank has all of it: what launches in time save."""
    undisturbed = inputs.undisturbed if kind.rule is HOST_BOUND and worst.light else None
    if undisturbed is None or undisturbed.turns(kind.bounds[0]) is None:
        return worst.pct
    return max(worst.pct, 100 * (impact_ms(kind, inputs, idle, worst, saved) or 0.0) / worst.step_ms)


def _beyond_recording(kind: IdleJudgement, inputs: Inputs, worst: Idle, severity: Severity) -> Severity | None:
    """What is left where the profiler stretches the host's work, and nothing shows by how much."""
    if severity == "error" and inputs.slowdown is None:
        severity = "warning"
    return severity if measured(inputs) else certain_severity(worst, kind.bounds, severity)


def _saved_ms(run: CrossRank, kind: IdleJudgement) -> float | None:
    """What the replay says that a step gains without this idle time on any rank; None without a replay."""
    saved = run.replay.what_if.saved_ns(kind.change) if run.replay is not None else None
    return None if saved is None else max(saved, 0.0) / 1e6


class IdleBounds(Bounds, frozen=True):
    """Percent of the step, as words/idle.ini says."""

    words = "idle"

    host_pct: tuple[float, float, float] = (10.0, 20.0, 40.0)
    outside_pct: tuple[float, float, float] = (30.0, 50.0, 70.0)
    input_pct: tuple[float, float, float] = (5.0, 10.0, 30.0)
    sync_pct: tuple[float, float, float] = (2.0, 3.0, 15.0)
    unknown_pct: float = 10.0


BOUNDS = IdleBounds()
_JUDGEMENTS: tuple[IdleJudgement, ...] = (
    IdleJudgement(HOST_BOUND, "idle_host", BOUNDS.host_pct, "host", HOST_IN_TIME, HostBound),
    IdleJudgement(INPUT_BOUND, "idle_input", BOUNDS.input_pct, "input", NO_LOADING, InputBound, True, loading_evidence),
    IdleJudgement(
        BLOCKED_ON_DEVICE, "idle_sync", BOUNDS.sync_pct, "host", HOST_IN_TIME, BlockedOnDevice, False, blocking_calls
    ),
)
