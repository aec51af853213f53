"""TO-B001 to TO-B003: stages of a pipeline that wait for each other, and for which reason."""

from __future__ import annotations

from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.across.pipelines import Bubble, StageTimes
from traceops.across.replay.what_if import INTERLEAVED, STAGE_PACE, STAGES_EVEN, TWICE_THE_MICRO_BATCHES, rank_change
from traceops.across.run_use import CoreWaits, core_waits
from traceops.across.send_receive import NO_END
from traceops.across.undisturbed import Undisturbed
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, severity_of
from traceops.core.rank_text import ranks_text, who
from traceops.core.rule import Rule, Verdict, described
from traceops.core.step_words import StepWords
from traceops.core.units import stored
from traceops.core.words import SCHEDULES
from traceops.rules.inputs import Inputs, why_incomplete
from traceops.rules.shared import room_ms

# What stages of a pipeline wait for: a slower stage, where no replay tells more, and not another's input.


def without_replay(rule: Rule, run: CrossRank, least_pct: float) -> Verdict:
    """Stages so uneven that the others are seen to wait for the slowest, where nothing tells what a cure would save.

    least_pct: of the step, mean over the other stages.
    """
    worst = max(run.bubbles, key=_for_the_slowest)
    slowest, words = worst.slowest, run.step_words
    others = [stage for stage in worst.stages if stage is not slowest]
    if 100 * _for_the_slowest(worst) < least_pct or worst.is_slow_rank:
        return rule.not_evaluated("the steps of the pipeline could not be replayed")
    usual = sum(stage.work for stage in others) / len(others)
    waiting = sum(stage.imbalance for stage in others) / len(others)
    one = len(others) == 1
    message = (
        f"Stage {slowest.stage} of the pipeline (rank {slowest.rank}) computes {slowest.work / 1e6:.2f} ms "
        f"{words.per}, {'the other stage' if one else 'the other stages'} {usual / 1e6:.2f} ms and "
        f"{'waits' if one else 'wait'} {waiting / 1e6:.2f} ms for it. What even stages would save is not known: the "
        "steps could not be replayed."
    )
    evidence = [
        *(
            Evidence(Fact.WAITS_FOR_A_SLOWER_STAGE, stored(s.imbalance / 1e6), words.unit("ms"), rank=s.rank)
            for s in others
        ),
        *(Evidence(Fact.WORK_OF_A_STAGE, stored(s.work / 1e6), words.unit("ms"), rank=s.rank) for s in worst.stages),
    ]
    found = rule.finding("warning", "medium", message, evidence, ranks=[slowest.rank], impact_ms=stored(waiting / 1e6))
    return rule.verdict(found)


def _for_the_slowest(bubble: Bubble) -> float:
    """What the other stages wait for the slowest, part of the step, mean over them."""
    others = [stage for stage in bubble.stages if stage is not bubble.slowest]
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
    """A pipeline whose stages wait for late sends no longer than a step without the profiler has room for.

    Beside the device's work and what the schedule and uneven stages account for. Where there is a light window, the
    device is in no more communication than that shows. As recorded where no such step is known to be shorter.
    """
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


_EVEN_PCT = (5.0, 10.0, 20.0)  # of the step, saved by even stages: info, warning, error
_FILL_PCT = (10.0, 15.0, 30.0)  # of the step, filling and draining: info, warning, error
_LATE_PCT = (10.0, 20.0)  # of the step, waiting for sends that come late: info, warning
_WORTH = 0.1  # of the time to fill and drain: what another schedule must save to be named
_MOST = 0.5  # of what the slowest stage takes more: the part that slower kernels have to be for them to be the cause
_SLOWER = 1.1  # times as long as on the other stages, from where kernels are called slower

UNEVEN_STAGES = described("pipeline", "TO-B001")
LARGE_BUBBLE = described("pipeline", "TO-B002")
LATE_SENDS = described("pipeline", "TO-B003")
_UNKNOWN_CORES = (
    " Without a GPU a sender that has no core sends late too, and nothing tells here how long ranks waited for one "
    "(traceops run does)."
)
RULES = (UNEVEN_STAGES, LARGE_BUBBLE, LATE_SENDS)


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
        return without_replay(UNEVEN_STAGES, run, _EVEN_PCT[2])
    saved = run.replay.what_if.saved_ns(STAGES_EVEN)
    step = run.replay.what_if.mean_ns(run.replay.what_if.replayed_ns)
    slow = [bubble for bubble in run.bubbles if bubble.is_slow_rank]
    if slow and step:
        worst = max(slow, key=lambda bubble: bubble.slowest.work - bubble.mean_work)
        if (told := _judge_slow_rank(run, worst, step)).findings:
            return told
    if saved is None or not step:
        return UNEVEN_STAGES.not_evaluated("the steps of the pipeline could not be replayed with even stages")
    worst = max(run.bubbles, key=lambda bubble: bubble.slowest.work - bubble.mean_work)
    slowest = worst.slowest
    others = [stage for stage in worst.stages if stage is not slowest]
    usual = max(sum(stage.work for stage in others) / len(others), 1.0)
    slower = worst.slower is not None and worst.slower >= max(_SLOWER, 1 + _MOST * (slowest.work / usual - 1))
    alike = slower and worst.slower_alike is not None
    at_pace = run.replay.what_if.saved_ns(STAGE_PACE) if alike else None
    saved = saved if at_pace is None else at_pace
    severity, words = severity_of(100 * saved / step, *_EVEN_PCT), run.step_words
    if severity is None:
        return UNEVEN_STAGES.clear(
            f"even stages would save {100 * saved / step:.1f} % of {words.the} (bound {_EVEN_PCT[0]:g} %)"
        )
    waiting = sum(stage.imbalance for stage in others) / len(others)
    cured = "With the same work shared evenly" if at_pace is None else "At their pace"
    they = "the other stage" if len(others) == 1 else "the other stages"
    message = (
        f"Stage {slowest.stage} of the pipeline (rank {slowest.rank}) computes {slowest.work / 1e6:.2f} ms "
        f"{words.per}, {they} {usual / 1e6:.2f} ms and {'waits' if len(others) == 1 else 'wait'} {waiting / 1e6:.2f} "
        f"ms for it. {cured} {words.the} would take "
        f"{(step - saved) / 1e6:.2f} instead of {step / 1e6:.2f} ms ({100 * saved / step:.0f} % less)"
    )
    moved = 100 * (1 - worst.mean_work / slowest.work)
    if slower:
        assert worst.slower is not None
        message += f". The same kernels take {worst.slower:.2f} times as long there as on the others."
    else:
        message += f": move about {moved:.0f} % of its blocks to {_faster(worst)}."
    kept = Fact.SAVED_BY_EVEN_STAGES if at_pace is None else Fact.SAVED_AT_THE_OTHERS_PACE
    evidence = [
        *_saved_and_work(kept, worst, saved, step, words),
        *(Evidence(Fact.WAITS_FOR_A_SLOWER_STAGE, _ms(s.imbalance), words.unit("ms"), rank=s.rank) for s in others),
        Evidence(Fact.OF_ITS_BLOCKS_TO_MOVE, round(moved, 1), "%", rank=slowest.rank),
    ]
    found = UNEVEN_STAGES.finding(
        severity,
        "high",
        message,
        evidence,
        ranks=[slowest.rank],
        impact_ms=_ms(saved),
        cause="gpu_compute" if slower else None,
    )
    return UNEVEN_STAGES.verdict(found)


def _judge_slow_rank(run: CrossRank, worst: Bubble, step: float) -> Verdict:
    """A stage that takes longer on this rank than on those that hold it in other pipelines: not for its blocks."""
    assert run.replay is not None
    slowest = worst.slowest
    saved = run.replay.what_if.saved_ns(rank_change([slowest.rank]), [slowest.rank])
    if saved is None:
        return UNEVEN_STAGES.not_evaluated(f"the steps could not be replayed with rank {slowest.rank} as its peers")
    severity, words = severity_of(100 * saved / step, *_EVEN_PCT), run.step_words
    if severity is None:
        return UNEVEN_STAGES.clear(
            f"rank {slowest.rank} at its peers' pace would save {100 * saved / step:.1f} % of {words.the} "
            f"(bound {_EVEN_PCT[0]:g} %)"
        )
    usual = sorted(stage.work for stage in worst.twins)[len(worst.twins) // 2]
    on_gpu = any(times.summary.on_gpu for times in run.ranks)
    message = (
        f"Rank {slowest.rank} computes {slowest.work / 1e6:.2f} ms {words.per}, the same stage {slowest.stage} of "
        f"{'the other pipeline' if len(worst.twins) == 1 else 'other pipelines'} "
        f"({who([stage.rank for stage in worst.twins])}) {usual / 1e6:.2f} ms. Its pipeline waits for it. "
        f"At their pace {words.the} would take {(step - saved) / 1e6:.2f} instead of {step / 1e6:.2f} ms "
        f"({100 * saved / step:.0f} % less)."
    )
    evidence = [
        *_saved_and_work(Fact.SAVED_AT_PEERS_PACE, worst, saved, step, words),
        *(Evidence(Fact.WORK_OF_THE_SAME_STAGE, _ms(s.work), words.unit("ms"), rank=s.rank) for s in worst.twins),
    ]
    found = UNEVEN_STAGES.finding(
        severity, "high", message, evidence, ranks=[slowest.rank], impact_ms=_ms(saved),
        cause="gpu_compute" if on_gpu else "host",
    )  # fmt: skip
    return UNEVEN_STAGES.verdict(found)


def _saved_and_work(fact: Fact, worst: Bubble, saved: float, step: float, words: StepWords) -> list[Evidence]:
    """What the cure of the slowest stage saves of a step, in ns and in percent, and the work of each stage."""
    bound, rank = _EVEN_PCT[0], worst.slowest.rank
    return [
        Evidence(fact, _ms(saved), words.unit("ms"), _ms(bound / 100 * step), rank),
        Evidence(Fact.OF_STEP, round(100 * saved / step, 1), "%", bound, rank, subject=words.the),
        *(Evidence(Fact.WORK_OF_A_STAGE, _ms(s.work), words.unit("ms"), rank=s.rank) for s in worst.stages),
    ]


def judge_bubble(run: CrossRank) -> Verdict:
    """TO-B002."""
    known = [bubble for bubble in run.bubbles if bubble.ideal_share is not None]
    if not known:
        return LARGE_BUBBLE.not_evaluated("what the schedule's own bubble is, is not known")
    worst = max(known, key=lambda bubble: _share(bubble, "fill_drain"))
    share = 100 * _share(worst, "fill_drain")
    severity, words = severity_of(share, *_FILL_PCT), run.step_words
    if severity is None:
        return LARGE_BUBBLE.clear(f"filling and draining take {share:.1f} % of {words.the} (bound {_FILL_PCT[0]:g} %)")
    waiting, step = _mean(worst, "fill_drain"), _mean(worst, "step")
    pipeline, assumed = worst.pipeline, 100 * (worst.ideal_share or 0.0)
    held = f" of {pipeline.chunks} stages each" if (pipeline.chunks or 1) > 1 else ""
    message = (
        f"The pipeline of ranks {ranks_text(pipeline.ranks, 8)} fills and drains for {waiting / 1e6:.2f} of "
        f"{words.each_of(f'{step / 1e6:.2f} ms')} ({share:.0f} %). By its schedule ({SCHEDULES[pipeline.schedule]}, "
        f"{pipeline.micro_batches} micro-batches over {len(pipeline.ranks)} ranks{held}) it is {assumed:.0f} % where "
        "all stages take equally long."
    )
    saved = None if run.replay is None else run.replay.what_if.saved_ns(TWICE_THE_MICRO_BATCHES)
    if saved is not None:
        message += f" Twice the micro-batches, half as large, would save up to {saved / 1e6:.2f} ms {words.per}."
    other = None if run.replay is None else run.replay.what_if.saved_ns(INTERLEAVED)
    if other is not None and other >= _WORTH * waiting:
        message += f" Two stages a rank (interleaved) would save up to {other / 1e6:.2f} ms."
    evidence = [
        Evidence(Fact.FILLS_AND_DRAINS, _ms(waiting), words.unit("ms"), _ms(_FILL_PCT[0] / 100 * step)),
        Evidence(Fact.OF_STEP, round(share, 1), "%", _FILL_PCT[0], subject=words.the),
        Evidence(Fact.BY_THE_SCHEDULE_ALONE, round(assumed, 1), "%"),
        Evidence(Fact.MICRO_BATCHES, pipeline.micro_batches),
    ]
    found = LARGE_BUBBLE.finding(
        severity, "high", message, evidence, ranks=pipeline.ranks,
        impact_ms=_ms(waiting if saved is None else saved),
    )  # fmt: skip
    return LARGE_BUBBLE.verdict(found)


def judge_late(
    run: CrossRank,
    waits: CoreWaits | None = None,
    plain_ms: float | None = None,
    undisturbed: Undisturbed | None = None,
) -> Verdict:
    """TO-B003. waits: for cores, by rank; None: not looked at. plain_ms: a step without the profiler."""
    recorded = [without_loading(run, bubble) for bubble in run.bubbles if bubble.ideal_share is not None]
    known = [without_recording(run, bubble, plain_ms, undisturbed) for bubble in recorded]
    if not known:
        return LATE_SENDS.not_evaluated("what the schedule's own bubble is, is not known")
    worst = max(known, key=lambda bubble: _share(bubble, "late"))
    share = 100 * _share(worst, "late")
    severity, words = severity_of(share, *_LATE_PCT), run.step_words
    if severity is None:
        return LATE_SENDS.clear(f"{share:.1f} % of {words.the} (bound {_LATE_PCT[0]:g} %)")
    starved = waits is not None and any(
        not times.summary.on_gpu and times.summary.rank not in waits.of_rank for times in run.ranks
    )
    severity = "info" if starved else severity
    waiting = _mean(worst, "late")
    most = max(worst.stages, key=lambda stage: stage.late)
    shown = recorded[known.index(worst)]
    message = (
        f"The stages of the pipeline wait {'' if worst is shown else 'up to '}{waiting / 1e6:.2f} ms {words.per} "
        f"({share:.0f} %) for sends that come later than their schedule and their work account for"
    )
    if worst is shown:
        message += f"; rank {most.rank} waits most, {most.late / 1e6:.2f} ms."
    else:  # how much of its room each rank's waiting takes is not known
        message += (
            f": a step without the profiler, of {worst.stages[0].step / 1e6:.1f} ms, has room for no more. The traces "
            f"show {_mean(shown, 'late') / 1e6:.2f} of {run.step_ms:.1f} ms."
        )
    message += _UNKNOWN_CORES if starved else ""
    evidence = [
        Evidence(Fact.WAITS_FOR_LATE_SENDS, _ms(stage.late), words.unit("ms"), rank=stage.rank)
        for stage in worst.stages
    ]
    found: Finding = LATE_SENDS.finding(
        severity, "medium", message, evidence, ranks=worst.pipeline.ranks, impact_ms=_ms(waiting)
    )
    return LATE_SENDS.verdict(found)


def _no_pipeline(run: CrossRank, rule: Rule) -> Verdict:
    if len(run.ranks) < 2:
        return rule.not_evaluated("there is only one rank")
    if NO_END in run.matching.unmatched:
        return rule.not_evaluated("sends and receives do not say between which ranks they are")
    if any(own.summary.through_host and not len(own.summary.comm.start) for own in run.ranks):
        return rule.not_evaluated("what hosts of GPUs send over gloo is not matched: this may be a pipeline")
    return rule.clear("no rank hands activations on to another: this is no pipeline")


def _faster(bubble: Bubble) -> str:
    below = [stage for stage in bubble.stages if stage.work < bubble.mean_work]
    fastest = sorted(below, key=lambda stage: stage.work)[:2]
    return " and ".join(f"rank {stage.rank}" for stage in sorted(fastest, key=lambda stage: stage.stage))


def _mean(bubble: Bubble, what: str) -> float:
    return float(sum(getattr(stage, what) for stage in bubble.stages)) / len(bubble.stages)


def _share(bubble: Bubble, what: str) -> float:
    def of(stage: StageTimes) -> float:
        return float(getattr(stage, what)) / stage.step if stage.step else 0.0

    return sum(map(of, bubble.stages)) / len(bubble.stages)


def _ms(ns: float) -> float:
    return stored(ns / 1e6)
