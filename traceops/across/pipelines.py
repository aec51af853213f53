"""Pipelines among the ranks: their stages, their micro-batches, and the order in which they run them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.match import MatchedCollectives, Waits, waits_by_rank
from traceops.across.send_receive import Event
from traceops.core.arrays import Int, Intervals, Mask, intersect, median, percentiles, subtract, union
from traceops.measure.exchanges import BACKWARD
from traceops.measure.summary import RankSummary

Schedule = Literal["gpipe", "1f1b", "interleaved", "looped_bfs", "zero_bubble", "forward_only", "other"]
Edge = tuple[int, int]  # a rank and one that it sends to
_FEW = 0.15  # of an edge's messages that cannot be a way of their own
_AHEAD = 2  # activations that a stage may ask for before it sends the first gradient, in 1F1B


class Pipeline(Struct, frozen=True):
    """Ranks in the order of the stages that a batch passes first. `schedule` is the order of sends and receives:
    zero-bubble only where the trace notes weight gradients apart. `chunks` is how many stages each rank holds and
    `micro_batches` how many a step has, None where that is not known. `collectives` are indices into
    MatchedCollectives.collectives; `gradients` are those of their events, as rank and position, in which the rank waits
    for a gradient, or for somebody to take its own."""

    ranks: tuple[int, ...]
    schedule: Schedule
    chunks: int | None
    micro_batches: int | None
    collectives: tuple[int, ...]
    gradients: frozenset[tuple[int, int]] = frozenset()


class _Passed(Struct, frozen=True):
    """One message between two ranks: by which collective, in which step, and at which positions of both ranks."""

    edge: Edge
    number: int | None
    step: int | None
    sent: int
    received: int


_Ways = Mapping[Edge, Sequence[_Passed]]  # what each edge carries, forward or backward


def find_pipelines(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> tuple[Pipeline, ...]:
    """Chains of ranks that hand activations on and gradients back, and loops of them where ranks hold several stages.
    What the ranks compute beside their sends and receives shows which is which."""
    by_rank = {summary.rank: summary for summary in ranks}
    forward: dict[Edge, list[_Passed]] = defaultdict(list)
    backward: dict[Edge, list[_Passed]] = defaultdict(list)
    messages: list[tuple[int | None, Event, Event]] = [
        (number, one.members[i], one.members[j])
        for number, one in enumerate(matching.collectives)
        if not is_ring(one.links, len(one.members))
        for i, j in one.links
    ]
    for number, (sender, sent), (receiver, received) in [*messages, *((None, *ends) for ends in matching.apart)]:
        passed = _Passed((sender, receiver), number, by_rank[sender].step_number(sent), sent, received)
        ways = int(by_rank[sender].comm.before[sent]), int(by_rank[receiver].comm.after[received])
        (backward if BACKWARD in ways else forward)[passed.edge].append(passed)
    for edge in forward.keys() & backward.keys():
        _outvote(forward[edge], backward[edge])
    forward, backward = ({edge: own for edge, own in ways.items() if own} for ways in (forward, backward))
    found = []
    for members in _connected([*forward, *backward]):
        own, back = (
            {edge: passed for edge, passed in ways.items() if edge[0] in members} for ways in (forward, backward)
        )
        noted = any((by_rank[rank].comm.stage >= 0).any() for rank in members)
        order = _in_order(own, back) or (_folded(own, back) if noted else None)
        if order is not None:
            found.append(_pipeline(*order, own, back, by_rank))
    return tuple(sorted(found, key=lambda pipeline: pipeline.ranks))


def _outvote(one: list[_Passed], other: list[_Passed]) -> None:
    """Moves the few of one way to the many of the other: each way has its share of an edge, or none."""
    few, many = sorted((one, other), key=len)
    if len(few) < _FEW * (len(few) + len(many)):
        many += few
        few.clear()


def stage_of(pipelines: Sequence[Pipeline]) -> dict[int, int]:
    """The stage of each rank that is in a pipeline, its first one where it holds several."""
    return {rank: stage for pipeline in pipelines for stage, rank in enumerate(pipeline.ranks)}


def is_ring(links: Sequence[Edge], members: int) -> bool:
    """Whether all members pass something around at once, as ring attention does."""
    return members > 2 and len({i for i, _ in links}) == len({j for _, j in links}) == members


def _connected(edges: Sequence[Edge]) -> list[set[int]]:
    found: list[set[int]] = []
    for edge in edges:
        touched = [own for own in found if own & set(edge)]
        found = [own for own in found if own not in touched]
        found.append(set(edge).union(*touched))
    return found


def _in_order(forward: _Ways, backward: _Ways) -> tuple[tuple[int, ...], int | None] | None:
    """The ranks by stage and how many stages each holds, None for a number that is not known or no pipeline at all."""
    counts = {edge: len(passed) for edge, passed in forward.items()}
    if any(edge[::-1] not in counts for edge in backward):
        return None  # gradients go back where activations came from
    onward, into = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for sender, receiver in counts:
        onward[sender].append(receiver)
        into[receiver].append(sender)
    if any(len(own) > 1 for own in (*onward.values(), *into.values())):
        return None
    if first := [rank for rank in onward if rank not in into]:
        return _walk(first[0], onward), 1
    # A loop: its last rank hands on to the first, but nothing of its last stage.
    whole, least = max(counts.values(), default=0), min(counts.values(), default=0)
    weakest = [edge for edge, count in counts.items() if count == least]
    even = all(count == whole for edge, count in counts.items() if edge not in weakest)
    if len(weakest) != 1 or not even or whole % (whole - least) or not backward:
        return None
    return _walk(weakest[0][1], onward), whole // (whole - least)


def _walk(first: int, onward: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    order = [first]
    while (following := onward.get(order[-1])) and following[0] != first:
        order.append(following[0])
    return tuple(order)


def _starts(end: int, forward: _Ways, backward: _Ways) -> int:
    """In how many steps this rank sends before it receives anything, as the first of a chain does."""
    found = 0
    for step in {passed.step for own in forward.values() for passed in own}:
        inner = [p for own in (*forward.values(), *backward.values()) for p in own if p.step == step]
        sent = min((p.sent for p in inner if p.edge[0] == end), default=-1)
        received = min((p.received for p in inner if p.edge[1] == end), default=-1)
        found += 0 <= sent < received
    return found


def _folded(forward: _Ways, backward: _Ways) -> tuple[tuple[int, ...], int | None] | None:
    """A chain that both passes go along both ways, as where the last stages lie on the first ranks (zero bubble, V).
    Neighbours that exchange the borders of their parts look the same: only for ranks whose trace notes stages."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for sender, receiver in forward:
        neighbours[sender].add(receiver)
        neighbours[receiver].add(sender)
    ends = [rank for rank, own in neighbours.items() if len(own) == 1]
    if not backward or len(ends) != 2 or any(len(own) > 2 for own in neighbours.values()):
        return None
    starts = {end: _starts(end, forward, backward) for end in ends}
    first = max(ends, key=lambda end: (starts[end], -end))
    if starts[first] == min(starts.values()):
        return None
    order = [first]
    while following := [rank for rank in sorted(neighbours[order[-1]]) if rank not in order]:
        order.append(following[0])
    return tuple(order), None


def _pipeline(
    order: tuple[int, ...], chunks: int | None, forward: _Ways, backward: _Ways, ranks: Mapping[int, RankSummary]
) -> Pipeline:
    passed = [one for own in (*forward.values(), *backward.values()) for one in own]
    steps = {one.step for one in passed} - {None}
    of_first = forward.get((order[0], order[1]), ())
    sends = {step: len({one.sent for one in of_first if one.step == step}) for step in steps}
    held = chunks or 2
    each = set(sends.values())
    micro_batches = each.pop() // held if len(each) == 1 else None
    if noted := {int(stage) for rank in order for stage in ranks[rank].comm.stage if stage >= 0}:
        chunks = (max(noted) + 1) // len(order)
        micro_batches = 1 + max(int(ranks[rank].comm.micro_batch.max()) for rank in order)
    if not backward:
        schedule: Schedule = "forward_only"
    elif any(ranks[rank].comm.weights_apart for rank in order):
        schedule = "zero_bubble"
    elif chunks is None:
        schedule = "other"
    else:
        schedule = _schedule(order[-1], chunks, steps, forward, backward)
    numbers = tuple(sorted({one.number for one in passed if one.number is not None}))
    return Pipeline(order, schedule, chunks, micro_batches, numbers, _gradients(forward, backward))


def _gradients(forward: _Ways, backward: _Ways) -> frozenset[Event]:
    """Events that receive gradients, and those that send them and receive no activations at once."""
    activations = {(edge[1], one.received) for edge, own in forward.items() for one in own}
    sent = {(edge[0], one.sent) for edge, own in backward.items() for one in own}
    return frozenset((edge[1], one.received) for edge, own in backward.items() for one in own) | (sent - activations)


def _schedule(last: int, chunks: int, steps: set[int | None], forward: _Ways, backward: _Ways) -> Schedule:
    """By how many activations the last rank asked for before it sent the first gradient of a step."""
    asked = [one for edge, own in forward.items() if edge[1] == last for one in own]
    sent = [one for edge, own in backward.items() if edge[0] == last for one in own]
    kinds: Counter[Schedule] = Counter()
    for step in steps:
        first = min((one.sent for one in sent if one.step == step), default=None)
        every = {one.received for one in asked if one.step == step}
        if first is None or len(every) < 2:
            continue
        if (before := sum(position < first for position in every)) == len(every):
            kinds["gpipe" if chunks == 1 else "looped_bfs"] += 1
        elif chunks > 1:
            kinds["interleaved"] += 1
        else:
            kinds["1f1b" if before <= _AHEAD else "other"] += 1
    return kinds.most_common(1)[0][0] if len(kinds) == 1 else "other"


Typical = Mapping[int, Mask]  # rank -> which of its steps are like the others

_KINDS = 3  # of kernels at least, to say that all of them take longer
_SLOWER = 1.1  # times as long as on the other stages: less makes no device slow
_ALIKE = 0.9  # of how much longer the median kind takes: three quarters take so much longer
_SLOW_RANK = 1.15  # times the work of the same stage in other pipelines
_MOST_OF = 0.5  # of what a stage takes more than the mean of its pipeline


class StageTimes(Struct, frozen=True):
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


class Bubble(Struct, frozen=True):
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
        usual = median([stage.work for stage in self.twins])
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
    """How many parts each rank's work of a step comes in: micro-batches times stages that it holds. None where the
    schedule's bubble is not known: zero-bubble schedules and unknown ones have another."""
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
        # Other collectives of its stages alone, as for gradients of a tied weight or a norm, wait for it to drain.
        members = frozenset(pipeline.ranks)
        among = tuple(one for one in matching.collectives if not one.links and members.issuperset(one.group))
        waits = waits_by_rank(replace(sends, collectives=(*sends.collectives, *among)), own)
        at_end = waits_by_rank(replace(sends, collectives=among), own)
        stages = _stages(pipeline, own, waits, _for_gradients(pipeline, sends, own, at_end), typical)
        bubble = Bubble(pipeline, stages)
        times = _against_others(bubble.slowest.rank, own)
        of_sends = waits_by_rank(sends, own)
        sending = []
        for summary in own:
            _, turn, end = of_sends[summary.rank]
            sending.append(_mean_within(intersect(summary.ledger.exposed, union(turn, end)), summary, typical))
        found.append(
            replace(
                bubble,
                slower=sum(took for took, _ in times) / sum(usual for _, usual in times) if times else None,
                slower_alike=_slower_alike(times),
                sending=float(np.mean(sending)),
            )
        )
    return tuple(replace(bubble, twins=_twins(bubble, found)) for bubble in found)


def _twins(bubble: Bubble, every: Sequence[Bubble]) -> tuple[StageTimes, ...]:
    """The slowest stage of a pipeline as the others of as many stages have it."""
    alike = [other for other in every if other is not bubble and len(other.stages) == len(bubble.stages)]
    return tuple(other.stages[bubble.slowest.stage] for other in alike)


def _for_gradients(
    pipeline: Pipeline, chosen: MatchedCollectives, ranks: Sequence[RankSummary], at_end: Waits
) -> dict[int, Intervals]:
    """When each rank waits for gradients, for somebody to take its own, or `at_end` of the step for the others."""
    starts = {rank: start.tolist() for rank, (start, _, _) in at_end.items()}
    turns = {rank: turn.tolist() for rank, (_, turn, _) in at_end.items()}
    begun = {summary.rank: summary.comm.start for summary in ranks}
    for collective in chosen.collectives:
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            if (rank, position) in pipeline.gradients:
                start = int(begun[rank][position])
                starts[rank].append(start)
                turns[rank].append(start + wait)
    return {
        rank: union(np.array(own, dtype=np.int64), np.array(turns[rank], dtype=np.int64))
        for rank, own in starts.items()
    }


def _stages(
    pipeline: Pipeline,
    ranks: Sequence[RankSummary],
    waits: Waits,
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
    """What a stage computes in each step, ns; without a GPU its host does the work, between operators too. Copies of a
    batch come to the stage that gets it, however many layers it has."""
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


def _slower_alike(times: Sequence[tuple[float, float]]) -> float | None:
    """How many times as long nearly all kinds of kernels take; None where they differ, or are few. A kernel that is
    longer for what it computes there, as a head's, makes no device slow."""
    if len(times) < _KINDS:
        return None
    ratios = np.array([own / usual for own, usual in times])
    middle = median(ratios)
    return middle if middle >= _SLOWER and percentiles(ratios, (25,))[0] >= _ALIKE * middle else None


def _mean_within(part: Intervals, summary: RankSummary, typical: Typical) -> float:
    return _mean(part.within(summary.step_edges[:-1], summary.step_edges[1:])[typical[summary.rank]])


def _mean(ns: Int) -> float:
    return float(np.mean(ns)) if len(ns) else 0.0
