"""All ranks together: the ledger with communication split, who waits, who is waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traceops.across.arrivals import without_late_ends
from traceops.across.bubble import Bubble, measure_bubbles
from traceops.across.charged import ChargedWaiting, charged_waiting
from traceops.across.clocks import ClockAlignment, align_clocks
from traceops.across.lateness import Lateness, measure_lateness
from traceops.across.links import LinkReference, reference_of, reference_transfers
from traceops.across.match import MatchedCollectives, match_collectives, waits_by_rank
from traceops.across.replay.even_stages import predict_pipelines
from traceops.across.replay.graph import StepGraph, build_graph
from traceops.across.replay.what_if import Replays, WhatIf, measure_what_if
from traceops.across.stages import find_pipelines, stage_of
from traceops.across.stragglers import Stragglers, measure_stragglers
from traceops.across.work import WorkCompared, compare_work
from traceops.core.arrays import Int
from traceops.core.intervals import Intervals, intersect, subtract, union
from traceops.fabric.fabric import Fabric
from traceops.measure.ledger import BUCKETS
from traceops.measure.summary import RankSummary
from traceops.measure.typical import typical_steps


@dataclass(frozen=True)
class RankTimes:
    """One rank's ledger, ns per bucket and step; waiting and transfer of all its collectives in the steps.

    `caused_wait_ns` is what others waited for this rank with nothing else to do; all of them None where
    waiting and transfer cannot be told apart; the last also where much of the waiting is charged to nobody.
    `typical` says which steps are like the others: means are
    taken over these.
    """

    summary: RankSummary
    duration: Int
    buckets: dict[str, Int]
    typical: NDArray[np.bool_]
    wait_ns: int | None
    transfer_ns: int | None
    caused_wait_ns: int | None

    def mean_ms(self, bucket: str) -> float:
        """Time in a bucket, ms: mean over the typical steps."""
        return mean_ms(self.buckets[bucket][self.typical])

    @property
    def step_ms(self) -> float:
        """Duration of a step, ms: mean over the typical steps."""
        return mean_ms(self.duration[self.typical])

    def share_pct(self, bucket: str) -> float | None:
        """Percent of the typical steps that a bucket takes; None without a step."""
        total = int(self.duration[self.typical].sum())
        return 100.0 * int(self.buckets[bucket][self.typical].sum()) / total if total > 0 else None


@dataclass(frozen=True)
class CrossRank:
    """The reduce's result, ranks in order; `split` says whether waiting could be told from transfer.

    What compares ranks step by step (`graph` and all behind it) is None where there is only one rank, or
    nothing was matched, or no step is common to all. devices: GPUs that a process sees, None where no trace tells.
    """

    ranks: tuple[RankTimes, ...]
    matching: MatchedCollectives
    split: bool
    world: int
    hosts: dict[int, str | None]
    device: str | None
    clocks: ClockAlignment
    graph: StepGraph | None = None
    lateness: Lateness | None = None
    charged: ChargedWaiting | None = None
    stragglers: Stragglers | None = None
    what_if: WhatIf | None = None
    fabric: Fabric | None = None
    devices: int | None = None
    bubbles: tuple[Bubble, ...] = ()  # of the pipelines among the ranks
    work: Mapping[int, WorkCompared] = field(default_factory=dict)  # of stragglers whose GPU computes longer
    unlike: tuple[int, ...] = ()  # numbers of the steps that take far longer than the typical one

    @property
    def step_ms(self) -> float:
        """The typical step, ms: the median over ranks of their means."""
        return float(np.median([times.step_ms for times in self.ranks])) if self.ranks else 0.0

    def reference(self, group: Sequence[int]) -> LinkReference | None:
        """What the link between these ranks should give."""
        return reference_of(group, self.device, self.hosts, self.world, self.fabric, self.devices)


def measure_across(
    ranks: Sequence[RankSummary],
    world: int,
    hosts: Mapping[int, str | None] | None = None,
    fabric: Fabric | None = None,
) -> CrossRank:
    """Match collectives, align clocks, split communication, and replay the steps [docs/metrics.md].

    `hosts` names the host of each rank where that is known; `fabric` is what was saved of the machines.
    """
    matching = match_collectives(ranks, tuple(range(world)))
    split = bool(matching.collectives)
    hosts = hosts or {}
    clocks = align_clocks(ranks, matching, hosts)
    matching = without_late_ends(matching, ranks, clocks)
    waits = waits_by_rank(matching, ranks)
    pipelines = find_pipelines(ranks, matching)
    graph = build_graph(ranks, matching, clocks.fits, stage_of(pipelines))
    lateness = measure_lateness(ranks, matching, graph) if graph is not None else None
    unlike = unlike_steps(ranks)
    waiting = {summary.rank: _waiting(summary, waits[summary.rank]) for summary in ranks}
    charged = charged_waiting(ranks, waiting, lateness) if lateness is not None else None
    times = []
    for summary in ranks:
        typical = ~np.isin(summary.step_numbers, unlike)
        start, turn, end = waits[summary.rank]
        edges_start, edges_end = summary.step_edges[:-1], summary.step_edges[1:]
        exposed = summary.ledger.exposed
        transfer = union(turn, end)
        transferring = intersect(exposed, transfer)
        buckets = {name: ns for name, ns in summary.ledger.buckets.items() if name != "comm"}
        buckets["comm_transfer"] = transferring.within(edges_start, edges_end)
        buckets["comm_wait"] = waiting[summary.rank].within(edges_start, edges_end)
        buckets["comm_unmatched"] = (
            summary.ledger.buckets["comm"] - buckets["comm_transfer"] - buckets["comm_wait"]
        )
        inside = (start >= summary.step_edges[0]) & (start < summary.step_edges[-1])
        times.append(
            RankTimes(
                summary=summary,
                duration=summary.ledger.duration,
                buckets={name: buckets[name] for name in BUCKETS},
                typical=typical if typical.any() else ~typical,
                wait_ns=int((turn - start)[inside].sum()) if split else None,
                transfer_ns=int((end - turn)[inside].sum()) if split else None,
                caused_wait_ns=None
                if lateness is None or charged is None or not charged.holds
                else round(float(lateness.caused[summary.rank].sum())),
            )
        )
    device = next((summary.meta.device for summary in ranks if summary.meta.device), None)
    devices = max((summary.meta.devices or 0 for summary in ranks), default=0) or None
    known = {summary.rank: hosts.get(summary.rank) for summary in ranks}
    run = CrossRank(
        tuple(times),
        matching,
        split,
        world,
        known,
        device,
        clocks,
        fabric=fabric,
        devices=devices,
        unlike=unlike,
    )
    run = replace(run, bubbles=measure_bubbles(pipelines, ranks, matching))
    if graph is None or lateness is None:
        return run
    replays = Replays(graph)
    stragglers = measure_stragglers(replays, lateness)
    reference = reference_transfers(matching, graph.kind, device, known, world, fabric, devices)
    work = _work(ranks, graph, stragglers)
    uneven = [rank for rank, compared in work.items() if compared.kind == "more_work"]
    typical = ~np.isin(graph.steps, unlike)
    what_if = measure_what_if(replays, _rank_sets(stragglers), reference, typical, uneven, 1e6 * run.step_ms)
    what_if = what_if.with_more(predict_pipelines(graph, run.bubbles))
    return replace(
        run,
        graph=graph,
        lateness=lateness,
        charged=charged,
        stragglers=stragglers,
        what_if=what_if,
        work=work,
    )


def _waiting(summary: RankSummary, waits: tuple[Int, Int, Int]) -> Intervals:
    """Exposed communication in which no collective has all its members."""
    start, turn, end = waits
    return subtract(intersect(summary.ledger.exposed, union(start, turn)), union(turn, end))


def unlike_steps(ranks: Sequence[RankSummary]) -> tuple[int, ...]:
    """Numbers of the steps that take far longer than most, by their median over ranks, in order."""
    by_step: dict[int, list[int]] = defaultdict(list)
    for summary in ranks:
        for number, ns in zip(summary.step_numbers.tolist(), summary.ledger.duration.tolist(), strict=True):
            by_step[number].append(ns)
    numbers = sorted(by_step)
    typical = typical_steps([float(np.median(by_step[number])) for number in numbers])
    return tuple(number for number, like in zip(numbers, typical.tolist(), strict=True) if not like)


def _work(ranks: Sequence[RankSummary], graph: StepGraph, stragglers: Stragglers) -> dict[int, WorkCompared]:
    """Of each straggler that computes longer: whether it is slower, or has more to do than peers that are not late."""
    by_rank = {summary.rank: summary for summary in ranks}
    found = {straggler.rank for straggler in stragglers.found}
    return {
        straggler.rank: compare_work(
            by_rank[straggler.rank],
            [by_rank[rank] for rank in graph.peers(straggler.rank) if rank not in found],
        )
        for straggler in stragglers.found
        if straggler.cause == "gpu_compute"
    }


def _rank_sets(stragglers: Stragglers) -> list[tuple[int, ...]]:
    """Whose cure to predict: each straggler alone, all together, and who is waited for most in any case."""
    found = [(straggler.rank,) for straggler in stragglers.found]
    if stragglers.leader is not None:
        found.append((stragglers.leader.rank,))
    together = tuple(sorted(straggler.rank for straggler in stragglers.found))
    return list(dict.fromkeys([*found, together] if len(together) > 1 else found))


def mean_ms(ns: Int) -> float:
    """Mean of times in ns, as ms; 0 without any."""
    return float(np.mean(ns)) / 1e6 if len(ns) else 0.0
