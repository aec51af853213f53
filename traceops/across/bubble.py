"""How long the stages of a pipeline wait for each other, and for which of three reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceops.across.match import Collective, MatchedCollectives, waits_by_rank
from traceops.across.stages import Pipeline
from traceops.core.arrays import Int
from traceops.core.intervals import Intervals, intersect, subtract, union
from traceops.measure.summary import RankSummary

Typical = Mapping[int, NDArray[np.bool_]]  # rank -> which of its steps are like the others

_KINDS = 3  # of kernels at least, to say that all of them take longer
_SLOWER = 1.1  # times as long as on the other stages: less makes no device slow
_ALIKE = 0.9  # of how much longer the median kind takes: three quarters take so much longer
_SLOW_RANK = 1.15  # times the work of the same stage in other pipelines
_MOST_OF = 0.5  # of what a stage takes more than the mean of its pipeline


@dataclass(frozen=True)
class StageTimes:
    """A rank of a pipeline, ns a step, the mean over its typical steps.

    `bubble` is waiting for activations and gradients with nothing else to do. Of it, `imbalance` goes to a slower
    stage, `fill_drain` to the first micro-batch on its way in and the last one on its way out; `late` is the rest: what
    even stages with this many micro-batches would not wait, because sends come late. Where the schedule's own bubble is
    not known, it holds filling and draining too. `fill` and `drain` are
    `fill_drain` in the proportion in which the rank waits for activations and for gradients.
    """

    rank: int
    stage: int
    step: float
    work: float
    bubble: float
    imbalance: float
    fill_drain: float
    late: float
    fill: float = 0.0
    drain: float = 0.0


@dataclass(frozen=True)
class Bubble:
    """A pipeline and its stages in order."""

    pipeline: Pipeline
    stages: tuple[StageTimes, ...]
    slower: float | None = None  # how many times as long kernels take on the slowest stage as on the others
    slower_alike: float | None = None  # the same where nearly all kinds of kernels do, as on a device that is slower
    sending: float = 0.0  # exposed transfer of its sends and receives, ns a step, mean over the stages
    twins: tuple[StageTimes, ...] = ()  # the slowest stage in the other pipelines of as many stages

    @property
    def slowest(self) -> StageTimes:
        """The stage with most work."""
        return max(self.stages, key=lambda stage: stage.work)

    @property
    def is_slow_rank(self) -> bool:
        """Whether the slowest stage is slow on this rank, and not for what it holds: elsewhere it takes less."""
        if not self.twins:
            return False
        more = self.slowest.work - self.mean_work
        usual = float(np.median([stage.work for stage in self.twins]))
        return self.slowest.work >= _SLOW_RANK * usual and self.slowest.work - usual >= _MOST_OF * more

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
    pipelines: Sequence[Pipeline], ranks: Sequence[RankSummary], matching: MatchedCollectives, typical: Typical | None
) -> tuple[Bubble, ...]:
    """The bubble of each pipeline [docs/metrics.md, pipelines], over each rank's `typical` steps; None: over all."""
    by_rank = {summary.rank: summary for summary in ranks}
    typical = typical or {rank: np.ones(len(own.step_numbers), bool) for rank, own in by_rank.items()}
    found = []
    for pipeline in pipelines:
        own = [by_rank[rank] for rank in pipeline.ranks]
        sends = MatchedCollectives(tuple(matching.collectives[i] for i in pipeline.collectives), 0, {})
        among = _among(pipeline, matching)
        waits = waits_by_rank(replace(sends, collectives=(*sends.collectives, *among)), own)
        at_end = waits_by_rank(replace(sends, collectives=among), own)
        stages = _stages(pipeline, own, waits, _for_gradients(pipeline, sends, own, at_end), typical)
        bubble = Bubble(pipeline, stages)
        times, sending = (_against_others(bubble.slowest.rank, own), _sending(waits_by_rank(sends, own), own, typical))
        found.append(replace(bubble, slower=_slower(times), slower_alike=_slower_alike(times), sending=sending))
    return tuple(replace(bubble, twins=_twins(bubble, found)) for bubble in found)


def _twins(bubble: Bubble, every: Sequence[Bubble]) -> tuple[StageTimes, ...]:
    """The slowest stage of a pipeline as the others of as many stages have it."""
    return tuple(
        other.stages[bubble.slowest.stage]
        for other in every
        if other is not bubble and len(other.stages) == len(bubble.stages)
    )


def _sending(waits: Mapping[int, tuple[Int, Int, Int]], ranks: Sequence[RankSummary], typical: Typical) -> float:
    """Exposed transfer of a pipeline's sends and receives, ns a step, mean over its ranks."""
    spent = []
    for summary in ranks:
        _, turn, end = waits[summary.rank]
        moving = intersect(summary.ledger.exposed, union(turn, end))
        spent.append(_mean_within(moving, summary, typical))
    return float(np.mean(spent))


def _among(pipeline: Pipeline, matching: MatchedCollectives) -> tuple[Collective, ...]:
    """Other collectives of its stages alone: gradients of a tied weight, a norm. They wait for it to drain."""
    ranks = frozenset(pipeline.ranks)
    return tuple(own for own in matching.collectives if not own.links and ranks.issuperset(own.group))


def _for_gradients(
    pipeline: Pipeline,
    chosen: MatchedCollectives,
    ranks: Sequence[RankSummary],
    at_end: Mapping[int, tuple[Int, Int, Int]],
) -> dict[int, Intervals]:
    """When each rank waits for gradients, for somebody to take its own, or `at_end` of the step for the others."""
    starts: dict[int, list[int]] = {summary.rank: [] for summary in ranks}
    turns: dict[int, list[int]] = {summary.rank: [] for summary in ranks}
    begun = {summary.rank: summary.comm.start for summary in ranks}
    for collective in chosen.collectives:
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            if (rank, position) in pipeline.gradients:
                start = int(begun[rank][position])
                starts[rank].append(start)
                turns[rank].append(start + wait)
    return {
        rank: union(
            np.concatenate((np.array(own, dtype=np.int64), at_end[rank][0])),
            np.concatenate((np.array(turns[rank], dtype=np.int64), at_end[rank][1])),
        )
        for rank, own in starts.items()
    }


def _stages(
    pipeline: Pipeline,
    ranks: Sequence[RankSummary],
    waits: Mapping[int, tuple[Int, Int, Int]],
    for_gradients: Mapping[int, Intervals],
    typical: Typical,
) -> tuple[StageTimes, ...]:
    work = [_mean(_work(summary)[typical[summary.rank]]) for summary in ranks]
    slowest = int(np.argmax(work))
    passes = passes_of(pipeline)
    # The slowest stage is the clock; the first pass reaches it, and the last one leaves it, through the others.
    through = 0.0 if passes is None else (sum(work) - work[slowest]) / passes
    found = []
    for stage, (summary, own) in enumerate(zip(ranks, work, strict=True)):
        start, turn, end = waits[summary.rank]
        waiting = subtract(intersect(summary.ledger.exposed, union(start, turn)), union(turn, end))
        bubble = _mean_within(waiting, summary, typical)
        imbalance = min(work[slowest] - own, bubble)
        fill_drain = min(through, bubble - imbalance)
        draining = intersect(waiting, for_gradients[summary.rank])
        drain = _mean_within(draining, summary, typical)
        drained = fill_drain * drain / bubble if bubble else 0.0
        found.append(
            StageTimes(
                rank=summary.rank,
                stage=stage,
                step=_mean(summary.ledger.duration[typical[summary.rank]]),
                work=own,
                bubble=bubble,
                imbalance=imbalance,
                fill_drain=fill_drain,
                late=bubble - imbalance - fill_drain,
                fill=fill_drain - drained,
                drain=drained,
            )
        )
    return tuple(found)


def _work(summary: RankSummary) -> Int:
    """What a stage computes in each step, ns; without a GPU its host does the work, between operators too.

    Copies of a batch come to the stage that gets it, however many layers it has.
    """
    buckets = summary.ledger.buckets
    return buckets["compute"] if summary.on_gpu else buckets["compute"] + buckets["memory"] + buckets["idle_host"]


def _against_others(slowest: int, ranks: Sequence[RankSummary]) -> list[tuple[float, float]]:
    """Time of each of the slowest stage's kernels, and what as many of the same take on the others."""
    counts: dict[str, int] = defaultdict(int)
    spent: dict[str, float] = defaultdict(float)
    for summary in ranks:
        if summary.rank != slowest:
            for kernel in summary.kernels:
                if kernel.kind == "compute":
                    counts[kernel.name] += kernel.count
                    spent[kernel.name] += kernel.total_us
    own = next(summary for summary in ranks if summary.rank == slowest)
    shared = [kernel for kernel in own.kernels if counts.get(kernel.name) and spent[kernel.name] > 0]
    return [(k.total_us, k.count * spent[k.name] / counts[k.name]) for k in shared]


def _slower(times: Sequence[tuple[float, float]]) -> float | None:
    """Time of these kernels over what as many take on the others; None for none."""
    return sum(own for own, _ in times) / sum(usual for _, usual in times) if times else None


def _slower_alike(times: Sequence[tuple[float, float]]) -> float | None:
    """How many times as long nearly all kinds of kernels take; None where they differ, or are few.

    A kernel that is longer for what it computes there, as a head's, makes no device slow.
    """
    if len(times) < _KINDS:
        return None
    ratios = np.array([own / usual for own, usual in times])
    middle = float(np.median(ratios))
    return middle if middle >= _SLOWER and float(np.quantile(ratios, 0.25)) >= _ALIKE * middle else None


def _mean_within(part: Intervals, summary: RankSummary, typical: Typical) -> float:
    return _mean(part.within(summary.step_edges[:-1], summary.step_edges[1:])[typical[summary.rank]])


def _mean(ns: Int) -> float:
    return float(np.mean(ns)) if len(ns) else 0.0
