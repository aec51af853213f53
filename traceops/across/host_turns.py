"""Hosts that are late by turns: of hosts alike, now the one is the latest and now the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from traceops.across.light_window import LightLook


@dataclass(frozen=True)
class HostTurns:
    """Two light windows in which another rank's device has the least to do. steps: the first and the last of each."""

    rank: int
    steps: tuple[int, int]
    other: int
    other_steps: tuple[int, int]


def host_turns(looks: Sequence[LightLook], least_ms: float) -> HostTurns | None:
    """The first window and the first later one that says otherwise, by `least_ms` a step each; None without one."""
    for one, other in combinations(looks, 2):
        late, then = _latest(one), _latest(other)
        if late is None or then is None:
            continue
        if min(one.idle_ms[late] - one.idle_ms[then], other.idle_ms[then] - other.idle_ms[late]) >= least_ms > 0:
            return HostTurns(late, one.steps, then, other.steps)
    return None


def _latest(look: LightLook) -> int | None:
    """The rank whose device is idle for longest; None without ranks."""
    return max(look.idle_ms, key=lambda rank: (look.idle_ms[rank], -rank), default=None)
