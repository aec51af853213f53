"""Pipelines among the ranks: their stages, their micro-batches, and the order in which they run them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from traceops.across.match import MatchedCollectives
from traceops.measure.exchanges import BACKWARD
from traceops.measure.summary import RankSummary

Schedule = Literal["gpipe", "1f1b", "interleaved", "looped_bfs", "zero_bubble", "forward_only", "other"]
Edge = tuple[int, int]  # a rank and one that it sends to
_FEW = 0.15  # of an edge's messages that cannot be a way of their own
_AHEAD = 2  # activations that a stage may ask for before it sends the first gradient, in 1F1B


@dataclass(frozen=True)
class Pipeline:
    """Ranks in the order of the stages that a batch passes first.

    `schedule` is the order of sends and receives: zero-bubble only where the trace notes weight gradients apart.
    `chunks` is how many stages each rank holds and `micro_batches` how many a step has, None where that is not known.
    `collectives` are indices into MatchedCollectives.collectives; `gradients` are those of their events, as rank and
    position, in which the rank waits for a gradient, or for somebody to take its own.
    """

    ranks: tuple[int, ...]
    schedule: Schedule
    chunks: int | None
    micro_batches: int | None
    collectives: tuple[int, ...]
    gradients: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class _Passed:
    """One message between two ranks: by which collective, in which step, and at which positions of both ranks."""

    edge: Edge
    number: int
    step: int | None
    sent: int
    received: int


def find_pipelines(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> tuple[Pipeline, ...]:
    """Chains of ranks that hand activations on and gradients back, and loops of them where ranks hold several stages.

    Which is which is told by what the ranks compute beside their sends and receives.
    """
    by_rank = {summary.rank: summary for summary in ranks}
    forward: dict[Edge, list[_Passed]] = defaultdict(list)
    backward: dict[Edge, list[_Passed]] = defaultdict(list)
    for number, collective in enumerate(matching.collectives):
        if collective.links and not is_ring(collective.links, len(collective.members)):
            for i, j in collective.links:
                (sender, sent), (receiver, received) = collective.members[i], collective.members[j]
                step = by_rank[sender].step_number(sent)
                passed = _Passed((sender, receiver), number, step, sent, received)
                ways = int(by_rank[sender].comm.before[sent]), int(by_rank[receiver].comm.after[received])
                (backward if BACKWARD in ways else forward)[passed.edge].append(passed)
    for edge in forward.keys() & backward.keys():
        _outvote(forward[edge], backward[edge])
    forward, backward = ({edge: own for edge, own in ways.items() if own} for ways in (forward, backward))
    found = []
    for members in _connected([*forward, *backward]):
        own = {edge: passed for edge, passed in forward.items() if edge[0] in members}
        back = {edge: passed for edge, passed in backward.items() if edge[0] in members}
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


def _in_order(
    forward: Mapping[Edge, Sequence[_Passed]], backward: Mapping[Edge, Sequence[_Passed]]
) -> tuple[tuple[int, ...], int | None] | None:
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
    first = [rank for rank in onward if rank not in into]
    if first:
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


def _folded(
    forward: Mapping[Edge, Sequence[_Passed]], backward: Mapping[Edge, Sequence[_Passed]]
) -> tuple[tuple[int, ...], int | None] | None:
    """A chain that both passes go along both ways, as where the last stages lie on the first ranks (zero bubble, V).

    Neighbours that exchange the borders of their parts look the same: only for ranks whose trace notes stages.
    """
    neighbours: dict[int, set[int]] = defaultdict(set)
    for sender, receiver in forward:
        neighbours[sender].add(receiver)
        neighbours[receiver].add(sender)
    ends = [rank for rank, own in neighbours.items() if len(own) == 1]
    if not backward or len(ends) != 2 or any(len(own) > 2 for own in neighbours.values()):
        return None
    # In each step the first rank sends before it receives anything.
    starts = Counter[int]()
    for step in {passed.step for own in forward.values() for passed in own}:
        inner = [p for own in (*forward.values(), *backward.values()) for p in own if p.step == step]
        for end in ends:
            sent = min((p.sent for p in inner if p.edge[0] == end), default=-1)
            received = min((p.received for p in inner if p.edge[1] == end), default=-1)
            starts[end] += 0 <= sent < received
    first = max(ends, key=lambda end: (starts[end], -end))
    if not starts[first] or starts[first] == starts[next(end for end in ends if end != first)]:
        return None
    order = [first]
    while following := [rank for rank in sorted(neighbours[order[-1]]) if rank not in order]:
        order.append(following[0])
    return tuple(order), None


def _pipeline(
    order: tuple[int, ...],
    chunks: int | None,
    forward: Mapping[Edge, Sequence[_Passed]],
    backward: Mapping[Edge, Sequence[_Passed]],
    ranks: Mapping[int, RankSummary],
) -> Pipeline:
    passed = [one for own in (*forward.values(), *backward.values()) for one in own]
    steps = {one.step for one in passed} - {None}
    of_first = forward.get((order[0], order[1]), ())
    sends = {step: len({one.sent for one in of_first if one.step == step}) for step in steps}
    held = chunks or 2
    each = set(sends.values())
    micro_batches = each.pop() // held if len(each) == 1 else None
    noted = {int(stage) for rank in order for stage in ranks[rank].comm.stage if stage >= 0}
    if noted:
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
    numbers = tuple(sorted({one.number for one in passed}))
    return Pipeline(order, schedule, chunks, micro_batches, numbers, _gradients(forward, backward))


def _gradients(
    forward: Mapping[Edge, Sequence[_Passed]], backward: Mapping[Edge, Sequence[_Passed]]
) -> frozenset[tuple[int, int]]:
    """Events that receive gradients, and those that send them and receive no activations at once."""
    activations = {(edge[1], one.received) for edge, own in forward.items() for one in own}
    sent = {(edge[0], one.sent) for edge, own in backward.items() for one in own}
    return frozenset((edge[1], one.received) for edge, own in backward.items() for one in own) | (sent - activations)


def _schedule(
    last: int,
    chunks: int,
    steps: set[int | None],
    forward: Mapping[Edge, Sequence[_Passed]],
    backward: Mapping[Edge, Sequence[_Passed]],
) -> Schedule:
    """By how many activations the last rank asked for before it sent the first gradient of a step."""
    asked = [one for edge, own in forward.items() if edge[1] == last for one in own]
    sent = [one for edge, own in backward.items() if edge[0] == last for one in own]
    kinds: Counter[Schedule] = Counter()
    for step in steps:
        first = min((one.sent for one in sent if one.step == step), default=None)
        every = {one.received for one in asked if one.step == step}
        if first is None or len(every) < 2:
            continue
        before = sum(position < first for position in every)
        if before == len(every):
            kinds["gpipe" if chunks == 1 else "looped_bfs"] += 1
        elif chunks > 1:
            kinds["interleaved"] += 1
        else:
            kinds["1f1b" if before <= _AHEAD else "other"] += 1
    return kinds.most_common(1)[0][0] if len(kinds) == 1 else "other"
