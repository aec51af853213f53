"""What the host of one rank does for longer than those of its peers, while they wait for it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.across.rank_times import RankTimes
from traceops.across.run_steps import WholeRun
from traceops.across.stragglers import Straggler
from traceops.core.arrays import median
from traceops.measure.host_places import LEAST_PCT, CodePlace, FunctionTime
from traceops.measure.summary import RankSummary
from traceops.traces.model import LEAST_FRAME_NS

_HASH = re.compile(r"\b[a-z0-9]{40,}\b")  # of a compiled graph: each rank has its own
_LEAST_PCT = 5.0  # of the typical step
_LEAST_LOOKS = 8
_SIGMAS = 4.0
_WAITED = 0.25  # of what a rank takes longer: the others are seen to wait that much more


class Longer(Struct, frozen=True):
    """A rank spends ms per step in a function, its median peer peers_ms; place: the line that differs most. claimed_ms:
    as much of the difference as its device was idle for, None where that is not known."""

    rank: int
    place: CodePlace
    ms: float
    peers_ms: float
    looks: int
    does: str | None
    claimed_ms: float | None = None

    @property
    def more_ms(self) -> float:
        return self.ms - self.peers_ms

    @property
    def costs_ms(self) -> float:
        """As much of the difference as is claimed to cost time: all, where nothing limits it."""
        return self.more_ms if self.claimed_ms is None else self.claimed_ms


def longer_on_one(run: WholeRun, late: Collection[int] = ()) -> list[Longer]:
    """Each function in which one rank's host spends longer, most first; none where nobody waits for it. late: ranks
    that the others are known to wait for. Such a rank may itself wait longer, for another one."""
    if len(run.host) < 2 or not all(run.host.values()):
        return []
    waiting = {rank: sum(one.ms for one in own if one.waits) for rank, own in run.host.items()}
    found = []
    for rank, own in run.host.items():
        peers = [other for other in run.host if other != rank]
        waited = median([waiting[other] for other in peers]) - waiting[rank]
        for one in own:
            if one.waits or one.looks < _LEAST_LOOKS:
                continue
            theirs = [_same(run.host[other], one) for other in peers]
            peers_ms = median([0.0 if other is None else other.ms for other in theirs])
            more = one.ms - peers_ms
            if more < _LEAST_PCT / 100 * run.typical_ms or (waited < _WAITED * more and rank not in late):
                continue
            if more < _SIGMAS * _spread_ms(run, rank, one, theirs):
                continue
            found.append(Longer(rank, _line(one, theirs), one.ms, peers_ms, one.looks, one.does))
    return sorted(found, key=lambda one: (-one.more_ms, one.rank))


def _same(times: Sequence[FunctionTime], one: FunctionTime) -> FunctionTime | None:
    return next((other for other in times if other.key == one.key and other.waits == one.waits), None)


def _spread_ms(run: WholeRun, rank: int, one: FunctionTime, theirs: Sequence[FunctionTime | None]) -> float:
    """What chance alone makes of so few looks, ms per step: each look is one event of a Poisson process."""
    each = one.ms / one.looks
    other = max((peer.ms / peer.looks * np.sqrt(peer.looks) for peer in theirs if peer is not None), default=0.0)
    return float(np.hypot(each * np.sqrt(one.looks), max(other, each)))


def _line(one: FunctionTime, theirs: Sequence[FunctionTime | None]) -> CodePlace:
    """The line of the function on which the rank spends most beyond its peers."""
    of_peers: dict[int, list[float]] = {}
    for peer in theirs:
        for place, ms in peer.lines if peer is not None else ():
            of_peers.setdefault(place.line, []).append(ms)
    beyond = {place: ms - (sum(of_peers.get(place.line, ())) / max(len(theirs), 1)) for place, ms in one.lines}
    return max(beyond, key=lambda place: beyond[place])


# The function that the host of a late rank is in longer than its peers' hosts, by the stacks of their traces.

_LEAST_SHARE = 0.2  # of what the others wait for a rank: of less than that nothing is said
_LEAST_CALL_NS = 4 * LEAST_FRAME_NS  # shorter calls may be as many on a peer, just too short to be kept
_EXPLAINS = 0.5  # of the same: as much is the cause, where no other is as large


class LongerInFunction(Struct, frozen=True):
    """A late rank's host is `ms` a step in a function, its median peer's peers_ms. unseen_ms: what a peer's may be at
    most without being kept, in as many calls. idle_ms: of that, beyond its peers', its device had nothing to run.
    share: idle_ms or what is longer, if that is less, of what the others wait for the rank."""

    rank: int
    said: str
    ms: float
    peers_ms: float
    unseen_ms: float
    idle_ms: float
    share: float


def longer_in_function(run: CrossRank, straggler: Straggler, *, sometimes: bool) -> LongerInFunction | None:
    """The function that explains most of the lateness of a rank; None where stacks show none that explains a fifth.
    sometimes: it is late in some steps only, and these are looked at."""
    if run.replay is None or len(run.ranks) < 2:
        return None
    ranks = {times.summary.rank: times.summary for times in run.ranks}
    own, peers = ranks[straggler.rank], [ranks[peer] for peer in run.replay.graph.peers(straggler.rank)]
    every = set(run.replay.lateness.steps)
    steps: Collection[int] = straggler.late_steps if sometimes else every - set(run.unlike) or every
    at = np.isin(run.replay.lateness.steps, list(steps))
    if not own.stacks or not peers or not all(peer.stacks for peer in peers) or not np.count_nonzero(at):
        return None
    waiting = float(run.replay.lateness.caused[straggler.rank].sum(axis=0)[at].mean()) / 1e6 / (len(run.ranks) - 1)
    if waiting <= 0:
        return None
    theirs = [_by_function(peer, steps) for peer in peers]
    calls = {one.key: one.call_ns for one in own.stacks}
    found = []
    for key, (said, ms, idle_ms) in _by_function(own, steps).items():
        if calls[key] < _LEAST_CALL_NS:
            continue
        usual = median([peer[key][1:] if key in peer else (0.0, 0.0) for peer in theirs], axis=0)
        share = min(ms - float(usual[0]), idle_ms - float(usual[1])) / waiting
        if share >= _LEAST_SHARE:
            more_idle, often = idle_ms - float(usual[1]), ms * 1e6 / calls[key]
            unseen = (often * LEAST_FRAME_NS / 1e6) + LEAST_PCT / 100 * run.step_ms
            found.append(
                LongerInFunction(straggler.rank, said, ms, float(usual[0]), unseen, more_idle, min(share, 1.0))
            )
    return max(found, key=lambda one: (one.share, one.ms), default=None)


def with_cause(run: CrossRank, straggler: Straggler, *, sometimes: bool) -> str:
    """The straggler's cause: its host, where no single cause was found and a function explains half of the lateness."""
    most = max(straggler.caused, key=lambda cause: straggler.caused[cause])
    if straggler.cause != "unknown" or most != "host" or straggler.rank in run.hosts_slower:
        return straggler.cause
    one = longer_in_function(run, straggler, sometimes=sometimes)
    return "host" if one is not None and one.share >= _EXPLAINS else straggler.cause


def _by_function(rank: RankSummary, steps: Collection[int]) -> dict[tuple[str, str, int], tuple[str, float, float]]:
    """How each function is said, ms per step in it, and ms of that in which the device had nothing to run."""
    chosen = np.isin(rank.step_numbers, list(steps))
    found: dict[tuple[str, str, int], tuple[str, float, float]] = {}
    for one in rank.stacks:
        if one.waits or not np.count_nonzero(chosen):
            continue
        _, ms, idle_ms = found.get(one.key, ("", 0.0, 0.0))
        ms += float(one.host_ns[chosen].mean()) / 1e6
        idle_ms += float(one.idle_ns.sum(axis=0)[chosen].mean()) / 1e6
        found[one.key] = (one.said, ms, idle_ms)
    return found


_LEAST_MS = 0.01  # a step: what a kernel or region must have grown by
_MOST = 3


class Grown(Struct, frozen=True):
    """A kernel or a region of the host: ms per step on the rank, and on its median peer."""

    name: str
    ms: float
    peers_ms: float


def grown(run: CrossRank, rank: int, cause: str, beside: Sequence[int] = ()) -> list[Grown]:
    """What grew most on this rank: kernels where the GPU or a copy is the cause, regions where host or input is, which
    explain some of the waiting for it. beside: the peers to compare with, all by default."""
    assert run.replay is not None
    by_rank = {times.summary.rank: times for times in run.ranks}
    by_device = cause in ("gpu_compute", "copy")
    compared = [rank, *(beside or run.replay.graph.peers(rank))]
    if len(compared) < 2 or not (by_device or cause in ("host", "input")):
        return []
    own, *peers = ((_kernel_ms if by_device else _region_ms)(by_rank[one]) for one in compared)
    usual = {name: float(median([peer.get(name, 0.0) for peer in peers])) for name in own}
    most = sorted(own, key=lambda name: usual[name] - own[name])[:_MOST]
    waiting = float(run.replay.lateness.caused[rank].sum(axis=0).mean()) / 1e6 / (len(run.ranks) - 1)
    least = max(_LEAST_SHARE * (own[most[0]] - usual[most[0]] if by_device and most else waiting), _LEAST_MS)
    return [Grown(name, own[name], usual[name]) for name in most if own[name] - usual[name] > least]


def _kernel_ms(times: RankTimes) -> Mapping[str, float]:
    steps = max(len(times.duration), 1)
    return {k.name: k.total_us / 1e3 / steps for k in times.summary.kernels if k.kind != "comm"}


def _region_ms(times: RankTimes) -> Mapping[str, float]:
    steps = max(len(times.duration), 1)
    total = defaultdict[str, float](float)
    for name, ms in times.summary.host.regions:
        total[_HASH.sub("…", name)] += ms / steps
    return total
