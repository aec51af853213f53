"""All ranks together: matches, aligns and replays them, splits each ledger's communication, and compares the ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceops.across import rank_times
from traceops.across.agreed_steps import unlike_steps, unshared_steps
from traceops.across.clocks import ClockAlignment, on_one_clock
from traceops.across.copies import ExposedCopies, exposed_copies, predict_copies
from traceops.across.lateness import Lateness, measure_lateness
from traceops.across.links import LinkReference, reference_of, reference_transfers
from traceops.across.loading import without_pace
from traceops.across.match import MatchedCollectives, match_collectives, waits_by_rank
from traceops.across.pipelines import Bubble, find_pipelines, measure_bubbles, stage_of
from traceops.across.replay.graph import StepGraph, build_graph
from traceops.across.replay.what_if import Replays, WhatIf, measure_what_if, predict_pipelines, predict_roles
from traceops.across.roles import NO_ROLES, Roles, find_roles
from traceops.across.slow_group import SlowGroups, far_ranks, measure_slow_groups
from traceops.across.stragglers import Straggler, Stragglers, best_pace, late_behind_loading, measure_stragglers
from traceops.across.work import WorkCompared, compare_work
from traceops.core.arrays import Floats, Int, Intervals, Mask, intersect, is_in, median, subtract, union
from traceops.core.words import NoReplay, StepsBy, StepWords, Unit, step_words
from traceops.fabric.fabric import Fabric
from traceops.measure.ledger import BUCKETS
from traceops.measure.summary import RankSummary

_MOST_OF_WAITING = 0.05  # that nobody is charged for: with more, shares of it mean little
_MOST_OF_STEPS = 0.02  # of the ranks' time: less hides no straggler


class ChargedWaiting(Struct, frozen=True):
    """Exposed waiting (comm_wait in the ledger) of all ranks in the steps that they share, ns, and who answers for it.
    unheld_ns: something else kept the waiting rank, such as its own host, so that it lost nothing by waiting.
    charged_ns: charged to the rank that caused it. steps_ns: all ranks' time in these steps."""

    waiting_ns: int
    unheld_ns: int
    charged_ns: int
    steps_ns: int

    @property
    def uncharged_ns(self) -> int:
        """What nobody answers for."""
        return max(self.waiting_ns - self.unheld_ns - self.charged_ns, 0)

    @property
    def uncharged_pct(self) -> float:
        """The same in percent of all exposed waiting."""
        return 100.0 * self.uncharged_ns / self.waiting_ns if self.waiting_ns else 0.0

    def least_lead(self, share: float, others: float) -> float:
        """How many times as much a rank causes as any other can, whoever answers for what nobody is charged with.

        share: of the charged waiting that the rank causes. others: the same of the one that causes most beside it.
        """
        total = self.charged_ns + self.uncharged_ns
        known = self.charged_ns / total if total else 1.0
        return share * known / max(others * known + 1.0 - known, 1e-9)

    @property
    def holds(self) -> bool:
        """Whether all but a few percent of the waiting is charged, or so little is not that it hides no straggler."""
        most = max(_MOST_OF_WAITING * self.waiting_ns, _MOST_OF_STEPS * self.steps_ns)
        return self.uncharged_ns <= most


def charged_waiting(
    ranks: Sequence[RankSummary], waiting: Mapping[int, Intervals], lateness: Lateness
) -> ChargedWaiting:
    """How much of the ranks' exposed `waiting` is charged, over the steps of `lateness`."""
    waited = unheld = steps = 0
    for summary in ranks:
        chosen = [n in lateness.steps for n in summary.step_numbers.tolist()]
        start, end = summary.step_edges[:-1][chosen], summary.step_edges[1:][chosen]
        own = waiting[summary.rank]
        waited += int(own.within(start, end).sum())
        unheld += int(intersect(own, summary.program.unheld).within(start, end).sum())
        steps += int((end - start).sum())
    charged = round(sum(float(caused.sum()) for caused in lateness.caused.values()))
    return ChargedWaiting(waited, unheld, charged, steps)


class Replay(Struct, frozen=True):
    """The steps that all ranks share, replayed: who is late in them, and what each change would gain."""

    graph: StepGraph
    lateness: Lateness
    charged: ChargedWaiting
    stragglers: Stragglers
    what_if: WhatIf
    work: Mapping[int, WorkCompared]  # of stragglers whose GPU computes longer
    late_behind_loading: Straggler | None  # who would be one if no rank waited for its loader
    slow_groups: SlowGroups | None  # ranks that are late alike, so that none alone is


class CrossRank(Struct, frozen=True, dict=True):
    """The reduce's result, ranks in order; `split` says whether waiting could be told from transfer. replay: None where
    there is only one rank, or nothing was matched, or no step is common to all. devices: GPUs that a process sees, None
    where no trace shows it."""

    ranks: tuple[rank_times.RankTimes, ...]
    matching: MatchedCollectives
    split: bool
    world: int
    hosts: dict[int, str | None]
    device: str | None
    clocks: ClockAlignment
    fabric: Fabric | None = None
    devices: int | None = None
    replay: Replay | None = None
    bubbles: tuple[Bubble, ...] = ()  # of the pipelines among the ranks
    unlike: tuple[int, ...] = ()  # numbers of the steps that take far longer than the typical one
    unshared: tuple[int, ...] = ()  # numbers of the steps that only some ranks recorded, where others are left
    roles: Roles = NO_ROLES
    passes: tuple[rank_times.Passes, ...] = ()  # of an inference server
    experts: tuple[rank_times.Experts, ...] = ()
    role_times: Mapping[int, rank_times.ByRole] = field(default_factory=dict)  # exposed communication by rank and role
    loading_ms: Mapping[int, float] = field(default_factory=dict)  # by rank: what loader_paces says
    copies: tuple[ExposedCopies, ...] = ()
    own_gpus: bool | None = None  # whether each rank has a GPU to itself, None where that is not known

    @cached_property
    def unit(self) -> Unit:
        """What times are of: a step; the whole window, where nothing says where steps begin; or none that is whole."""
        by = self.steps_by[0]
        return "none" if by == "cut_off" else "window" if by == "window" else "step"

    @cached_property
    def durations_ms(self) -> Mapping[int, float]:
        """By the number of each step how long it took, ms: the median over the ranks that recorded it."""
        numbers = np.concatenate([times.summary.step_numbers for times in self.ranks])
        took = np.concatenate([times.duration for times in self.ranks])
        order = numbers.argsort(kind="stable")
        known, begins = np.unique(numbers[order], return_index=True)
        if len(known) == len(order):  # of one rank
            return dict(zip(known.tolist(), (took[order] / 1e6).tolist(), strict=True))
        parts = np.split(took[order], begins[1:])
        return {number: median(part) / 1e6 for number, part in zip(known.tolist(), parts, strict=True)}

    @cached_property
    def loaders_unknown(self) -> tuple[int, ...]:
        """Ranks whose loader may hold up a step that a cure makes shorter: its workers were not looked at."""
        return without_pace([times.summary for times in self.ranks], self.loading_ms)

    @property
    def hosts_unknown(self) -> tuple[int, ...]:
        """Ranks whose host is slower in the window than before it, or whose lead is not seen.

        A cure takes it that it keeps up all the same.
        """
        return self.replay.graph.hosts_unknown if self.replay is not None else ()

    @property
    def hosts_slower(self) -> tuple[int, ...]:
        """Those of them that are known to be slower in the window."""
        return self.replay.graph.hosts_slower if self.replay is not None else ()

    @property
    def cures_are_least(self) -> bool:
        """Whether steps that a cure leaves may take longer than is predicted."""
        return bool(self.loaders_unknown or self.hosts_unknown)

    @property
    def step_words(self) -> StepWords:
        """What to call that in a sentence."""
        return step_words(self.unit)

    @cached_property
    def steps_by(self) -> tuple[StepsBy, str]:
        """What said where steps begin, and its name: on the ranks that have steps, where there are such."""
        marks = [(times.summary.steps_by, times.summary.step_mark) for times in self.ranks]
        of_steps = [mark for mark in marks if mark[0] not in ("window", "cut_off")]
        whole = [mark for mark in marks if mark[0] == "window"]
        return next(iter(of_steps or whole or marks), ("window", ""))

    @cached_property
    def step_ms(self) -> float:
        """The typical step, ms: the median over ranks of their means."""
        return median([times.step_ms for times in self.typical_ranks]) if self.ranks else 0.0

    @cached_property
    def typical_ranks(self) -> Sequence[rank_times.RankTimes]:
        """The ranks that recorded a typical step; all where none did."""
        of_typical = [one for one in self.ranks if not set(self.unlike).issuperset(one.summary.step_numbers.tolist())]
        return of_typical or self.ranks

    @cached_property
    def through_host(self) -> bool:
        """Whether hosts run the collectives of what is on their GPUs, so that no link between GPUs is used."""
        return any(times.summary.through_host for times in self.ranks)

    @property
    def of_hosts_only(self) -> bool:
        """Whether hosts run all collectives of the traces and wait for no GPU: their own data, as far as known."""
        own = [times.summary for times in self.ranks]
        return self.through_host and not any(summary.exchanges_of_gpu for summary in own)

    @cached_property
    def waits(self) -> dict[int, tuple[Int, Int, Int]]:
        """What `waits_by_rank` says of all ranks."""
        return waits_by_rank(self.matching, [times.summary for times in self.ranks])

    def times_of(self, rank: int | None) -> rank_times.RankTimes | None:
        """The rank's times; None where it is none of these."""
        return None if rank is None else self._times.get(rank)

    @cached_property
    def _times(self) -> dict[int, rank_times.RankTimes]:
        return {times.summary.rank: times for times in self.ranks}

    def reference(self, group: Sequence[int]) -> LinkReference | None:
        """What the link that these ranks use should give."""
        return None if self.through_host else self.link(group)

    def link(self, group: Sequence[int]) -> LinkReference | None:
        """What the link between these ranks' GPUs should give, used or not; None where ranks may share a GPU."""
        if self.through_host and not self.own_gpus:
            return None
        return reference_of(group, self.device, self.hosts, self.world, self.fabric, self.devices)


def no_replay(run: CrossRank) -> NoReplay | None:
    """The reason; None where they are."""
    if run.replay is not None:
        return None
    if len(run.ranks) < 2:
        told = any(times.summary.meta.world_size for times in run.ranks)
        return "other_ranks_missing" if run.world > 1 or (run.matching.events and not told) else "one_rank"
    if not run.matching.events:
        return "no_collectives"
    return "no_common_step" if run.split else "nothing_matched"


def measure_across(
    ranks: Sequence[RankSummary],
    world: int,
    hosts: Mapping[int, str | None] | None = None,
    fabric: Fabric | None = None,
    loading_ms: Mapping[int, float] | None = None,
    own_gpus: bool | None = None,
    usual_ms: Sequence[float] = (),
) -> CrossRank:
    """Match collectives, align clocks, split communication, and replay the steps [docs/metrics.md]. `hosts` names the
    host of each rank where that is known; `fabric` is what was saved of the machines. `loading_ms` is what workers of
    each rank's loader take for the batches of a step, where they were looked at. `own_gpus`: as in `CrossRank`.
    `usual_ms`: as in `unlike_steps`."""
    hosts = hosts or {}
    matching, clocks, ranks = on_one_clock(match_collectives(ranks, tuple(range(world))), ranks, hosts)
    waits = waits_by_rank(matching, ranks)
    split = bool(matching.collectives)
    pipelines = find_pipelines(ranks, matching)
    roles = find_roles(ranks, matching, pipelines, tuple(range(world)))
    graph = build_graph(ranks, matching, clocks.fits, stage_of(pipelines))
    lateness = measure_lateness(ranks, matching, graph) if graph is not None else None
    waiting = {summary.rank: _waiting(summary, waits[summary.rank]) for summary in ranks}
    charged = charged_waiting(ranks, waiting, lateness) if lateness is not None else None
    buckets = {summary.rank: _buckets(summary, waiting[summary.rank], waits[summary.rank]) for summary in ranks}
    of_others = "comm_wait" if split else "comm_unmatched"
    waited, exchanged = ({rank: own[name] for rank, own in buckets.items()} for name in (of_others, "comm_transfer"))
    unlike = unlike_steps(ranks, waited, usual_ms, exchanged)
    unshared = unshared_steps(ranks) if split else ()
    causes = lateness.caused if lateness is not None and charged is not None and charged.holds else None
    typical = {summary.rank: _typical(summary, unlike, unshared) for summary in ranks}
    times = [_rank_times(one, buckets[one.rank], typical[one.rank], waits[one.rank], causes, split) for one in ranks]
    device = next((summary.meta.device for summary in ranks if summary.meta.device), None)
    run = CrossRank(
        tuple(times),
        matching,
        split,
        world,
        {summary.rank: hosts.get(summary.rank) for summary in ranks},
        device,
        clocks,
        fabric=fabric,
        devices=max((summary.meta.devices or 0 for summary in ranks), default=0) or None,
        bubbles=measure_bubbles(pipelines, ranks, matching, typical),
        unlike=unlike,
        unshared=unshared,
        roles=roles,
        experts=rank_times.find_experts(ranks, matching, roles),
        passes=rank_times.measure_passes(ranks, matching),
        role_times=rank_times.measure_role_times(ranks, matching, roles),
        copies=exposed_copies(ranks, typical, device, fabric),
        own_gpus=own_gpus,
    )
    if run.unit == "step":
        run = replace(run, loading_ms=dict(loading_ms or {}))
    if graph is None or lateness is None or charged is None:
        return run
    return replace(run, replay=_replayed(run, ranks, graph, lateness, charged))


def _rank_times(
    summary: RankSummary,
    buckets: dict[str, Int],
    typical: Mask,
    waits: tuple[Int, Int, Int],
    causes: Mapping[int, Floats] | None,
    split: bool,
) -> rank_times.RankTimes:
    start, turn, end = waits
    inside = (start >= summary.step_edges[0]) & (start < summary.step_edges[-1])
    return rank_times.RankTimes(
        summary=summary,
        duration=summary.ledger.duration,
        buckets=buckets,
        typical=typical,
        wait_ns=int((turn - start)[inside].sum()) if split else None,
        transfer_ns=int((end - turn)[inside].sum()) if split else None,
        caused_wait_ns=None if causes is None else round(float(causes[summary.rank].sum())),
    )


def _replayed(
    run: CrossRank, ranks: Sequence[RankSummary], graph: StepGraph, lateness: Lateness, charged: ChargedWaiting
) -> Replay:
    """Who is late in the steps of `graph`, alone or alike, and what the step gains with each change."""
    typical = ~is_in(np.array(graph.steps), run.unlike)
    paces = {rank: 1e6 * ms for rank, ms in run.loading_ms.items() if rank in graph.ranks}
    replays = Replays(graph, typical, paces)
    graph = replays.graph
    stragglers = measure_stragglers(replays, lateness)
    far = far_ranks(stragglers.found)
    groups = measure_slow_groups(replays, lateness, ranks, far)
    beside = {} if groups is None else _work(ranks, graph, groups.single, {*groups.ranks, *far})
    behind = late_behind_loading(replays, lateness)
    beside |= {} if behind is None else _work(ranks, graph, [behind], {behind.rank, *far})
    work = _work(ranks, graph, stragglers.found, {straggler.rank for straggler in stragglers.found})
    slow = [(bubble.slowest.rank,) for bubble in run.bubbles if bubble.is_slow_rank]
    late = [tuple(sorted({*groups.ranks, *far}))] if groups is not None else []
    # Whose cure to predict: each straggler alone, all together, and who is waited for most in any case.
    found = [(straggler.rank,) for straggler in stragglers.found]
    if stragglers.leader is not None:
        found.append((stragglers.leader.rank,))
    together = tuple(sorted(straggler.rank for straggler in stragglers.found))
    sets = list(dict.fromkeys([*list(dict.fromkeys([*found, together] if len(together) > 1 else found)), *slow, *late]))
    uneven = [rank for rank, compared in work.items() if compared.kind == "more_work"]
    sharing = {peer for rank in uneven for peer in graph.roles[rank]}
    sharing_work = [summary for summary in ranks if summary.rank in sharing]
    pace = best_pace(sharing_work, [graph.slowed_us(summary.rank) for summary in sharing_work])
    reference = reference_transfers(run.matching, graph.kind, run.link)
    by_device, step_ns = stragglers.by_device, 1e6 * run.step_ms
    what_if = measure_what_if(replays, sets, reference, typical, uneven, step_ns, pace, by_device, run.through_host)
    what_if = what_if.with_more([*predict_roles(graph, run.roles), *predict_copies(graph, run.copies)])
    what_if = what_if.with_more(predict_pipelines(graph, run.bubbles))
    return Replay(graph, lateness, charged, stragglers, what_if, {**beside, **work}, behind, groups)


def _typical(summary: RankSummary, unlike: Sequence[int], unshared: Sequence[int]) -> Mask:
    """Which of a rank's steps its means are of: those like the others that all ranks recorded, if it has any."""
    like = ~is_in(summary.step_numbers, unlike)
    both: Mask = like & ~is_in(summary.step_numbers, unshared)
    if np.count_nonzero(both):
        return both
    return like if np.count_nonzero(like) else ~like


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
