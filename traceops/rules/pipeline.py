"""TO-B001 to TO-B003: stages of a pipeline that wait for each other, and for which reason."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.across.pipelines import Bubble, StageTimes
from traceops.across.replay.what_if import INTERLEAVED, STAGE_PACE, STAGES_EVEN, TWICE_THE_MICRO_BATCHES, rank_change
from traceops.across.run_use import CoreWaits, core_waits
from traceops.across.send_receive import NO_END
from traceops.across.undisturbed import Undisturbed
from traceops.core.claims import Claim, reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, severity_of
from traceops.core.rule import Bounds, Rule, Verdict, described
from traceops.core.units import stored
from traceops.core.words import SCHEDULES, WINDOW, StepWords
from traceops.rules.inputs import Inputs, why_incomplete
from traceops.rules.shared import room_ms

UNEVEN_STAGES = described("pipeline", "TO-B001")
LARGE_BUBBLE = described("pipeline", "TO-B002")
LATE_SENDS = described("pipeline", "TO-B003")
RULES = (UNEVEN_STAGES, LARGE_BUBBLE, LATE_SENDS)


class PipelineBounds(Bounds, frozen=True):
    """Percent of the step, and times as long."""

    words = "pipeline"

    even_pct: tuple[float, float, float] = (5.0, 10.0, 20.0)
    fill_pct: tuple[float, float, float] = (10.0, 15.0, 30.0)
    late_pct: tuple[float, float] = (10.0, 20.0)
    slower: float = 1.1


BOUNDS = PipelineBounds()
_WORTH = 0.1  # of the time to fill and drain: what another schedule must save to be named
_MOST = 0.5  # of what the slowest stage takes more: the part that slower kernels have to be for them to be the cause


class PipelineClaim(Claim, frozen=True):
    family = "pipeline"


class UnevenStage(PipelineClaim, frozen=True, kw_only=True):
    """The slowest stage of a pipeline and `count` others; ms of one step. way: how `then` is reached; most: saved where
    that is not known. slower: times as long as the others for the same kernels. moved: percent, to `faster` ranks."""

    stage: int
    rank: int
    work: float
    count: int
    usual: float
    waiting: float
    way: str | None = None
    step: float | None = None
    then: float | None = None
    pct: float | None = None
    most: float | None = None
    slower: float | None = None
    moved: float | None = None
    faster: tuple[int, ...] = ()


class SlowStageRank(PipelineClaim, frozen=True, kw_only=True):
    """A rank that takes longer than the `twins`, which hold the same stage in other pipelines; ms of one step."""

    rank: int
    work: float
    stage: int
    twins: tuple[int, ...]
    usual: float
    step: float
    then: float
    pct: float


class LargeBubble(PipelineClaim, frozen=True, kw_only=True):
    """A pipeline that fills and drains; ms of one step. ideal: percent, by its schedule alone. doubled, interleaved:
    what twice the micro-batches, or two stages per rank would save at most."""

    kind = "bubble"
    ranks: tuple[int, ...]
    waiting: float
    step: float
    pct: float
    schedule: str
    micro: int | None = None
    count: int
    chunks: int | None = None
    ideal: float
    doubled: float | None = None
    interleaved: float | None = None


class LateSend(PipelineClaim, frozen=True, kw_only=True):
    """Stages that wait for late sends; ms of one step. plain: a step without the profiler, which limits it. recorded:
    what the traces show, of `recorded_step`. most: of the rank that waits most."""

    kind = "late_sends"
    waiting: float
    pct: float
    rank: int | None = None
    most: float | None = None
    plain: float | None = None
    recorded: float | None = None
    recorded_step: float | None = None
    unknown_cores: bool = False


def judge(inputs: Inputs) -> list[Verdict]:
    """What stages of a pipeline wait for each other."""
    run = inputs.run
    if why := why_incomplete(run.ranks):
        return [rule.not_evaluated(why) for rule in RULES]
    if not run.bubbles:
        return [_no_pipeline(run, rule) for rule in RULES]
    late = judge_late(run, core_waits(inputs.observed), inputs.unprofiled_ms, inputs.undisturbed)
    return [judge_uneven(run), judge_bubble(run), late]


def judge_uneven(run: CrossRank) -> Verdict:
    """TO-B001."""
    if run.replay is None or not run.replay.what_if.holds:
        return without_replay(UNEVEN_STAGES, run, BOUNDS.even_pct[2])
    step = run.replay.what_if.mean_ns(run.replay.what_if.replayed_ns)
    slow = [bubble for bubble in run.bubbles if bubble.is_slow_rank]
    if slow and step and (verdict := _judge_slow_rank(run, max(slow, key=_beyond_mean), step)).findings:
        return verdict
    if (saved := run.replay.what_if.saved_ns(STAGES_EVEN)) is None or not step:
        return UNEVEN_STAGES.not_evaluated(reason("pipeline", "no_replay_of_even_stages"))
    worst = max(run.bubbles, key=_beyond_mean)
    slower = _slower_kernels(worst)
    alike = slower is not None and worst.slower_alike is not None
    at_pace = run.replay.what_if.saved_ns(STAGE_PACE) if alike else None
    saved = saved if at_pace is None else at_pace
    severity, words = severity_of(100 * saved / step, *BOUNDS.even_pct), run.step_words
    if severity is None:
        return UNEVEN_STAGES.clear(_little("even_stages", words, 100 * saved / step, BOUNDS.even_pct))
    moved = 100 * (1 - worst.mean_work / worst.slowest.work)
    way, kept = ("shared", Fact.SAVED_BY_EVEN_STAGES) if at_pace is None else ("pace", Fact.SAVED_AT_THE_OTHERS_PACE)
    then, pct = (step - saved) / 1e6, 100 * saved / step
    claim = replace(_uneven(worst, words), way=way, step=step / 1e6, then=then, pct=pct, slower=slower)
    if slower is None:  # blocks would move to the two ranks with the least work
        below = sorted((stage for stage in worst.stages if stage.work < worst.mean_work), key=lambda one: one.work)
        faster = tuple(one.rank for one in sorted(below[:2], key=lambda one: one.stage))
        claim = replace(claim, moved=moved, faster=faster)
    rank = worst.slowest.rank
    evidence = [
        *_saved_and_work(kept, worst, saved, step, words),
        *_waiting(worst, words),
        Evidence(Fact.OF_ITS_BLOCKS_TO_MOVE, round(moved, 1), "%", rank=rank),
    ]
    cause = None if slower is None else "gpu_compute"
    found = UNEVEN_STAGES.finding(severity, "high", claim, evidence, ranks=[rank], impact_ms=_ms(saved), cause=cause)
    return UNEVEN_STAGES.verdict(found)


def _beyond_mean(bubble: Bubble) -> float:
    return bubble.slowest.work - bubble.mean_work


def _others(bubble: Bubble) -> list[StageTimes]:
    return [stage for stage in bubble.stages if stage is not bubble.slowest]


def _slower_kernels(worst: Bubble) -> float | None:
    """How many times as long the same kernels take on the slowest stage, where that is most of what it takes longer."""
    others = _others(worst)
    usual = max(sum(stage.work for stage in others) / len(others), 1.0)
    least = max(BOUNDS.slower, 1 + _MOST * (worst.slowest.work / usual - 1))
    return worst.slower if worst.slower is not None and worst.slower >= least else None


def _uneven(worst: Bubble, words: StepWords) -> UnevenStage:
    others = _others(worst)
    return UnevenStage(
        window=words is WINDOW,
        stage=worst.slowest.stage,
        rank=worst.slowest.rank,
        work=worst.slowest.work / 1e6,
        count=len(others),
        usual=sum(stage.work for stage in others) / len(others) / 1e6,
        waiting=sum(stage.imbalance for stage in others) / len(others) / 1e6,
    )


def _waiting(worst: Bubble, words: StepWords) -> list[Evidence]:
    return [
        Evidence(Fact.WAITS_FOR_A_SLOWER_STAGE, _ms(s.imbalance), words.unit("ms"), rank=s.rank) for s in _others(worst)
    ]


def _little(key: str, words: StepWords, pct: float, bounds: Sequence[float], **facts: int) -> str:
    """Why a rule is clear: so little of the step is less than its bound."""
    return reason("pipeline", key, share=f"{pct:.1f}", bound=bounds[0], window=words is WINDOW, **facts)


def without_replay(rule: Rule, run: CrossRank, least_pct: float) -> Verdict:
    """Stages so uneven that the others are seen to wait for the slowest, where nothing tells what a cure would save.
    least_pct: of the step, mean over the other stages."""
    worst = max(run.bubbles, key=_for_the_slowest)
    words, rank = run.step_words, worst.slowest.rank
    if 100 * _for_the_slowest(worst) < least_pct or worst.is_slow_rank:
        return rule.not_evaluated(reason("pipeline", "no_replay"))
    claim = _uneven(worst, words)
    claim = replace(claim, most=stored(min(claim.waiting, _beyond_mean(worst) / 1e6)))  # the others get its work
    evidence = [*_waiting(worst, words), *_work(worst, words)]
    return rule.verdict(rule.finding("warning", "medium", claim, evidence, ranks=[rank], impact_ms=claim.most))


def _for_the_slowest(bubble: Bubble) -> float:
    """What the other stages wait for the slowest, part of the step, mean over them."""
    others = _others(bubble)
    return sum(stage.imbalance / stage.step for stage in others if stage.step) / max(len(others), 1)


def without_loading(run: CrossRank, bubble: Bubble) -> Bubble:
    """A pipeline whose stages' waits for late sends leave out what one of them waits for its input meanwhile."""
    loading = {times.summary.rank: 1e6 * times.mean_ms("idle_input") for times in run.ranks}
    rank = max(bubble.pipeline.ranks, key=lambda one: loading.get(one, 0.0))
    stages = tuple(
        stage if stage.rank == rank else replace(stage, late=max(stage.late - loading.get(rank, 0.0), 0.0))
        for stage in bubble.stages
    )
    return replace(bubble, stages=stages)


def without_recording(
    run: CrossRank, bubble: Bubble, plain_ms: float | None, undisturbed: Undisturbed | None
) -> Bubble:
    """A pipeline whose stages wait for late sends no longer than a step without the profiler has room for. Beside the
    device's work and what the schedule and uneven stages account for. Where there is a light window, the device is in
    no more communication than that shows. As recorded where no such step is known to be shorter."""
    own = {times.summary.rank: times for times in run.ranks}
    stages = []
    for stage in bubble.stages:
        times = own[stage.rank]
        if not plain_ms or not times.summary.on_gpu or 1e6 * plain_ms >= stage.step:
            return bubble
        light = None if undisturbed is None else undisturbed.of(stage.rank)
        room = room_ms(times, plain_ms)
        if light is not None:
            communicates = light.wait_ms + light.unmatched_ms + light.transfer_ms
            room = min(room, communicates - times.mean_ms("comm_transfer"))
        most = max(1e6 * room - stage.imbalance - stage.fill_drain, 0.0)
        stages.append(replace(stage, step=1e6 * plain_ms, late=min(stage.late, most)))
    return replace(bubble, stages=tuple(stages))


def _judge_slow_rank(run: CrossRank, worst: Bubble, step: float) -> Verdict:
    """A stage that takes longer on this rank than on those that hold it in other pipelines: not for its blocks."""
    assert run.replay is not None
    rank, words = worst.slowest.rank, run.step_words
    if (saved := run.replay.what_if.saved_ns(rank_change([rank]), [rank])) is None:
        return UNEVEN_STAGES.not_evaluated(reason("pipeline", "no_replay_of_rank", rank=rank))
    if (severity := severity_of(100 * saved / step, *BOUNDS.even_pct)) is None:
        return UNEVEN_STAGES.clear(_little("rank_at_pace", words, 100 * saved / step, BOUNDS.even_pct, rank=rank))
    claim = SlowStageRank(
        window=words is WINDOW,
        rank=rank,
        work=worst.slowest.work / 1e6,
        stage=worst.slowest.stage,
        twins=tuple(stage.rank for stage in worst.twins),
        usual=sorted(stage.work for stage in worst.twins)[len(worst.twins) // 2] / 1e6,
        step=step / 1e6,
        then=(step - saved) / 1e6,
        pct=100 * saved / step,
    )
    evidence = [
        *_saved_and_work(Fact.SAVED_AT_PEERS_PACE, worst, saved, step, words),
        *(Evidence(Fact.WORK_OF_THE_SAME_STAGE, _ms(s.work), words.unit("ms"), rank=s.rank) for s in worst.twins),
    ]
    cause = "gpu_compute" if any(times.summary.on_gpu for times in run.ranks) else "host"
    found = UNEVEN_STAGES.finding(severity, "high", claim, evidence, ranks=[rank], impact_ms=_ms(saved), cause=cause)
    return UNEVEN_STAGES.verdict(found)


def _saved_and_work(fact: Fact, worst: Bubble, saved: float, step: float, words: StepWords) -> list[Evidence]:
    """What the cure of the slowest stage saves of a step, in ns and in percent, and the work of each stage."""
    bound, rank = BOUNDS.even_pct[0], worst.slowest.rank
    return [
        Evidence(fact, _ms(saved), words.unit("ms"), _ms(bound / 100 * step), rank),
        Evidence(Fact.OF_STEP, round(100 * saved / step, 1), "%", bound, rank, subject=words.the),
        *_work(worst, words),
    ]


def _work(worst: Bubble, words: StepWords) -> list[Evidence]:
    return [Evidence(Fact.WORK_OF_A_STAGE, _ms(s.work), words.unit("ms"), rank=s.rank) for s in worst.stages]


def judge_bubble(run: CrossRank) -> Verdict:
    """TO-B002."""
    if not (known := [bubble for bubble in run.bubbles if bubble.ideal_share is not None]):
        return LARGE_BUBBLE.not_evaluated(reason("pipeline", "unknown_schedule"))
    worst = max(known, key=lambda bubble: _share(bubble, "fill_drain"))
    share, words = 100 * _share(worst, "fill_drain"), run.step_words
    if (severity := severity_of(share, *BOUNDS.fill_pct)) is None:
        return LARGE_BUBBLE.clear(_little("fills_and_drains", words, share, BOUNDS.fill_pct))
    waiting, step = _mean(worst, "fill_drain"), _mean(worst, "step")
    pipeline, assumed = worst.pipeline, 100 * (worst.ideal_share or 0.0)
    saved, other = (
        None if run.replay is None else run.replay.what_if.saved_ns(change)
        for change in (TWICE_THE_MICRO_BATCHES, INTERLEAVED)
    )
    claim = LargeBubble(
        window=words is WINDOW,
        ranks=tuple(pipeline.ranks),
        waiting=waiting / 1e6,
        step=step / 1e6,
        pct=share,
        schedule=SCHEDULES[pipeline.schedule],
        micro=pipeline.micro_batches,
        count=len(pipeline.ranks),
        chunks=pipeline.chunks if (pipeline.chunks or 1) > 1 else None,
        ideal=assumed,
        doubled=None if saved is None else saved / 1e6,
        interleaved=None if other is None or other < _WORTH * waiting else other / 1e6,
    )
    evidence = [
        Evidence(Fact.FILLS_AND_DRAINS, _ms(waiting), words.unit("ms"), _ms(BOUNDS.fill_pct[0] / 100 * step)),
        Evidence(Fact.OF_STEP, round(share, 1), "%", BOUNDS.fill_pct[0], subject=words.the),
        Evidence(Fact.BY_THE_SCHEDULE_ALONE, round(assumed, 1), "%"),
        Evidence(Fact.MICRO_BATCHES, pipeline.micro_batches),
    ]
    impact = _ms(waiting if saved is None else saved)
    found = LARGE_BUBBLE.finding(severity, "high", claim, evidence, ranks=pipeline.ranks, impact_ms=impact)
    return LARGE_BUBBLE.verdict(found)


def judge_late(
    run: CrossRank,
    waits: CoreWaits | None = None,
    plain_ms: float | None = None,
    undisturbed: Undisturbed | None = None,
) -> Verdict:
    """TO-B003. waits: for cores, by rank; None: not looked at. plain_ms: a step without the profiler."""
    recorded = [without_loading(run, bubble) for bubble in run.bubbles if bubble.ideal_share is not None]
    if not (known := [without_recording(run, bubble, plain_ms, undisturbed) for bubble in recorded]):
        return LATE_SENDS.not_evaluated(reason("pipeline", "unknown_schedule"))
    worst = max(known, key=lambda bubble: _share(bubble, "late"))
    share, words = 100 * _share(worst, "late"), run.step_words
    if (severity := severity_of(share, *BOUNDS.late_pct)) is None:
        return LATE_SENDS.clear(_little("late_sends", words, share, BOUNDS.late_pct))
    starved = waits is not None and any(
        not times.summary.on_gpu and times.summary.rank not in waits.of_rank for times in run.ranks
    )
    waiting, shown = _mean(worst, "late"), recorded[known.index(worst)]
    claim = LateSend(window=words is WINDOW, waiting=waiting / 1e6, pct=share, unknown_cores=starved)
    if worst is shown:
        most = max(worst.stages, key=lambda stage: stage.late)
        claim = replace(claim, rank=most.rank, most=most.late / 1e6)
    else:  # how much of its room each rank's waiting takes is not known
        plain, recorded_ms = worst.stages[0].step / 1e6, _mean(shown, "late") / 1e6
        claim = replace(claim, plain=plain, recorded=recorded_ms, recorded_step=run.step_ms)
    evidence = [
        Evidence(Fact.WAITS_FOR_LATE_SENDS, _ms(stage.late), words.unit("ms"), rank=stage.rank)
        for stage in worst.stages
    ]
    severity, ranks = "info" if starved else severity, worst.pipeline.ranks
    found = LATE_SENDS.finding(severity, "medium", claim, evidence, ranks=ranks, impact_ms=_ms(waiting))
    return LATE_SENDS.verdict(found)


def _no_pipeline(run: CrossRank, rule: Rule) -> Verdict:
    if len(run.ranks) < 2:
        return rule.not_evaluated(reason("pipeline", "one_rank"))
    if NO_END in run.matching.unmatched:
        return rule.not_evaluated(reason("pipeline", "ends_unknown"))
    if any(own.summary.through_host and not len(own.summary.comm.start) for own in run.ranks):
        return rule.not_evaluated(reason("pipeline", "through_host"))
    return rule.clear(reason("pipeline", "no_pipeline"))


def _mean(bubble: Bubble, what: str) -> float:
    return float(sum(getattr(stage, what) for stage in bubble.stages)) / len(bubble.stages)


def _share(bubble: Bubble, what: str) -> float:
    shares = (float(getattr(stage, what)) / stage.step for stage in bubble.stages if stage.step)
    return sum(shares) / len(bubble.stages)


def _ms(ns: float) -> float:
    return stored(ns / 1e6)
