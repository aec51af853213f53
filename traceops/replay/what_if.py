"""What a change would buy: the steps replayed with one thing different at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceops.model import Int
from traceops.replay.graph import Graph
from traceops.replay.simulate import Change, measured_step_ns, simulate

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
        """Mean saving a step of a change that was tried, ns; None if it was not."""
        for prediction in self.predictions:
            if prediction.change == change and (not ranks or prediction.ranks == tuple(ranks)):
                return float((self.replayed_ns - prediction.step_ns).mean())
        return None

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


def measure_what_if(
    graph: Graph,
    rank_sets: Sequence[tuple[int, ...]],
    reference_ns: Int | None,
    measured: Steps | None = None,
) -> WhatIf:
    """Replay the changes that are always of interest, and each of `rank_sets` run as their peers do.

    `reference_ns` is each collective's transfer at the bandwidth its link should give, None where nothing
    is known of the link.
    """
    replayed = simulate(graph).step_ns() if measured is None else measured
    made = [
        Prediction(NO_COMMUNICATION, (), simulate(graph, Change(transfer=graph.transfer * 0)).step_ns()),
        Prediction(NO_LOADING, (), simulate(graph, Change(without=LOADING)).step_ns()),
        Prediction(HOST_IN_TIME, (), simulate(graph, Change(without=HOST)).step_ns()),
    ]
    if reference_ns is not None:
        faster = np.minimum(graph.transfer, reference_ns)
        made.append(Prediction(REFERENCE, (), simulate(graph, Change(transfer=faster)).step_ns()))
    everyone = {rank: chosen for rank in graph.ranks if (chosen := median_peer(graph, rank, ())) is not None}
    if everyone:
        medians = {rank: median_rank(graph, [rank, *graph.peers(rank)]) for rank in everyone}
        made.append(Prediction(ALL_EQUAL, (), simulate(graph, Change(program_of=medians)).step_ns()))
    for ranks in rank_sets:
        steps = step_with_fixed(graph, ranks)
        if steps is not None:
            made.append(Prediction(rank_change(ranks), tuple(ranks), steps))
    made.sort(key=lambda prediction: (float(prediction.step_ns.mean()), prediction.change))
    return WhatIf(measured_step_ns(graph), replayed, tuple(made))


def cure(graph: Graph, ranks: Sequence[int]) -> Change | None:
    """These ranks run as their median peer outside the set does; None where one has no such peer."""
    program_of = {}
    for rank in ranks:
        peer = median_peer(graph, rank, ranks)
        if peer is None:
            return None
        program_of[rank] = peer
    return Change(program_of=program_of)


def step_with_fixed(graph: Graph, ranks: Sequence[int]) -> Steps | None:
    """Step times, ns, if these ranks ran as their median peer outside the set does; None without a peer."""
    change = cure(graph, ranks)
    return None if change is None else simulate(graph, change).step_ns()


def median_peer(graph: Graph, rank: int, excluded: Sequence[int]) -> int | None:
    """The peer of `rank` outside `excluded` with the median own time; of two the slower one."""
    peers = [peer for peer in graph.peers(rank) if peer not in excluded]
    return median_rank(graph, peers) if peers else None


def median_rank(graph: Graph, ranks: Sequence[int]) -> int:
    """The rank with the median own time over the window; of two the slower one."""
    ordered = sorted(ranks, key=lambda rank: (_own_ns(graph, rank), rank))
    return ordered[len(ordered) // 2]


def _own_ns(graph: Graph, rank: int) -> int:
    nodes = graph.ranks[rank]
    return int(nodes.work[-1] - nodes.work[nodes.first_edge])
