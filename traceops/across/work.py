"""A rank's own time, without what it waits for others, and whether it is slower at the same work or has more to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import UNSET, Struct, UnsetType

from traceops.across.replay.graph import WORK, StepGraph, Steps
from traceops.across.roles import kind_of
from traceops.core.arrays import Int, median
from traceops.core.findings import ComputesLonger
from traceops.measure.inventory import KernelStats
from traceops.measure.program import NEVER
from traceops.measure.summary import RankSummary

MORE = 1.05  # times the peers' blocks, launches or bytes: more work
_SLOWER = 1.10  # times the peers' time for the same launches of the same blocks: a slower device
_MOST_EXTRA = 0.6  # of what it computes longer: kernels its peers do not have, that make it extra work
_EXPLAINS = 0.5  # of what it computes longer: what its share of the work must explain
_SCALES = 0.05  # of what it computes longer: growth of kernels whose blocks tell the work
_FAR = 4.0  # times what it computes longer: so many blocks would cost more than that if all its work were as much
_ALIKE = 0.9  # of the peers' time: kernels that the rank has too
_FEW = 0.25  # of the peers' time: what is launched more often is a part of the step, not a share of its work


class WorkCompared(Struct, frozen=True):
    """A rank's computation beside its median peer's, a step. `kind` is why it computes longer, UNSET where the traces
    do not tell. `alone_ms` is what it computes longer in kernels that no peer runs. `work` is how much more it has to
    do: the largest of the ratios of blocks, launches and elements that speak for it; 1 where none does. `speed` is its
    time for launches that are the same on its peers over theirs, None where there are none."""

    kind: ComputesLonger | UnsetType
    alone_ms: float
    work: float
    speed: float | None


def compare_work(own: RankSummary, peers: Sequence[RankSummary]) -> WorkCompared:
    """Compare a rank with its median peer by kernels, their launches and blocks, and bytes it exchanges. Kernels whose
    grid is as large as the device whatever they compute (persistent ones) say nothing of how much work they have; the
    others and the bytes do. Time is called slower where nothing speaks for more work."""
    if not peers:
        return WorkCompared(UNSET, 0.0, 1.0, None)
    peer = sorted(peers, key=lambda other: (_compute_ms(other), other.rank))[len(peers) // 2]
    mine, theirs = _kernels(own), _kernels(peer)
    steps, peer_steps = max(len(own.step_numbers), 1), max(len(peer.step_numbers), 1)
    extra = _compute_ms(own) - _compute_ms(peer)
    alone = sum(k.total_us for name, k in mine.items() if name not in theirs) / 1e3 / steps
    missing = sum(k.total_us for name, k in theirs.items() if name not in mine) / 1e3 / peer_steps
    # Divide the rank's time by its peer's for kernels with equal launches and blocks; None without any.
    same = [
        (mine[name], theirs[name])
        for name in mine.keys() & theirs.keys()
        if mine[name].count * peer_steps == theirs[name].count * steps
        and mine[name].blocks * peer_steps == theirs[name].blocks * steps
    ]
    peer_us = sum(k.total_us for _, k in same) / peer_steps
    speed = sum(k.total_us for k, _ in same) / steps / peer_us if peer_us > 0 else None
    blocks, growth = _blocks_ratio(mine, theirs, steps, peer_steps, extra)
    if growth < _EXPLAINS * extra and (blocks - 1) * _compute_ms(peer) > _FAR * extra:
        blocks = 1.0  # a few kernels have more to do, as where the same work is done by others
    work = max(blocks, _bytes_ratio(own, peer), 1.0)
    repeated, of_peer = _repeated_ms(mine, theirs, steps, peer_steps)
    if extra > 0 and repeated >= _MOST_EXTRA * extra and of_peer <= _FEW * _compute_ms(peer):
        return WorkCompared("more_calls", alone, work, speed)
    return WorkCompared(_kind(extra, alone, missing, work, speed, _compute_ms(peer)), alone, work, speed)


def _repeated_ms(
    mine: Mapping[str, KernelStats], theirs: Mapping[str, KernelStats], steps: int, peer_steps: int
) -> tuple[float, float]:
    """Of kernels launched more often than on the peer, each launch as large: what they take longer, and take there.
    Both ms per step."""
    longer = of_peer = 0.0
    for name in mine.keys() & theirs.keys():
        one, other = mine[name], theirs[name]
        often = one.count * peer_steps / (other.count * steps)
        known = min(one.blocks, other.blocks) > 0
        as_large = not known or one.blocks * other.count <= MORE * other.blocks * one.count
        if often >= MORE and as_large:
            longer += (one.total_us / steps - other.total_us / peer_steps) / 1e3
            of_peer += other.total_us / peer_steps / 1e3
    return longer, of_peer


def _kind(
    extra: float, alone: float, missing: float, work: float, speed: float | None, peer_ms: float
) -> ComputesLonger | UnsetType:
    if extra <= 0:
        return UNSET
    if work >= MORE and (work - 1) * peer_ms >= _EXPLAINS * extra:
        return "more_work"
    # A kernel under another name on the peers is a choice between two for the same work, not work of its own.
    if alone - missing >= _MOST_EXTRA * extra and missing <= (1 - _ALIKE) * peer_ms:
        return "extra_kernels"
    if speed is not None and speed >= _SLOWER:
        return "slower"
    return UNSET


def _kernels(summary: RankSummary) -> dict[str, KernelStats]:
    return {kernel.name: kernel for kernel in summary.kernels if kernel.kind == "compute"}


def _compute_ms(summary: RankSummary) -> float:
    """Time of all compute kernels, ms per step."""
    return sum(k.total_us for k in summary.kernels if k.kind == "compute") / 1e3 / max(len(summary.step_numbers), 1)


def _blocks_ratio(
    mine: Mapping[str, KernelStats], theirs: Mapping[str, KernelStats], steps: int, peer_steps: int, extra: float
) -> tuple[float, float]:
    """How many times the blocks of its peer the rank runs: mean by time over kernels of both that differ in blocks. 1
    where these are too few to say so: a small kernel more on one rank is no share of the work. The second is what these
    kernels take longer, ms per step."""
    ratios, weights, growth = [], [], 0.0
    for name in mine.keys() & theirs.keys():
        one, other = mine[name], theirs[name]
        units, of_peer = (one.blocks, other.blocks) if min(one.blocks, other.blocks) > 0 else (one.count, other.count)
        ratio = (units / steps) / (of_peer / peer_steps)
        grown = one.total_us / steps - other.total_us / peer_steps
        if ratio >= MORE and grown > 0:
            ratios.append(ratio)
            weights.append(one.total_us)
            growth += grown / 1e3
    if growth < max(_SCALES * extra, 1e-9):
        return 1.0, growth
    return float(np.average(ratios, weights=weights)), growth


def _bytes_ratio(own: RankSummary, peer: RankSummary) -> float:
    """How many times the elements of its peer the rank sends or receives in all-to-alls of uneven parts. One side of
    each is what a rank has itself, the other what it gets to work on: the side that differs more counts."""
    mine, theirs = _all_to_alls(own), _all_to_alls(peer)
    if not mine or len(mine) != len(theirs):
        return 1.0
    return float(median([max(a / b for a, b in zip(*both, strict=True)) for both in zip(mine, theirs, strict=True)]))


def _all_to_alls(summary: RankSummary) -> list[tuple[int, int]]:
    """Elements in and out of each all-to-all, in order; those of unknown or no size are left out."""
    return [
        (args.elements_in, args.elements_out)
        for args in summary.comm.args
        if args is not None and args.elements_in and args.elements_out and kind_of(args.op) == "all_to_all"
    ]


_HIDDEN = 1.5  # times its peers' own time: a rank that is hidden behind a cured one, which runs as it does


def far_beyond(
    graph: StepGraph, rank: int, chosen: Sequence[int] = (), times: float = _HIDDEN, but: Sequence[int] = ()
) -> bool:
    """Whether a rank takes far longer than all its peers that are not cured: of even hosts, one is the next slowest.
    but: steps that are left out, where others remain."""
    kept = ~np.isin(graph.steps, but)
    kept |= not np.count_nonzero(kept)
    others = [float(own_steps(graph, peer)[kept].mean()) for peer in graph.peers(rank) if peer not in chosen]
    return bool(others) and float(own_steps(graph, rank)[kept].mean()) >= times * max(others)


def own_time(graph: StepGraph, rank: int) -> Int:
    """Own time of a rank over the window by WORK, ns."""
    nodes = graph.ranks[rank]
    spent: Int = nodes.spent[graph.edges[rank][-1]] - nodes.spent[graph.edges[rank][0]]
    return spent


def own_steps(graph: StepGraph, rank: int, without: Sequence[str] = ()) -> Steps:
    """Own time of a rank in each step: what is left of it without waiting, and `without` some of WORK, ns."""
    if not without:
        return graph.own_steps[rank]
    nodes, edges = graph.ranks[rank], graph.edges[rank]
    gone = nodes.spent[edges][:, [WORK.index(name) for name in without]].sum(axis=1)
    own: Steps = np.diff(nodes.work[edges] - gone).astype(float)
    return own


def loads_longer(graph: StepGraph, rank: int, peers: Sequence[int], least_ns: float) -> bool:
    """Whether this rank's host spends that much more of the window in data loading than its median peer's."""
    own = _loading_ns(graph, rank)
    others = [ns for peer in peers if (ns := _loading_ns(graph, peer)) is not None]
    return own is None or not others or own - median(others) >= least_ns


def _loading_ns(graph: StepGraph, rank: int) -> float | None:
    nodes = graph.ranks[rank]
    known = nodes.host > NEVER
    return float(nodes.host_input[known].max()) if np.count_nonzero(known) else None


def host_ns(graph: StepGraph, rank: int) -> float | None:
    """The host's own time over the window without data loading, ns; None where launches are not known."""
    nodes = graph.ranks[rank]
    known = (nodes.host > NEVER).nonzero()[0]
    if len(known) < 2:
        return None
    own = (nodes.host - nodes.host_input)[known]
    return float(own.max() - own.min())
