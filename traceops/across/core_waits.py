"""What each rank's training thread spent in want of a core in the recorded steps, as it told itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traceops.across.machine_use import MachineUse
from traceops.core.step_log import CORE_WAIT_NS, RECORDED
from traceops.traces.observed import Observed

_LEAST_STEPS = 3
_AS_IN_THE_RUN = 1.5  # times as far apart as in the whole run: the recorded steps are no other time


@dataclass(frozen=True)
class CoreWaits:
    """What ranks waited for a core in their recorded steps.

    of_rank: ns by rank and number of the step; ranks that do not tell are left out, as may be those that waited
    nowhere. unfair: by rank the part of that, at most, that the machine does to it more than to its peers; 1 where
    it is left out. fair_ns: by rank what it waits more than its peers, a step, because it computes more than they do.
    """

    of_rank: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    unfair: Mapping[int, float] = field(default_factory=dict)
    fair_ns: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedWait:
    """What a rank wanted for a core in its recorded steps: ms a step, and percent of their time.

    beside_pct: the same without the step in which it waited longest. One such step is an event, and no lack of cores.
    """

    ms: float
    pct: float
    beside_pct: float


def core_waits(observed: Sequence[Observed]) -> CoreWaits:
    """As they told it themselves."""
    found = {}
    for one in observed:
        waits = (one.steps["core_wait"] > 0) | one.core_waits
        recorded = np.flatnonzero(((one.steps["flags"] & RECORDED) > 0) & waits)
        waited = one.steps["core_wait"].astype(np.int64) * CORE_WAIT_NS
        if len(recorded):
            found[one.rank] = {one.first + int(at): int(waited[at]) for at in recorded}
    return CoreWaits(found)


def unfair_waits(observed: Sequence[Observed], uses: Sequence[MachineUse]) -> CoreWaits:
    """`core_waits`, with the part that no rank waits because it works more than its peers, on cores as full as theirs.

    A rank that computes while the others sleep in a collective wants a core more often, and so waits more often for
    one. Only a rank that is refused one more often than its peers is held up by the machine more than they are. Where
    ranks are farther apart in the recorded steps than in the run, or nobody saw the peers, all of the waiting stays.
    """
    refused = {one.rank: one.crowded_pct for one in uses if one.crowded_pct is not None}
    of_run = {one.rank: one.waited_pct for one in uses if one.waited_pct is not None}
    of_window = recorded_waits(observed)
    waits, parts, fair = core_waits(observed), dict[int, float](), dict[int, float]()
    for rank in waits.of_rank:
        peers = [other for other in refused if other != rank and other in of_run]
        if peers and rank in refused and rank in of_run and rank in of_window:
            window = of_window[rank].pct - _middle(
                [of_window[peer].pct if peer in of_window else 0.0 for peer in peers]
            )
            run = of_run[rank] - _middle([of_run[peer] for peer in peers])
            if window <= _AS_IN_THE_RUN * run:
                others_pct = _middle([refused[peer] for peer in peers])
                parts[rank] = _beyond(refused[rank], others_pct)
                computes = {one: _computes(of_run[one], refused[one]) for one in (rank, *peers)}
                more = max(computes[rank] - _middle([computes[peer] for peer in peers]), 0.0)
                took_ms = 100 * of_window[rank].ms / of_window[rank].pct
                fair[rank] = 1e6 * took_ms * more / 100 * _ratio(others_pct)
    return replace(waits, unfair=parts, fair_ns=fair)


def _computes(waited_pct: float, refused_pct: float) -> float:
    """Percent of the time in which a thread has a core, by how long and how often it has none when it wants one."""
    return waited_pct / _ratio(refused_pct) if refused_pct else 0.0


def _ratio(refused_pct: float) -> float:
    """What a thread waits for a core over what it has one for."""
    return refused_pct / max(100 - refused_pct, 1.0)


def _middle(values: Sequence[float]) -> float:
    return float(np.median(values))


def _beyond(refused_pct: float, peers_pct: float) -> float:
    """The part of a rank's waiting that it would not have where it is refused a core as often as its peers."""
    own, other = _ratio(refused_pct), _ratio(peers_pct)
    return max(1 - other / own, 0.0) if own else 0.0


def recorded_waits(observed: Sequence[Observed]) -> dict[int, RecordedWait]:
    """By rank; ranks that waited nowhere, or do not tell, are left out, as are those with fewer than three steps."""
    found = {}
    for one in observed:
        recorded = one.steps[(one.steps["flags"] & RECORDED) > 0]
        waited_us = recorded["core_wait"] * (CORE_WAIT_NS / 1e3)
        took_us = recorded["host_us"].astype(float)
        if len(recorded) >= _LEAST_STEPS and waited_us.any() and took_us.any():
            others = np.arange(len(recorded)) != waited_us.argmax()
            found[one.rank] = RecordedWait(
                float(waited_us.mean()) / 1e3,
                _percent(waited_us, took_us),
                _percent(waited_us[others], took_us[others]),
            )
    return found


def _percent(waited_us: NDArray[np.float64], took_us: NDArray[np.float64]) -> float:
    return min(100 * float(waited_us.sum()) / max(float(took_us.sum()), 1.0), 100.0)


def beyond_peers(waits: CoreWaits, rank: int, peers: Sequence[int], steps: Sequence[int]) -> NDArray[np.float64]:
    """What a rank wants for a core in each step beyond its median peer, ns: that part of its lateness is no own.

    Never more than it is held up by the machine more than they are; what they wait counts in full. Nor less than all
    but what it waits more because it computes more: of ranks with as much work, the one without a core is not late.
    """

    def of(one: int) -> list[int]:
        return [waits.of_rank.get(one, {}).get(step, 0) for step in steps]

    others = np.median([of(peer) for peer in peers], axis=0) if peers else np.zeros(len(steps))
    own = np.array(of(rank), dtype=float)
    most = waits.unfair.get(rank, 1.0) * own
    if rank in waits.fair_ns:
        most = np.maximum(most, own - others - waits.fair_ns[rank])
    more: NDArray[np.float64] = np.clip(own - others, 0.0, most)
    return more
