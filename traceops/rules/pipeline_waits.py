"""What stages of a pipeline wait for: a slower stage, where no replay tells more, and not another's input."""

from __future__ import annotations

from dataclasses import replace

from traceops.across.bubble import Bubble
from traceops.across.cross_rank import CrossRank
from traceops.across.undisturbed import Undisturbed
from traceops.core.findings import Evidence
from traceops.core.rule import Rule, Verdict
from traceops.core.units import stored
from traceops.rules.idle_time import room_ms


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
            Evidence("waits for a slower stage", stored(s.imbalance / 1e6), words.unit("ms"), rank=s.rank)
            for s in others
        ),
        *(Evidence("work of a stage", stored(s.work / 1e6), words.unit("ms"), rank=s.rank) for s in worst.stages),
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
