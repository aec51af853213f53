"""Who shares work shares its launches: hosts of ranks that launch more than their peers, and what each has then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceops.across.replay.graph import WORK, Label, RankNodes, StepGraph
from traceops.across.replay.places import step_of
from traceops.core.arrays import Int
from traceops.measure.program import NEVER

_MORE = 1.1  # times as many kernels in a step: then its host needs longer for what it has more to do


_GAPS = [WORK.index("idle_host"), WORK.index("masked")]

_Shift = tuple[Int, Int]  # moments in rising order, and by how much later what comes then is, ns


@dataclass(frozen=True)
class HostShift:
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

    Elsewhere a host that takes longer is late for a reason of its own, which stays.
    """
    rest = [rank for rank in role if rank not in more]
    if not rest or any(rank not in graph.kernels for rank in role):
        return {}
    usual = np.median([graph.kernels[rank] for rank in rest], axis=0)
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
        if later[rank].any()
    }


def _launched(nodes: RankNodes) -> dict[Label, int]:
    """The nodes whose launch is known, by label."""
    return {label: node for node, label in enumerate(nodes.labels) if nodes.host[node] > NEVER}


def _shared(
    moments: Mapping[int, Int], where: Mapping[int, NDArray[np.bool_]], rest: Sequence[int]
) -> dict[int, NDArray[np.float64]]:
    """By how much later these moments are where what ranks take longer from one to the next is shared by all."""
    theirs = np.median([np.diff(moments[rank]) for rank in rest], axis=0)
    later = {rank: np.zeros(len(own)) for rank, own in moments.items()}
    for rank, chosen in where.items():
        longer = np.cumsum(np.maximum(np.diff(moments[rank]) - theirs, 0) * chosen)
        later[rank][1:] -= longer
        for own in later.values():
            own[1:] += longer / len(later)
    return later


def _rising(moments: Int, ns: NDArray[np.float64]) -> _Shift:
    order = np.argsort(moments, kind="stable")
    return moments[order], np.rint(ns[order]).astype(np.int64)


def _at(moments: Int, shift: _Shift) -> Int:
    return np.rint(np.interp(moments, *shift)).astype(np.int64)
