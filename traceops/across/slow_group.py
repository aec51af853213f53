"""TO-S003: many ranks that are slower than the others alike, of which none alone is to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from traceops.across.lateness import CAUSE_OF, CAUSES, Lateness
from traceops.across.replay.graph import WORK, StepGraph
from traceops.across.replay.simulate import Scenario, simulate
from traceops.across.replay.what_if import Replays, median_rank, shared_work
from traceops.across.stragglers import LATE_STEP, chance
from traceops.across.work import WorkCompared, compare_work
from traceops.measure.summary import RankSummary

LEAST_RANKS = 4  # fewer are stragglers each
_GAP = 2.0  # times what the other ranks' slowest is beyond their median: how far the group is beyond that slowest
_COVERS = 0.80  # of what they take longer: what a cause must explain to be named

Steps = NDArray[np.float64]


@dataclass(frozen=True)
class SlowGroup:
    """Ranks of one program whose own time lies apart from that of all others, `peers`. Times in ns.

    `middle` is the one with the median own time. `longer` is what it takes longer than the peers' median in each step,
    `each` the same of every rank of the group,
    `saved` what each step gains if all of the group are cured: as their median peer, or, where they have more to
    do (`compared`), with the work shared evenly. `waited` is what a peer waits, a step; `share` the part of all
    waiting that is for the group. `late` are the steps in which the group is slower. See Straggler for `chance`.
    """

    ranks: tuple[int, ...]
    peers: tuple[int, ...]
    middle: int
    longer: Steps
    each: tuple[Steps, ...]
    saved: Steps
    waited: float
    share: float
    cause: str
    compared: WorkCompared | None
    late: tuple[int, ...]
    chance: float


def measure_slow_group(
    replays: Replays, lateness: Lateness, summaries: Sequence[RankSummary]
) -> SlowGroup | None:
    """The group that costs most, at most half of the ranks of its program; None where all are like each other."""
    graph = replays.graph
    step = float(replays.base.step_ns().mean())
    found = [
        _measured(replays, lateness, summaries, *apart)
        for role in sorted(set(graph.roles.values()))
        if (apart := apart_ranks({rank: _own(graph, rank) for rank in role}, LATE_STEP * step)) is not None
    ]
    return max(found, key=lambda group: float(group.saved.mean()), default=None)


def apart_ranks(own: dict[int, Steps], least: float) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(the slower ranks, the others), where their own time falls into two with a gap of at least `least` between.

    The gap is twice as wide as the way from the others' median to their slowest; None without one.
    """
    if len(own) < 2 * LEAST_RANKS:
        return None
    ordered = sorted(own, key=lambda rank: (float(own[rank].mean()), rank))
    means = np.array([float(own[rank].mean()) for rank in ordered])
    first = -(-len(ordered) // 2)  # the group is at most half of them
    gaps = np.diff(means)[first - 1 : len(ordered) - LEAST_RANKS]
    if not len(gaps):
        return None
    at = first + int(gaps.argmax())
    slowest, usual = float(means[at - 1]), float(np.median(means[:at]))
    if means[at] - slowest < max(least, _GAP * (slowest - usual)):
        return None
    return tuple(sorted(ordered[at:])), tuple(sorted(ordered[:at]))


def _measured(
    replays: Replays,
    lateness: Lateness,
    summaries: Sequence[RankSummary],
    group: tuple[int, ...],
    peers: tuple[int, ...],
) -> SlowGroup:
    graph, base = replays.graph, replays.base.step_ns()
    middle, peer = median_rank(graph, group), median_rank(graph, peers)
    theirs = np.array([_own(graph, rank) for rank in peers])
    longer = np.median([_own(graph, rank) for rank in group], axis=0) - np.median(theirs, axis=0)
    cause = _cause(graph, group, peers, float(longer.sum()))
    compared = None
    if cause == "gpu_compute":
        by_rank = {summary.rank: summary for summary in summaries}
        compared = compare_work(by_rank[middle], [by_rank[rank] for rank in peers])
    change = Scenario(program_of=dict.fromkeys(group, peer))
    if compared is not None and compared.kind == "more_work":
        change = shared_work(graph, group)
    if cause == "gpu_compute" and group[0] in graph.on_cpu:
        cause, compared = "host", None
    waited = {rank: float(lateness.waited[rank].mean()) for rank in peers}
    charged = sum(float(lateness.caused[rank].sum()) for rank in group)
    late = longer >= LATE_STEP * base
    return SlowGroup(
        ranks=group,
        peers=peers,
        middle=middle,
        longer=longer,
        each=tuple(_own(graph, rank) - np.median(theirs, axis=0) for rank in group),
        saved=base - simulate(graph, change).step_ns(),
        waited=float(np.median(list(waited.values()))),
        share=charged / lateness.total_ns if lateness.total_ns else 0.0,
        cause=cause,
        compared=compared if compared is not None and compared.kind is not UNSET else None,
        late=tuple(number for number, slow in zip(graph.steps, late, strict=True) if slow),
        chance=chance(_own(graph, middle), theirs),
    )


def _cause(graph: StepGraph, group: Sequence[int], peers: Sequence[int], longer: float) -> str:
    """What most of the time that the group takes longer goes to."""
    more = np.median([_spent(graph, rank) for rank in group], axis=0)
    more = more - np.median([_spent(graph, rank) for rank in peers], axis=0)
    by_cause = dict.fromkeys(CAUSES, 0.0)
    for work, ns in zip(WORK, more.tolist(), strict=True):
        by_cause[CAUSE_OF.get(work, "unknown")] += ns
    best = max(by_cause, key=lambda cause: by_cause[cause])
    return best if by_cause[best] >= _COVERS * longer else "unknown"


def _spent(graph: StepGraph, rank: int) -> NDArray[np.int64]:
    """Own time of a rank over its steps by WORK, ns."""
    nodes, edges = graph.ranks[rank], graph.edges[rank]
    spent: NDArray[np.int64] = nodes.spent[edges[-1]] - nodes.spent[edges[0]]
    return spent


def _own(graph: StepGraph, rank: int) -> Steps:
    """Own time of a rank in each step, ns."""
    own: Steps = np.diff(graph.ranks[rank].work[graph.edges[rank]]).astype(float)
    return own
