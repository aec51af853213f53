"""Matches, aligns and replays: what all ranks say together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.across.arrivals import with_roots, with_woken_threads, without_first_meetings, without_late_ends
from traceops.across.clocks import align_clocks
from traceops.across.copies import exposed_copies, predict_copies
from traceops.across.cross_rank import CrossRank, RankTimes, charged_waiting
from traceops.across.experts import find_experts
from traceops.across.inference import measure_passes
from traceops.across.lateness import measure_lateness
from traceops.across.links import reference_transfers
from traceops.across.match import match_collectives, waits_by_rank
from traceops.across.pipelines import find_pipelines, measure_bubbles, stage_of
from traceops.across.replay.build import build_graph
from traceops.across.replay.graph import StepGraph
from traceops.across.replay.what_if import Replays, measure_what_if, predict_pipelines, predict_roles
from traceops.across.role_times import measure_role_times
from traceops.across.roles import find_roles
from traceops.across.slow_group import far_ranks, measure_slow_groups
from traceops.across.stragglers import Straggler, Stragglers, best_pace, late_behind_loading, measure_stragglers
from traceops.across.unlike import unlike_steps, unshared_steps
from traceops.across.work import WorkCompared, compare_work
from traceops.core.arrays import Int, Intervals, intersect, subtract, union
from traceops.fabric.fabric import Fabric
from traceops.measure.ledger import BUCKETS
from traceops.measure.summary import RankSummary


def measure_across(
    ranks: Sequence[RankSummary],
    world: int,
    hosts: Mapping[int, str | None] | None = None,
    fabric: Fabric | None = None,
    loading_ms: Mapping[int, float] | None = None,
    own_gpus: bool | None = None,
    usual_ms: Sequence[float] = (),
) -> CrossRank:
    """Match collectives, align clocks, split communication, and replay the steps [docs/metrics.md].

    `hosts` names the host of each rank where that is known; `fabric` is what was saved of the machines. `loading_ms` is
    what workers of each rank's loader take for the batches of a step, where they were looked at. `own_gpus`: as in
    `CrossRank`. `usual_ms`: as in `unlike_steps`.
    """
    matching = match_collectives(ranks, tuple(range(world)))
    hosts = hosts or {}
    clocks = align_clocks(ranks, matching, hosts)
    matching = without_late_ends(matching, ranks, clocks)
    matching = with_roots(without_first_meetings(matching, ranks), ranks, clocks)
    ranks = with_woken_threads(ranks, matching)
    waits = waits_by_rank(matching, ranks)
    split = bool(matching.collectives)
    pipelines = find_pipelines(ranks, matching)
    roles = find_roles(ranks, matching, pipelines, tuple(range(world)))
    graph = build_graph(ranks, matching, clocks.fits, stage_of(pipelines))
    lateness = measure_lateness(ranks, matching, graph) if graph is not None else None
    waiting = {summary.rank: _waiting(summary, waits[summary.rank]) for summary in ranks}
    buckets = {summary.rank: _buckets(summary, waiting[summary.rank], waits[summary.rank]) for summary in ranks}
    of_others = "comm_wait" if split else "comm_unmatched"
    waited, exchanged = ({rank: own[name] for rank, own in buckets.items()} for name in (of_others, "comm_transfer"))
    unlike = unlike_steps(ranks, waited, usual_ms, exchanged)
    unshared = unshared_steps(ranks) if split else ()
    charged = charged_waiting(ranks, waiting, lateness) if lateness is not None else None
    times = []
    for summary in ranks:
        typical = _typical(summary, unlike, unshared)
        start, turn, end = waits[summary.rank]
        inside = (start >= summary.step_edges[0]) & (start < summary.step_edges[-1])
        times.append(
            RankTimes(
                summary=summary,
                duration=summary.ledger.duration,
                buckets=buckets[summary.rank],
                typical=typical,
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
        unshared=unshared,
        roles=roles,
        experts=find_experts(ranks, matching, roles),
        passes=measure_passes(ranks, matching),
        role_times=measure_role_times(ranks, matching, roles),
        own_gpus=own_gpus,
    )
    of_ranks = {own.summary.rank: own.typical for own in times}
    run = replace(
        run,
        bubbles=measure_bubbles(pipelines, ranks, matching, of_ranks),
        copies=exposed_copies(ranks, of_ranks, device, fabric),
    )
    if run.unit == "step":
        run = replace(run, loading_ms=dict(loading_ms or {}))
    if graph is None or lateness is None:
        return run
    typical = ~np.isin(graph.steps, unlike)
    paces = {rank: 1e6 * ms for rank, ms in run.loading_ms.items() if rank in graph.ranks}
    replays = Replays(graph, typical, paces)
    graph = replays.graph
    stragglers = measure_stragglers(replays, lateness)
    reference = reference_transfers(matching, graph.kind, run.link)
    far = far_ranks(stragglers.found)
    groups = measure_slow_groups(replays, lateness, ranks, far)
    beside = {} if groups is None else _work(ranks, graph, groups.single, {*groups.ranks, *far})
    behind = late_behind_loading(replays, lateness)
    beside |= {} if behind is None else _work(ranks, graph, [behind], {behind.rank, *far})
    work = _work(ranks, graph, stragglers.found, {straggler.rank for straggler in stragglers.found})
    uneven = [rank for rank, compared in work.items() if compared.kind == "more_work"]
    slow = [(bubble.slowest.rank,) for bubble in run.bubbles if bubble.is_slow_rank]
    late = [tuple(sorted({*groups.ranks, *far}))] if groups is not None else []
    sets = list(dict.fromkeys([*_rank_sets(stragglers), *slow, *late]))
    sharing = {peer for rank in uneven for peer in graph.roles[rank]}
    sharing_work = [summary for summary in ranks if summary.rank in sharing]
    pace = best_pace(sharing_work, [graph.slowed_us(summary.rank) for summary in sharing_work])
    what_if = measure_what_if(replays, sets, reference, typical, uneven, 1e6 * run.step_ms, pace)
    what_if = what_if.with_more([*predict_roles(graph, roles), *predict_copies(graph, run.copies)])
    what_if = what_if.with_more(predict_pipelines(graph, run.bubbles))
    return replace(
        run,
        graph=graph,
        lateness=lateness,
        charged=charged,
        stragglers=stragglers,
        late_behind_loading=behind,
        slow_groups=groups,
        what_if=what_if,
        work={**beside, **work},
    )


def _typical(summary: RankSummary, unlike: Sequence[int], unshared: Sequence[int]) -> NDArray[np.bool_]:
    """Which of a rank's steps its means are of: those like the others that all ranks recorded, if it has any."""
    like = ~np.isin(summary.step_numbers, unlike)
    both: NDArray[np.bool_] = like & ~np.isin(summary.step_numbers, unshared)
    if both.any():
        return both
    return like if like.any() else ~like


def _waiting(summary: RankSummary, waits: tuple[Int, Int, Int]) -> Intervals:
    """Exposed communication in which no collective has all its members."""
    start, turn, end = waits
    return subtract(intersect(summary.ledger.exposed, union(start, turn)), union(turn, end))


def _buckets(summary: RankSummary, waiting: Intervals, waits: tuple[Int, Int, Int]) -> dict[str, Int]:
    """The rank's ledger with its communication split, ns per bucket and step."""
    _, turn, end = waits
    edges_start, edges_end = summary.step_edges[:-1], summary.step_edges[1:]
    buckets = {name: ns for name, ns in summary.ledger.buckets.items() if name != "comm"}
    transferring = intersect(summary.ledger.exposed, union(turn, end))
    buckets["comm_transfer"] = transferring.within(edges_start, edges_end)
    buckets["comm_wait"] = waiting.within(edges_start, edges_end)
    buckets["comm_unmatched"] = summary.ledger.buckets["comm"] - buckets["comm_transfer"] - buckets["comm_wait"]
    return {name: buckets[name] for name in BUCKETS}


def _work(
    ranks: Sequence[RankSummary], graph: StepGraph, stragglers: Sequence[Straggler], late: Collection[int]
) -> dict[int, WorkCompared]:
    """Of each straggler that computes longer: whether it is slower, or has more to do than peers that are not late."""
    by_rank = {summary.rank: summary for summary in ranks}
    return {
        straggler.rank: compare_work(
            by_rank[straggler.rank], [by_rank[rank] for rank in graph.peers(straggler.rank) if rank not in late]
        )
        for straggler in stragglers
        if straggler.cause == "gpu_compute"
    }


def _rank_sets(stragglers: Stragglers) -> list[tuple[int, ...]]:
    """Whose cure to predict: each straggler alone, all together, and who is waited for most in any case."""
    found = [(straggler.rank,) for straggler in stragglers.found]
    if stragglers.leader is not None:
        found.append((stragglers.leader.rank,))
    together = tuple(sorted(straggler.rank for straggler in stragglers.found))
    return list(dict.fromkeys([*found, together] if len(together) > 1 else found))
