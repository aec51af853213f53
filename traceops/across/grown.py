"""What took longer on a rank than on its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.traces.collective import is_annotation

_LEAST_MS = 0.01  # a step: what a kernel or region must have grown by
_MOST = 3


class Grown(Struct, frozen=True):
    """A kernel or a region of the host: ms a step on the rank, and on its median peer."""

    name: str
    ms: float
    peers_ms: float


def grown(run: CrossRank, rank: int, cause: str, beside: Sequence[int] = ()) -> list[Grown]:
    """What grew most on this rank: kernels where the GPU or a copy is the cause, regions where host or input is.

    beside: the peers to compare with, all by default.
    """
    assert run.graph is not None
    by_rank = {times.summary.rank: times for times in run.ranks}
    peers = [by_rank[peer] for peer in beside or run.graph.peers(rank)]
    if cause in ("gpu_compute", "copy"):
        return _most_grown(_kernel_ms(by_rank[rank]), [_kernel_ms(peer) for peer in peers])
    if cause in ("host", "input"):
        return _most_grown(_region_ms(by_rank[rank]), [_region_ms(peer) for peer in peers])
    return []


def _most_grown(own: Mapping[str, float], peers: Sequence[Mapping[str, float]]) -> list[Grown]:
    if not peers:
        return []
    usual = {name: float(np.median([peer.get(name, 0.0) for peer in peers])) for name in own}
    more = [name for name, ms in own.items() if usual[name] < ms]
    most = sorted(more, key=lambda name: usual[name] - own[name])[:_MOST]
    return [Grown(name, own[name], usual[name]) for name in most if own[name] - usual[name] > _LEAST_MS]


def _kernel_ms(times: RankTimes) -> Mapping[str, float]:
    steps = max(len(times.duration), 1)
    return {k.name: k.total_us / 1e3 / steps for k in times.summary.kernels if k.kind != "comm"}


def _region_ms(times: RankTimes) -> Mapping[str, float]:
    steps = max(len(times.duration), 1)
    regions = times.summary.host.regions  # what waits for other ranks is no reason to be late
    return {name: ms / steps for name, ms in regions if not is_annotation(name)}
