"""A rank's program with something changed, its computation, order of nodes or host, and where a program is late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
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
    `spared` is what lies less before each of its nodes if it is there as quick as its peers, `spared_joins` before each
    of its joins, `spared_host` before each node of its host's own time. `more` is what it takes longer by WORK. `most`
    is of the one place where it takes longer by most: what it takes there, and the most that a peer does."""

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
    if not np.count_nonzero(step >= 0):
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
    if not np.count_nonzero(late):
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
    return _Late(labels, where, gone.cumsum(), spent[0], spent[1:], most)


def _points(graph: StepGraph, rank: int) -> _Points:
    """Its nodes, and on a GPU the joins for them in order: on a CPU what calls a collective also waits for it."""
    nodes = graph.ranks[rank]
    found = dict(zip(nodes.labels, nodes.work.tolist(), strict=True))
    if rank in graph.on_cpu:
        return found
    seen: Counter[Label] = Counter()
    for node, moment in zip(nodes.join_node.tolist(), nodes.join_work.tolist(), strict=True):
        label = nodes.labels[node]
        join = (*label, "join", seen[label])
        found[join] = moment
        seen[label] += 1
    return found


def _host(nodes: RankNodes) -> _Points:
    return {label: own for label, own in zip(nodes.labels, nodes.host.tolist(), strict=True) if own > NEVER}


def _more(graph: StepGraph, rank: int, late: _Late) -> dict[str, float]:
    """By WORK, what the rank takes longer than its median peer in these places."""

    def spent(one: int) -> NDArray[np.float64]:
        nodes = graph.ranks[one]
        points = _points(graph, one)
        order = nodes.work.argsort(kind="stable")
        at = np.array([points[label] for label in late.labels], dtype=np.int64)
        moments = [np.interp(at, nodes.work[order], nodes.spent[order, n]) for n in range(len(WORK))]
        return np.array([(own[1:] - own[:-1])[late.where].sum() for own in moments])

    usual = median([spent(peer) for peer in graph.peers(rank)], axis=0)
    return dict(zip(WORK, (spent(rank) - usual).tolist(), strict=True))


def _before(moments: Int, at: Int, gone: Int) -> Int:
    """What is gone before each of these moments."""
    return np.rint(np.interp(moments, at, gone)).astype(np.int64)


def recomputed(nodes: RankNodes, compute: Int) -> RankNodes:
    """The program with other times of compute before its nodes. Kernels that take longer are launched as before. So a
    gap in which the device had nothing launched closes by as much as it is behind by then; the launches alone say when
    it opens. Where launches are not known the gaps stay."""
    column = WORK.index("compute")
    own = nodes.spent[:, column]
    order = own.argsort(kind="stable")
    joined = np.interp(nodes.join_spent[:, column], own[order], compute[order]).astype(np.int64)
    late = [WORK.index("idle_host"), WORK.index("masked")]
    known = bool(np.count_nonzero(nodes.host > NEVER))
    waited = np.interp(nodes.waits.spent[:, column], own[order], compute[order]).astype(np.int64)
    gaps, joined_gaps, waited_gaps = (
        spent[:, late].sum(axis=1) * known for spent in (nodes.spent, nodes.join_spent, nodes.waits.spent)
    )
    moment = np.concatenate((nodes.joined_at, nodes.waits.stands_at, nodes.stands_at))
    behind = _behind(
        moment.argsort(kind="stable"),
        np.concatenate((joined - nodes.join_spent[:, column], waited - nodes.waits.spent[:, column], compute - own)),
        np.concatenate((joined_gaps, waited_gaps, gaps)),
    )
    joins, waits = len(nodes.join_work), len(nodes.waits.work)
    return replace(
        nodes,
        work=nodes.work + behind[joins + waits :],
        join_work=nodes.join_work + behind[:joins],
        waits=replace(nodes.waits, work=nodes.waits.work + behind[joins : joins + waits]),
    )


def _behind(order: Int, more: Int, gaps: Int) -> Int:
    """How much later a device is at each of these moments: it takes `more` before them, and `gaps` close by that."""
    later, before_more, before_gaps = 0, 0, 0
    behind = np.zeros(len(order), dtype=np.int64)
    more_by, gaps_by = more[order].tolist(), gaps[order].tolist()
    for at, (place, longer, gap) in enumerate(zip(order.tolist(), more_by, gaps_by, strict=True)):
        later += longer - before_more if at else 0
        later -= min(max(gap - before_gaps, 0), max(later, 0)) if at else 0
        before_more, before_gaps = longer, gap
        behind[place] = later
    return behind


def spared(nodes: RankNodes, places: LatePlaces) -> RankNodes:
    """The program without what it takes longer in these places."""
    return replace(
        nodes,
        work=nodes.work - places.spared,
        standing=nodes.standing - places.spared,
        join_work=nodes.join_work - places.spared_joins,
        host=np.where(nodes.host > NEVER, nodes.host - places.spared_host, NEVER),
        waits=replace(
            nodes.waits,
            work=nodes.waits.work - _like(nodes.work, places.spared, nodes.waits.work),
            host=nodes.waits.host - _like(nodes.host, places.spared_host, nodes.waits.host),
        ),
    )


def _like(moments: Int, gone: Int, others: Int) -> Int:
    """What is gone before other moments, where `gone` is before these."""
    order = moments.argsort(kind="stable")
    return np.rint(np.interp(others, moments[order], gone[order])).astype(np.int64)


def unslowed(nodes: RankNodes, part: float) -> RankNodes:
    """The program without this part of what it took longer beside communication that waited: its kernels, and its host
    in the allocator."""
    first = int(nodes.longer[nodes.first_edge])
    gone, joined, waited = (
        np.rint(part * (longer - first)).astype(np.int64)
        for longer in (nodes.longer, nodes.join_longer, nodes.waits.longer)
    )
    return replace(
        nodes,
        work=nodes.work - gone,
        join_work=nodes.join_work - joined,
        waits=replace(nodes.waits, work=nodes.waits.work - waited),
    )


def relabelled(source: RankNodes, target: RankNodes) -> RankNodes:
    """The program of `source` with its nodes in the order of `target`. A node that only the target has begins with the
    one before it; a join for one that only the source has goes."""
    if source.labels == target.labels:
        return source
    at = {label: node for node, label in enumerate(source.labels)}
    same = np.array([at.get(label, -1) for label in target.labels], dtype=np.int64)
    known = (same >= 0).nonzero()[0]
    before = np.maximum(known.searchsorted(np.arange(len(same)), side="right") - 1, 0)
    take = same[known[before]]
    to = np.full(len(source.labels), -1, dtype=np.int64)
    to[same[known]] = known
    after = source.after[take]
    return replace(
        source,
        labels=target.labels,
        first_edge=target.first_edge,
        work=source.work[take],
        delay=np.where(same >= 0, source.delay[take], 0),
        after=np.where((same >= 0) & (after >= 0), to[after], -1),
        stands_at=source.stands_at[take],
        standing=source.standing[take],
        join_node=to[source.join_node],
        host=source.host[take],
        host_input=source.host_input[take],
        waits_before=source.waits_before[take],
        spent=source.spent[take],
        slowed=source.slowed[take],
        longer=source.longer[take],
        begin=source.begin[take],
        end=source.end[take],
    )


_MORE = 1.1  # times as many kernels in a step: then its host needs longer for what it has more to do

_GAPS = [WORK.index("idle_host"), WORK.index("masked")]

_Shift = tuple[Int, Int]  # moments in rising order, and by how much later what comes then is, ns


class HostShift(Struct, frozen=True):
    """By how much later a host is, in its own time, and its rank, because its device has nothing to run meanwhile."""

    host: _Shift
    own: _Shift

    def of(self, nodes: RankNodes) -> RankNodes:
        """The program with this host."""
        host, waits = nodes.host, nodes.waits
        return replace(
            nodes,
            host=np.where(host > NEVER, host + _at(host, self.host), host),
            work=nodes.work + _at(nodes.work, self.own),
            join_work=nodes.join_work + _at(nodes.join_work, self.own),
            waits=replace(
                waits, host=waits.host + _at(waits.host, self.host), work=waits.work + _at(waits.work, self.own)
            ),
        )


def shared_hosts(graph: StepGraph, role: Sequence[int], more: Sequence[int]) -> Mapping[int, HostShift]:
    """What these ranks' hosts take longer than their peers' in steps in which they launch more, shared by the role.
    Elsewhere a host that takes longer is late for a reason of its own, which stays."""
    rest = [rank for rank in role if rank not in more]
    if not rest or any(rank not in graph.kernels for rank in role):
        return {}
    usual = median([graph.kernels[rank] for rank in rest], axis=0)
    most = {rank: graph.kernels[rank] >= _MORE * usual for rank in more}
    at = {rank: _launched(graph.ranks[rank]) for rank in role}
    first = at[rest[0]]
    common = set.intersection(*(set(own) for own in at.values()))
    labels = sorted(common, key=lambda label: int(graph.ranks[rest[0]].host[first[label]]))
    if len(labels) < 2 or not any(own.any() for own in most.values()):
        return {}
    index = {number: place for place, number in enumerate(graph.steps)}
    step = np.array([step_of(label, index, len(index)) for label in labels[1:]], dtype=np.int64)
    where = {rank: own[step] & (step >= 0) for rank, own in most.items()}
    nodes = {rank: np.array([at[rank][label] for label in labels], dtype=np.int64) for rank in role}
    own = {rank: graph.ranks[rank] for rank in role}
    hosts = {rank: own[rank].host[nodes[rank]] for rank in role}
    gaps = {rank: own[rank].spent[nodes[rank]][:, _GAPS].sum(axis=1) for rank in role}
    later, idle = _shared(hosts, where, rest), _shared(gaps, where, rest)
    return {
        rank: HostShift(_rising(hosts[rank], later[rank]), _rising(own[rank].work[nodes[rank]], idle[rank]))
        for rank in role
        if np.count_nonzero(later[rank])
    }


def _launched(nodes: RankNodes) -> dict[Label, int]:
    """The nodes whose launch is known, by label."""
    return {label: node for node, label in enumerate(nodes.labels) if nodes.host[node] > NEVER}


def _shared(
    moments: Mapping[int, Int], where: Mapping[int, NDArray[np.bool_]], rest: Sequence[int]
) -> dict[int, NDArray[np.float64]]:
    """By how much later these moments are where what ranks take longer from one to the next is shared by all."""
    theirs = median([np.diff(moments[rank]) for rank in rest], axis=0)
    later = {rank: np.zeros(len(own)) for rank, own in moments.items()}
    for rank, chosen in where.items():
        longer = (np.maximum(np.diff(moments[rank]) - theirs, 0) * chosen).cumsum()
        later[rank][1:] -= longer
        for own in later.values():
            own[1:] += longer / len(later)
    return later


def _rising(moments: Int, ns: NDArray[np.float64]) -> _Shift:
    order = moments.argsort(kind="stable")
    return moments[order], np.rint(ns[order]).astype(np.int64)


def _at(moments: Int, shift: _Shift) -> Int:
    return np.rint(np.interp(moments, *shift)).astype(np.int64)
