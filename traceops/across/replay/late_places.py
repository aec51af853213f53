"""Where in a step a rank takes far longer than its peers: its cure where each of them is late, in places of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.across.replay.graph import WORK, Label, RankNodes, StepGraph, Steps, place_of, step_of
from traceops.core.arrays import Int, median
from traceops.measure.program import NEVER

_MATTERS = 0.02  # of the step: what a place must take longer, in the mean
_FAR = 1.5  # times its peers' own time there
_MOST_STEPS = 0.75  # of the steps: it takes longer there in so many

_Points = dict[Label, int]  # what tells a point in the program: when it is, in own time, ns


class LatePlaces(Struct, frozen=True):
    """Between which points of the program a rank is late. Times in ns, `own` and `peers` (peers, steps) there alone.

    `spared` is what lies less before each of its nodes if it is there as quick as its peers, `spared_joins` before
    each of its joins, `spared_host` before each node of its host's own time. `more` is what it takes longer by WORK.
    `most` is of the one place where it takes longer by most: what it takes there, and the most that a peer does.
    """

    spared: Int
    spared_joins: Int
    spared_host: Int
    own: Steps
    peers: NDArray[np.float64]
    more: Mapping[str, float]
    most: tuple[float, float]


class _Late(Struct, frozen=True):
    """Segments, one up to each of the points but the first; `gone` is before each point what is gone up to there."""

    labels: list[Label]
    where: NDArray[np.bool_]
    gone: Int
    own: Steps
    peers: NDArray[np.float64]
    most: tuple[float, float]


def late_places(graph: StepGraph, rank: int) -> LatePlaces | None:
    """Those that matter; None where there are none, or no peer."""
    peers = graph.peers(rank)
    late = _late(graph, [_points(graph, one) for one in (rank, *peers)]) if peers else None
    if late is None:
        return None
    nodes = graph.ranks[rank]
    points = _points(graph, rank)
    at = np.array([points[label] for label in late.labels], dtype=np.int64)
    by_host = _late(graph, [_host(graph.ranks[one]) for one in (rank, *peers)])
    host = _host(nodes)
    return LatePlaces(
        _before(nodes.work, at, late.gone),
        _before(nodes.join_work, at, late.gone),
        nodes.host * 0
        if by_host is None
        else _before(nodes.host, np.array([host[label] for label in by_host.labels], dtype=np.int64), by_host.gone),
        late.own,
        late.peers,
        _more(graph, rank, late),
        late.most,
    )


def _late(graph: StepGraph, points: Sequence[_Points]) -> _Late | None:
    """Where the first of them takes far longer than the others."""
    own, *others = points
    labels = sorted(set(own).intersection(*others), key=lambda label: (own[label], str(label)))
    index = {number: place for place, number in enumerate(graph.steps)}
    step = np.array([step_of(label, index, len(graph.steps)) for label in labels[1:]], dtype=np.int64)
    if not (step >= 0).any():
        return None
    took = np.array([np.maximum(np.diff([one[label] for label in labels]), 0) for one in points])
    usual = np.sort(took[1:], axis=0)[(len(others) - 1) // 2]
    more = took[0] - usual
    numbers = {place: number for number, place in enumerate(dict.fromkeys(map(place_of, labels[1:])))}
    place = np.array([numbers[place_of(label)] for label in labels[1:]], dtype=np.int64)
    shape = (len(numbers), len(graph.steps))
    inside = step >= 0

    def by_place(values: Int) -> NDArray[np.float64]:
        cells = place[inside] * shape[1] + step[inside]
        found = np.zeros(shape[0] * shape[1])
        np.add.at(found, cells, values[inside])
        return found.reshape(shape)

    longer, theirs = by_place(more), by_place(usual)
    length = float(median([np.diff(nodes.begin[graph.edges[rank]]) for rank, nodes in graph.ranks.items()]))
    least = np.maximum(_MATTERS * length, (_FAR - 1) * theirs.mean(axis=1))
    late = (longer.mean(axis=1) >= least) & ((longer > 0).mean(axis=1) >= _MOST_STEPS)
    if not late.any():
        return None
    where = inside & late[place]
    of_place = np.array([by_place(one) for one in took])
    spent = of_place[:, late].sum(axis=1)
    means = of_place.mean(axis=2)
    worst = int(np.where(late, means[0] - means[1:].max(axis=0), -np.inf).argmax())
    gone = np.where(where, np.maximum(more, 0), 0)
    first = numbers.get(place_of(labels[0])) if step_of(labels[0], index, len(graph.steps)) == 0 else None
    before = gone[where & (place == first)] if first is not None and late[first] else ()  # as in later steps
    gone = np.concatenate(([round(median(before)) if len(before) else 0], gone))
    most = float(means[0, worst]), float(means[1:, worst].max())
    return _Late(labels, where, np.cumsum(gone), spent[0], spent[1:], most)


def _points(graph: StepGraph, rank: int) -> _Points:
    """Its nodes, and on a GPU the joins for them in order: on a CPU what calls a collective also waits for it."""
    nodes = graph.ranks[rank]
    found = dict(zip(nodes.labels, nodes.work.tolist(), strict=True))
    if rank in graph.on_cpu:
        return found
    seen: Counter[Label] = Counter()
    for node, moment in zip(nodes.join_node.tolist(), nodes.join_work.tolist(), strict=True):
        label = nodes.labels[node]
        found[_join(label, seen[label])] = moment
        seen[label] += 1
    return found


def _join(label: Label, count: int) -> Label:
    return (*label, "join", count)


def _host(nodes: RankNodes) -> _Points:
    return {label: own for label, own in zip(nodes.labels, nodes.host.tolist(), strict=True) if own > NEVER}


def _more(graph: StepGraph, rank: int, late: _Late) -> dict[str, float]:
    """By WORK, what the rank takes longer than its median peer in these places."""

    def spent(one: int) -> NDArray[np.float64]:
        nodes = graph.ranks[one]
        points = _points(graph, one)
        order = np.argsort(nodes.work, kind="stable")
        at = np.array([points[label] for label in late.labels], dtype=np.int64)
        moments = [np.interp(at, nodes.work[order], nodes.spent[order, n]) for n in range(len(WORK))]
        return np.array([np.diff(own)[late.where].sum() for own in moments])

    usual = median([spent(peer) for peer in graph.peers(rank)], axis=0)
    return dict(zip(WORK, (spent(rank) - usual).tolist(), strict=True))


def _before(moments: Int, at: Int, gone: Int) -> Int:
    """What is gone before each of these moments."""
    return np.rint(np.interp(moments, at, gone)).astype(np.int64)
