"""How long the stages of a pipeline wait for each other, and for which of three reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traceops.across.match import MatchedCollectives, waits_by_rank
from traceops.across.stages import Pipeline
from traceops.core.arrays import Int
from traceops.core.intervals import intersect, subtract, union
from traceops.measure.summary import RankSummary


@dataclass(frozen=True)
class StageTimes:
    """A rank of a pipeline, ns a step, the mean over its steps.

    `bubble` is waiting for activations and gradients with nothing else to do. Of it, `imbalance` goes to a slower
    stage, `fill_drain` to the first micro-batch on its way in and the last one on its way out; `late` is the rest: what
    even stages with this many micro-batches would not wait, because sends come late.
    """

    rank: int
    stage: int
    step: float
    work: float
    bubble: float
    imbalance: float
    fill_drain: float
    late: float


@dataclass(frozen=True)
class Bubble:
    """A pipeline and its stages in order."""

    pipeline: Pipeline
    stages: tuple[StageTimes, ...]
    slower: float | None = None  # how many times as long kernels take on the slowest stage as on the others

    @property
    def slowest(self) -> StageTimes:
        """The stage with most work."""
        return max(self.stages, key=lambda stage: stage.work)

    @property
    def mean_work(self) -> float:
        """Work of a stage if all had the same, ns a step."""
        return float(np.mean([stage.work for stage in self.stages]))

    @property
    def share(self) -> float:
        """Part of the step that the stages wait for each other, mean over them."""
        return float(np.mean([stage.bubble / stage.step if stage.step else 0.0 for stage in self.stages]))

    @property
    def ideal_share(self) -> float | None:
        """The same of even stages by the schedule alone, (p - 1) / (v m + p - 1); None where it is not known."""
        passes = passes_of(self.pipeline)
        return None if passes is None else (len(self.stages) - 1) / (passes + len(self.stages) - 1)


def passes_of(pipeline: Pipeline) -> int | None:
    """How many parts each rank's work of a step comes in: micro-batches times stages that it holds.

    None where the schedule's bubble is not known: zero-bubble schedules and unknown ones have another.
    """
    known = pipeline.schedule in ("gpipe", "1f1b", "interleaved", "looped_bfs", "forward_only")
    if not known or not pipeline.micro_batches or not pipeline.chunks:
        return None
    return pipeline.micro_batches * pipeline.chunks


def measure_bubbles(
    pipelines: Sequence[Pipeline], ranks: Sequence[RankSummary], matching: MatchedCollectives
) -> tuple[Bubble, ...]:
    """The bubble of each pipeline [docs/metrics.md, pipelines]."""
    by_rank = {summary.rank: summary for summary in ranks}
    found = []
    for pipeline in pipelines:
        own = [by_rank[rank] for rank in pipeline.ranks]
        chosen = MatchedCollectives(tuple(matching.collectives[i] for i in pipeline.collectives), 0, {})
        waits = waits_by_rank(chosen, own)
        bubble = Bubble(pipeline, _stages(pipeline, own, waits))
        found.append(replace(bubble, slower=_slower(bubble.slowest.rank, own)))
    return tuple(found)


def _stages(
    pipeline: Pipeline, ranks: Sequence[RankSummary], waits: Mapping[int, tuple[Int, Int, Int]]
) -> tuple[StageTimes, ...]:
    work = [_mean(summary.ledger.buckets["compute"] + summary.ledger.buckets["memory"]) for summary in ranks]
    slowest = int(np.argmax(work))
    passes = passes_of(pipeline)
    # The slowest stage is the clock; the first pass reaches it, and the last one leaves it, through the others.
    through = 0.0 if passes is None else (sum(work) - work[slowest]) / passes
    found = []
    for stage, (summary, own) in enumerate(zip(ranks, work, strict=True)):
        start, turn, end = waits[summary.rank]
        waiting = subtract(intersect(summary.ledger.exposed, union(start, turn)), union(turn, end))
        bubble = _mean(waiting.within(summary.step_edges[:-1], summary.step_edges[1:]))
        imbalance = min(work[slowest] - own, bubble)
        fill_drain = min(through, bubble - imbalance)
        found.append(
            StageTimes(
                rank=summary.rank,
                stage=stage,
                step=_mean(summary.ledger.duration),
                work=own,
                bubble=bubble,
                imbalance=imbalance,
                fill_drain=fill_drain,
                late=bubble - imbalance - fill_drain,
            )
        )
    return tuple(found)


def _slower(slowest: int, ranks: Sequence[RankSummary]) -> float | None:
    """Time of the slowest stage's kernels over what as many of the same ones take on the others; None for none."""
    counts: dict[str, int] = defaultdict(int)
    spent: dict[str, float] = defaultdict(float)
    for summary in ranks:
        if summary.rank != slowest:
            for kernel in summary.kernels:
                if kernel.kind == "compute":
                    counts[kernel.name] += kernel.count
                    spent[kernel.name] += kernel.total_us
    own = next(summary for summary in ranks if summary.rank == slowest)
    shared = [kernel for kernel in own.kernels if counts.get(kernel.name)]
    usual = sum(kernel.count * spent[kernel.name] / counts[kernel.name] for kernel in shared)
    return sum(kernel.total_us for kernel in shared) / usual if usual else None


def _mean(ns: Int) -> float:
    return float(np.mean(ns)) if len(ns) else 0.0
