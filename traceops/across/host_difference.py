"""What the host of one rank does longer than those of its peers, while they wait for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from traceops.across.run_steps import WholeRun
from traceops.measure.host_places import CodePlace, FunctionTime

_LEAST_PCT = 5.0  # of the typical step
_LEAST_LOOKS = 8
_SIGMAS = 4.0
_WAITED = 0.25  # of what a rank takes longer: the others are seen to wait that much more


@dataclass(frozen=True)
class Longer:
    """A rank spends ms a step in a function, its median peer peers_ms; place: the line that differs most.

    claimed_ms: as much of the difference as its device was idle for, None where that is not known.
    """

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


def longer_on_one(run: WholeRun, late: Collection[int] = ()) -> list[Longer]:
    """Each function in which one rank's host spends longer, most first; none where nobody waits for it.

    late: ranks that the others are known to wait for. Such a rank may itself wait longer, for another one.
    """
    if len(run.host) < 2 or any(not own for own in run.host.values()):
        return []
    waiting = {rank: sum(one.ms for one in own if one.waits) for rank, own in run.host.items()}
    found = []
    for rank, own in run.host.items():
        peers = [other for other in run.host if other != rank]
        waited = float(np.median([waiting[other] for other in peers])) - waiting[rank]
        for one in own:
            if one.waits or one.looks < _LEAST_LOOKS:
                continue
            theirs = [_same(run.host[other], one) for other in peers]
            peers_ms = float(np.median([0.0 if other is None else other.ms for other in theirs]))
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
    """What chance alone makes of so few looks, ms a step: each look is one event of a Poisson process."""
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
