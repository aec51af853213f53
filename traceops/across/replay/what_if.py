"""What a change would buy: the steps replayed with one thing different at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traceops.across.replay.graph import StepGraph
from traceops.across.replay.simulate import Scenario, SimulatedSteps, measured_step_ns, simulate
from traceops.core.arrays import Int

Steps = NDArray[np.float64]
MOST_ERROR = 0.05  # mean over steps, beyond which nothing is concluded from a replay
HOST = ("idle_host", "idle_sync", "masked")
LOADING = ("idle_input",)


@dataclass(frozen=True)
class Prediction:
    """One change, the ranks it is made on (none: all), and the step times it leads to, ns."""

    change: str
    ranks: tuple[int, ...]
    step_ns: Steps


@dataclass(frozen=True)
class WhatIf:
    """Replayed steps (ns) as measured and under each change, most time saved first.

    `measured_ns` is what the traces hold, and `error_pct` how far the replay is from it at most.
    """

    measured_ns: Steps
    replayed_ns: Steps
    predictions: tuple[Prediction, ...]

    @property
    def error_pct(self) -> float:
        """Largest error of a replayed step against the measured one, percent."""
        return float(np.max(100.0 * np.abs(self.replayed_ns - self.measured_ns) / self.measured_ns))

    @property
    def holds(self) -> bool:
        """Whether the replay reproduces the measured steps well enough to predict others."""
        error = np.abs(self.replayed_ns - self.measured_ns) / self.measured_ns
        return float(error.mean()) <= MOST_ERROR

    def saved_ns(self, change: str, ranks: Sequence[int] = ()) -> float | None:
        """Mean saving a step of a change that was tried, ns; None if it was not, or if the replay does not hold."""
        if not self.holds:
            return None
        for prediction in self.predictions:
            if prediction.change == change and (not ranks or prediction.ranks == tuple(ranks)):
                return float((self.replayed_ns - prediction.step_ns).mean())
        return None

    def with_more(self, predictions: Sequence[Prediction]) -> WhatIf:
        """The same with other predictions among them."""
        made = sorted((*self.predictions, *predictions), key=lambda p: (float(p.step_ns.mean()), p.change))
        return replace(self, predictions=tuple(made))

    @property
    def slowdown(self) -> float | None:
        """The whole job's straggler slowdown S: the step over the step if all ranks were equal."""
        saved = self.saved_ns(ALL_EQUAL)
        if saved is None:
            return None
        mean = float(self.replayed_ns.mean())
        return mean / max(mean - saved, 1.0)


ALL_EQUAL = "all ranks as their median"
NO_COMMUNICATION = "communication free"
REFERENCE = "reference bandwidth"
NO_LOADING = "input free"
HOST_IN_TIME = "host never late"


def rank_change(ranks: Sequence[int]) -> str:
    """The name of the change that makes ranks as fast as their peers."""
    listed = ", ".join(map(str, ranks))
    return f"ranks {listed} as their peers" if len(ranks) > 1 else f"rank {listed} as its peers"


class Replays:
    """Replays of one graph, each made once however often it is asked for."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self._made: dict[tuple[int, ...], SimulatedSteps | None] = {}

    @cached_property
    def base(self) -> SimulatedSteps:
        """As measured."""
        return simulate(self.graph)

    def cured(self, ranks: Sequence[int]) -> SimulatedSteps | None:
        """With these ranks running as their peers do; None where one has no peer outside the set."""
        if not ranks:
            return self.base
        key = tuple(sorted(ranks))
        if key not in self._made:
            change = cure(self.graph, key)
            self._made[key] = None if change is None else simulate(self.graph, change)
        return self._made[key]


def measure_what_if(
    replays: Replays, rank_sets: Sequence[tuple[int, ...]], reference_ns: Int | None
) -> WhatIf:
    """Replay the changes that are always of interest, and each of `rank_sets` run as their peers do.

    `reference_ns` is each collective's transfer at the bandwidth its link should give, None where nothing
    is known of the link.
    """
    graph = replays.graph
    changes = {
        NO_COMMUNICATION: Scenario(transfer=graph.transfer * 0),
        NO_LOADING: Scenario(without=LOADING),
        HOST_IN_TIME: Scenario(without=HOST),
    }
    if reference_ns is not None:
        changes[REFERENCE] = Scenario(transfer=np.minimum(graph.transfer, reference_ns))
    median_of = {role: _faster_median(graph, role) for role in set(graph.roles.values()) if len(role) > 1}
    medians = {rank: median_of[role] for rank, role in graph.roles.items() if role in median_of}
    if medians:
        changes[ALL_EQUAL] = Scenario(program_of=medians)
    made = [Prediction(name, (), simulate(graph, change).step_ns()) for name, change in changes.items()]
    for ranks in rank_sets:
        replay = replays.cured(ranks)
        if replay is not None:
            made.append(Prediction(rank_change(ranks), tuple(ranks), replay.step_ns()))
    made.sort(key=lambda prediction: (float(prediction.step_ns.mean()), prediction.change))
    return WhatIf(measured_step_ns(graph), replays.base.step_ns(), tuple(made))


def cure(graph: StepGraph, ranks: Sequence[int]) -> Scenario | None:
    """These ranks run as their median peer outside the set does; None where one has no such peer."""
    program_of = {}
    for rank in ranks:
        peer = median_peer(graph, rank, ranks)
        if peer is None:
            return None
        program_of[rank] = peer
    return Scenario(program_of=program_of)


def median_peer(graph: StepGraph, rank: int, excluded: Sequence[int]) -> int | None:
    """The peer of `rank` outside `excluded` with the median own time; of two the slower one."""
    peers = [peer for peer in graph.peers(rank) if peer not in excluded]
    return median_rank(graph, peers) if peers else None


def median_rank(graph: StepGraph, ranks: Sequence[int]) -> int:
    """The rank with the median own time over the window; of two the slower one."""
    ordered = sorted(ranks, key=lambda rank: (_own_ns(graph, rank), rank))
    return ordered[len(ordered) // 2]


def _faster_median(graph: StepGraph, ranks: Sequence[int]) -> int:
    """As median_rank, of two the faster one: where half of the ranks are late, the others set the pace."""
    ordered = sorted(ranks, key=lambda rank: (_own_ns(graph, rank), rank))
    return ordered[(len(ordered) - 1) // 2]


def _own_ns(graph: StepGraph, rank: int) -> int:
    nodes = graph.ranks[rank]
    return int(nodes.work[-1] - nodes.work[nodes.first_edge])
