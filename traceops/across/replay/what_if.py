"""What a change would buy: the steps replayed with one thing different at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.across.links import bus_factor
from traceops.across.match import Collective
from traceops.across.pipelines import Bubble, passes_of
from traceops.across.replay.cure import cure, faster_median, median_rank, usual_moments
from traceops.across.replay.graph import WORK, RankNodes, StepGraph, Steps, batch_ns, paced
from traceops.across.replay.programs import HostShift, shared_hosts
from traceops.across.replay.simulate import Scenario, SimulatedSteps, measured_step_ns, simulate
from traceops.across.roles import Roles
from traceops.core.arrays import Int
from traceops.core.words import ROLES, Role
from traceops.measure.program import NEVER

_WORTH = 0.01  # of the time: how much shorter it might be to be told as a range
_SLOWED = 0.005  # of the step: what kernels beside communication must take longer to be looked at
MOST_ERROR = 0.05  # mean over steps, beyond which nothing is concluded from a replay
_LATE_HOST = ("idle_host", "masked")
HOST = (*_LATE_HOST, "idle_sync")
LOADING = ("idle_input",)
_COMPUTE = WORK.index("compute")


class Prediction(Struct, frozen=True):
    """One change, the ranks it is made on (none: all), and the step times it leads to, ns: the most of a range."""

    change: str
    ranks: tuple[int, ...]
    step_ns: Steps
    range_ns: tuple[Steps, Steps] | None = None  # the least and the most, where more than the change decides


class WhatIf(Struct, frozen=True):
    """Replayed steps (ns) as measured and under each change, most time saved first. `measured_ns` is what the traces
    hold, and `error_pct` how far the replay is from it at most. Means are over the `typical` steps, a mask."""

    measured_ns: Steps
    replayed_ns: Steps
    predictions: tuple[Prediction, ...]
    typical: NDArray[np.bool_]
    step_ns: float | None = None

    @property
    def chosen(self) -> NDArray[np.bool_]:
        """The steps that means are over: the typical ones, or all where none of them was replayed."""
        return self.typical if np.count_nonzero(self.typical) else ~self.typical

    def mean_ns(self, steps: Steps) -> float:
        """Mean of replayed times over the `chosen` steps, ns.

        Scaled so that the replay as measured gives the ledger's step, `step_ns`: a report has one step time.
        """
        chosen = self.chosen
        replayed = float(self.replayed_ns[chosen].mean())
        scale = self.step_ns / replayed if self.step_ns and replayed else 1.0
        return scale * float(steps[chosen].mean())

    @property
    def error_pct(self) -> float:
        """Largest error of a replayed step against the measured one, percent."""
        return 100.0 * float(np.max(self._errors))

    @property
    def mean_error(self) -> float:
        """Mean error of the replayed steps, as a part of the measured ones."""
        return float(self._errors.mean())

    @property
    def _errors(self) -> NDArray[np.float64]:
        """Of each step, as a part of the measured one; a step without a length counts as one of 1 ns."""
        return np.abs(self.replayed_ns - self.measured_ns) / np.maximum(self.measured_ns, 1)

    @property
    def holds(self) -> bool:
        """Whether the replay reproduces the measured steps well enough to predict others."""
        return self.mean_error <= MOST_ERROR

    def saved_ns(self, change: str, ranks: Sequence[int] = ()) -> float | None:
        """Mean saving a step of a change that was tried, ns; None if it was not, or if the replay does not hold."""
        saved = self.saved_steps(change, ranks)
        return None if saved is None else self.mean_ns(saved)

    def saved_steps(self, change: str, ranks: Sequence[int] = ()) -> Steps | None:
        """The same for each replayed step."""
        if not self.holds:
            return None
        for prediction in self.predictions:
            if prediction.change == change and (not ranks or prediction.ranks == tuple(ranks)):
                return self.replayed_ns - prediction.step_ns
        return None

    def range_ns(self, change: str, ranks: Sequence[int] = ()) -> tuple[float, float] | None:
        """The least and the most that a step would take under a change, ns; None where it is one number."""
        ends = self.range_steps(change, ranks)
        return None if ends is None else (self.mean_ns(ends[0]), self.mean_ns(ends[1]))

    def range_steps(self, change: str, ranks: Sequence[int] = ()) -> tuple[Steps, Steps] | None:
        """The same for each replayed step."""
        for prediction in self.predictions:
            if prediction.change == change and prediction.ranks == tuple(ranks) and prediction.range_ns:
                least, most = prediction.range_ns
                return least, most
        return None

    def with_more(self, predictions: Sequence[Prediction]) -> WhatIf:
        """The same with other predictions among them."""
        made = sorted((*self.predictions, *predictions), key=lambda p: (float(p.step_ns.mean()), p.change))
        return replace(self, predictions=tuple(made))

    @property
    def slowdown(self) -> float | None:
        """The whole job's straggler slowdown S: the step over the step if all ranks were equal."""
        saved = self.saved_ns(ALL_EQUAL)
        saved = self.saved_ns(WORK_SHARED) if saved is None else saved
        if saved is None:
            return None
        mean = self.mean_ns(self.replayed_ns)
        return mean / max(mean - saved, 1.0)


ALL_EQUAL = "all ranks as their median"
NO_COMMUNICATION = "communication free"
REFERENCE = "reference bandwidth"
NO_LOADING = "input free"
HOST_IN_TIME = "host never late"
WORK_SHARED = "work shared evenly"


def rank_change(ranks: Sequence[int]) -> str:
    """The name of the change that makes ranks as fast as their peers."""
    listed = ", ".join(map(str, ranks))
    return f"ranks {listed} as their peers" if len(ranks) > 1 else f"rank {listed} as its peers"


class Replays:
    """Replays of one graph, each made once however often it is asked for. typical: its steps that are like each other:
    by them chance is judged; all where there are none. base: as measured, or, of WORK, `without` what every replay is
    then without. loading_ns: what workers of a rank's loader take for the batches of a step. No changed step is
    shorter."""

    def __init__(
        self,
        graph: StepGraph,
        typical: NDArray[np.bool_] | None = None,
        loading_ns: Mapping[int, float] | None = None,
        without: tuple[str, ...] = (),
    ) -> None:
        every = np.ones(len(graph.steps), dtype=bool)
        self.typical: NDArray[np.bool_] = every if typical is None or not np.count_nonzero(typical) else typical
        self.without = without
        self.base = simulate(graph, Scenario(without=without) if without else None)
        if loading_ns:
            # They are measured beside other steps: a change that leaves all as it is must leave the step.
            most = float(self.base.step_ns()[self.typical].mean())
            paces = {rank: min(ns, most) for rank, ns in loading_ns.items()}
            graph = replace(graph, loading_ns=paces, typical=self.typical)
        self.graph = graph
        self._made: dict[tuple[int, ...], SimulatedSteps | None] = {}
        self._changes: dict[tuple[int, ...], Scenario | None] = {}

    def cured(self, ranks: Sequence[int]) -> SimulatedSteps | None:
        """With these ranks running as their peers do; None where one has no peer outside the set."""
        if not ranks:
            return self.base
        if (key := tuple(sorted(ranks))) not in self._made:
            change = self.cure(key)
            self._made[key] = None if change is None else simulate(self.graph, change)
        return self._made[key]

    def cure(self, ranks: Sequence[int]) -> Scenario | None:
        """These ranks run as their peers do; kernels beside communication are slowed as much less as less is waited."""
        if (key := tuple(sorted(ranks))) not in self._changes:
            if (change := cure(self.graph, key, self.typical)) is not None and self.without:
                change = replace(change, without=self.without)
            if change is not None and key and self._are_slowed:
                waited = sum(self.base.waited_for.values())
                left = sum(simulate(self.graph, change).waited_for.values())
                change = replace(change, unslowed=max(1 - left / max(waited, 1), 0.0))
            self._changes[key] = change
        return self._changes[key]

    @cached_property
    def _are_slowed(self) -> bool:
        """Whether kernels, or hosts in the allocator, take noticeably longer beside communication that waits."""
        least = _SLOWED * float(self.base.step_ns().sum())
        longer = (nodes.longer[nodes.first_edge :] for nodes in self.graph.ranks.values())
        return any(own[-1] - own[0] >= least for own in longer)


def measure_what_if(
    replays: Replays,
    rank_sets: Sequence[tuple[int, ...]],
    reference_ns: Int | None,
    typical: NDArray[np.bool_] | None = None,
    uneven: Sequence[int] = (),
    step_ns: float | None = None,
    pace: float = 1.0,
    by_device: tuple[int, ...] = (),
    through_host: bool = False,
) -> WhatIf:
    """Replay the changes that are always of interest, and each of `rank_sets` run as their peers do.

    `reference_ns` is each collective's transfer at the bandwidth its link should give, None where nothing
    is known of the link. `typical` says over which of the graph's steps means are taken, None: all.
    `uneven` are ranks that have more to do than their peers: then the cure is to share all of the work, and not
    that everybody has as little of it as the median rank. `step_ns` is the mean typical step as measured. `pace` is
    what their computation would take at the best pace of any of them, over what it takes. `by_device` is the set whose
    devices are why all wait for it: hosts may then take over. `through_host`: hosts move the data; nobody knows how
    long they wait for it.
    """
    graph = replays.graph
    changes = {NO_LOADING: Scenario(without=LOADING), HOST_IN_TIME: Scenario(without=HOST)}
    if not through_host:
        changes[NO_COMMUNICATION] = Scenario(transfer=graph.transfer * 0)
    if reference_ns is not None:
        changes[REFERENCE] = Scenario(transfer=np.minimum(graph.transfer, reference_ns))
    roles = {id(role): role for role in graph.roles.values()}  # a role of thousands of ranks is hashed long
    median_of = {own: faster_median(graph, role) for own, role in roles.items() if len(role) > 1}
    medians = {rank: median_of[id(role)] for rank, role in graph.roles.items() if id(role) in median_of}
    made = []
    if uneven:
        ends = [simulate(graph, shared_work(graph, uneven, replays.typical, own)).step_ns() for own in (pace, 1.0)]
        between = (ends[0], ends[1]) if pace <= 1 - _WORTH else None
        made.append(Prediction(WORK_SHARED, (), ends[1], between))
    elif medians:
        changes[ALL_EQUAL] = Scenario(program_of=medians)
    made += [_predicted(graph, name, change) for name, change in changes.items()]
    for ranks in rank_sets:
        if (replay := replays.cured(ranks)) is not None:
            by_hosts = _if_hosts_keep_up(replays, ranks) if ranks == by_device else None
            made.append(Prediction(rank_change(ranks), tuple(ranks), replay.step_ns(), by_hosts))
    made.sort(key=lambda prediction: (float(prediction.step_ns.mean()), prediction.change))
    typical = np.ones(len(graph.steps), dtype=bool) if typical is None else typical
    return WhatIf(measured_step_ns(graph), replays.base.step_ns(), tuple(made), typical, step_ns)


def _predicted(graph: StepGraph, name: str, change: Scenario) -> Prediction:
    """One change. Faster transfers wait for hosts, which a profiler slows: at best no host is late, as a range."""
    steps = simulate(graph, change).step_ns()
    if change.transfer is None:
        return Prediction(name, (), steps)
    best = np.minimum(simulate(graph, replace(change, without=HOST)).step_ns(), steps)
    open_ = float(steps.mean() - best.mean()) > _WORTH * float(steps.mean())
    return Prediction(name, (), steps, (best, steps) if open_ else None)


def _if_hosts_keep_up(replays: Replays, ranks: Sequence[int]) -> tuple[Steps, Steps] | None:
    """The range of the step with these ranks fixed, where hosts, which a profiler slows, keep back most of the gain."""
    change, replay = replays.cure(ranks), replays.cured(ranks)
    if change is None or replay is None:
        return None
    base, steps = replays.base.step_ns(), replay.step_ns()
    in_time = replace(change, without=(*change.without, *_LATE_HOST))
    best = np.minimum(simulate(replays.graph, in_time).step_ns(), steps)
    kept_back, gained = float(steps.mean() - best.mean()), float(base.mean() - steps.mean())
    return (best, steps) if kept_back > max(gained, _WORTH * float(base.mean())) else None


def shared_work(graph: StepGraph, uneven: Sequence[int], typical: NDArray[np.bool_], pace: float = 1.0) -> Scenario:
    """What these ranks compute more than their peers is shared by all of them, between each two collectives. Its
    launches are shared too. What peers take longer for another reason stays theirs. All of it takes `pace` of the
    time."""
    compute: dict[int, Int] = {}
    hosts: dict[int, HostShift] = {}
    for role in {graph.roles[rank] for rank in uneven}:
        shared = set.intersection(*(set(graph.ranks[rank].labels) for rank in role))
        at = {}  # the rank's nodes of these labels, in order of the labels
        for rank in role:
            places = {label: node for node, label in enumerate(graph.ranks[rank].labels) if label in shared}
            at[rank] = np.array([places[label] for label in sorted(places, key=str)], dtype=np.int64)
        own = {rank: _compute_alone(graph, rank) for rank in role}
        more = [rank for rank in role if rank in uneven]
        rest = [rank for rank in role if rank not in more]
        usual = np.zeros(len(at[role[0]]))
        if rest:
            peer = median_rank(graph, rest)
            usual = usual_moments(graph, peer, rest, more, own, typical)[at[peer]].astype(float)
        each = sum((own[rank][at[rank]] - usual for rank in more), np.zeros(len(usual))) / len(role)
        for rank in role:
            first = graph.edges[rank][0]
            ascending = own[rank][at[rank]].argsort(kind="stable")
            before = own[rank][at[rank]][ascending]
            after = ((usual if rank in more else own[rank][at[rank]]) + each)[ascending]
            new = np.interp(own[rank], before, pace * np.maximum.accumulate(after))
            compute[rank] = int(graph.ranks[rank].spent[first, _COMPUTE]) + np.rint(new).astype(np.int64)
        hosts |= shared_hosts(graph, role, more)
    return Scenario(compute=compute, hosts=hosts)


def _compute_alone(graph: StepGraph, rank: int) -> Int:
    """Time a rank computes from the first step to each of its nodes, ns, did no kernel beside it wait for others."""
    nodes = graph.ranks[rank]
    alone = nodes.spent[:, _COMPUTE] - nodes.slowed
    since: Int = alone - alone[graph.edges[rank][0]]
    return since


def role_change(role: Role) -> str:
    """The name of the change that takes a role's transfers away."""
    return f"{ROLES[role]} communication free"


def predict_roles(graph: StepGraph, roles: Roles) -> list[Prediction]:
    """The steps without the transfers of each role; nothing where there is one only: communication as a whole."""
    if not roles.several:
        return []
    of_node = np.array([roles.of_collective[number] for number in graph.kind])
    return [
        Prediction(
            role_change(role),
            (),
            simulate(graph, Scenario(transfer=np.where(of_node == role, 0, graph.transfer))).step_ns(),
        )
        for role in roles.known
        if np.count_nonzero(of_node == role)
    ]


# The steps replayed with more ranks: what the measured ones say of a larger job.

_COMPUTE_BUCKETS = WORK.index("compute")


def predicted_share(
    graph: StepGraph, collectives: Sequence[Collective], world: int, times: float, work: float
) -> float:
    """Duration of a step with `times` as many ranks over the measured one's, mean over the replayed steps. Groups of
    all ranks grow with the job; others stay as they are. Their collectives cost what links like the measured ones would
    take: the part that the smallest of their kind takes grows with the hops of a ring, the rest with the bytes on the
    bus [nccl-tests]. Ranks compute `work` times as much as measured, evenly (1: the batch of a rank stays). Nobody is
    later than measured."""
    transfer = larger_transfers(collectives, graph.kind, graph.transfer, world, times)
    compute = {} if work == 1.0 else {rank: _less_work(graph, rank, work) for rank in graph.ranks}
    base = float(simulate(graph).step_ns().mean())
    changed = float(simulate(graph, Scenario(transfer=transfer, compute=compute)).step_ns().mean())
    return changed / base


def larger_transfers(
    collectives: Sequence[Collective], kind: Sequence[int], transfer: Int, world: int, times: float
) -> Int:
    """Transfer of each replayed collective (ns) where groups of all ranks have `times` as many members."""
    least: dict[str, int] = defaultdict(lambda: np.iinfo(np.int64).max)
    for place, number in enumerate(kind):
        op = collectives[number].op
        least[op] = min(least[op], int(transfer[place]))
    made = transfer.astype(float)
    for place, number in enumerate(kind):
        one = collectives[number]
        n = len(one.group)
        if n < world or n < 2 or one.links:
            continue
        more = n * times
        latency = float(least[one.op])
        hops = (more - 1) / (n - 1)
        bus = bus_factor(one.op, max(round(more), 2)) / bus_factor(one.op, n)
        made[place] = latency * hops + (made[place] - latency) * bus
    whole: Int = np.rint(made).astype(np.int64)
    return whole


def _less_work(graph: StepGraph, rank: int, work: float) -> Int:
    """Compute before each node, from the first step on `work` times as much (ns)."""
    nodes = graph.ranks[rank]
    spent = nodes.spent[:, _COMPUTE_BUCKETS]
    first = int(spent[graph.edges[rank][0]])
    less: Int = first + np.rint((spent - first) * work).astype(np.int64)
    return less


STAGES_EVEN = "stages even"
STAGE_PACE = "slowest stage at the others' pace"
TWICE_THE_MICRO_BATCHES = "twice the micro-batches"
INTERLEAVED = "interleaved, two stages a rank"
_MOVES = [WORK.index(name) for name in ("compute", "memory", "idle_host")]  # with the layers; the rest is the rank's
_MOST_LAUNCHING = 2.0  # times as long as now, where a stage gets more to compute
_HOST_BOUND = 0.05  # of the step: a host that is late so long would be later with twice as many launches


def predict_pipelines(graph: StepGraph, bubbles: Sequence[Bubble]) -> list[Prediction]:
    """The steps with the same work shared evenly over the stages, and with twice as many micro-batches, half as large.

    Where all kernels take longer on the slowest stage than on the others, the steps without that too. Twice the batches
    only where the schedule's bubble is known and no host bounds its stage. It takes kernels of half the size to need
    half the time, so it is the most that can be saved. Two stages a rank where each has one (interleaved) fill and
    drain half as long too, with whole kernels, but with the sends of a pipeline of twice as many stages: they are taken
    as exposed as they are now.
    """
    inside = [bubble for bubble in bubbles if all(stage.rank in graph.ranks for stage in bubble.stages)]
    if not inside:
        return []
    ranks = tuple(sorted(stage.rank for bubble in inside for stage in bubble.stages))
    shares = {
        stage.rank: bubble.mean_work / stage.work for bubble in inside for stage in bubble.stages if stage.work > 0
    }
    nodes = {rank: _scaled(own, shares[rank]) if rank in shares else own for rank, own in graph.ranks.items()}
    made = [Prediction(STAGES_EVEN, ranks, simulate(replace(graph, ranks=nodes), Scenario()).step_ns())]
    if slow := {one.slowest.rank: 1 / one.slower_alike for one in inside if one.slower_alike is not None}:
        quicker = {rank: _quicker(own, slow[rank]) if rank in slow else own for rank, own in graph.ranks.items()}
        steps = simulate(replace(graph, ranks=quicker), Scenario()).step_ns()
        made.append(Prediction(STAGE_PACE, tuple(sorted(slow)), steps))
    saved = [_half_the_passage(bubble, graph) for bubble in inside]
    if all(own is not None for own in saved):
        base = simulate(graph).step_ns()
        least = min(own for own in saved if own is not None)
        made.append(Prediction(TWICE_THE_MICRO_BATCHES, ranks, _paced(graph, base - least)))
        # Where ranks hold one stage each, and micro-batches come in rounds of as many as there are ranks
        if all(
            (one.pipeline.micro_batches or 0) % len(one.stages) == 0
            and one.pipeline.chunks == 1
            and one.pipeline.schedule in ("gpipe", "1f1b")
            for one in inside
        ):
            # What the sends between twice as many stages would take more, as exposed as those of today
            more = max(one.sending * ((2 * len(one.stages) - 1) / (len(one.stages) - 1) - 1) for one in inside)
            made.append(Prediction(INTERLEAVED, ranks, _paced(graph, base - max(least - more, 0.0))))
    return made


def _paced(graph: StepGraph, steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """The steps, as far as loaders keep up with them."""
    return paced(steps, batch_ns(graph, {}), graph.typical)


def _half_the_passage(bubble: Bubble, graph: StepGraph) -> float | None:
    """Half of the time in which a pipeline fills and drains, ns; None where it cannot be said what that becomes."""
    if passes_of(bubble.pipeline) is None or bubble.pipeline.schedule == "forward_only":
        return None
    late = WORK.index("idle_host")
    for stage in bubble.stages:
        nodes, edges = graph.ranks[stage.rank], graph.edges[stage.rank]
        spent = nodes.spent[edges[-1], late] - nodes.spent[edges[0], late]
        if spent > _HOST_BOUND * (nodes.begin[edges[-1]] - nodes.begin[edges[0]]):
            return None
    return min(stage.fill_drain for stage in bubble.stages) / 2


def _quicker(nodes: RankNodes, share: float) -> RankNodes:
    """A rank whose kernels take this share of their time; its host does what it did."""
    column = WORK.index("compute")
    less, joined, waited = (
        np.rint((share - 1) * spent[:, column]).astype(np.int64)
        for spent in (nodes.spent, nodes.join_spent, nodes.waits.spent)
    )
    waits = replace(nodes.waits, work=nodes.waits.work + waited)
    return replace(nodes, work=nodes.work + less, join_work=nodes.join_work + joined, waits=waits)


def _scaled(nodes: RankNodes, share: float) -> RankNodes:
    """A rank with this share of its computation, and of the host's time that launches it. That time grows no further
    than to `_MOST_LAUNCHING`: a stage that hardly computes launches about as many operators as the others all the same,
    and what comes to it takes no longer to launch there than where it was."""
    known = nodes.host > NEVER
    launching = min(share, _MOST_LAUNCHING)
    host, waiting = nodes.host.copy(), nodes.waits.host
    if np.count_nonzero(known):
        first = int(host[known].min())
        host[known] = first + np.rint(launching * (host[known] - first)).astype(np.int64)
        waiting = first + np.rint(launching * (waiting - first)).astype(np.int64)
    more, joined, waited = (
        np.rint((share - 1) * spent[:, _MOVES].sum(axis=1)).astype(np.int64)
        for spent in (nodes.spent, nodes.join_spent, nodes.waits.spent)
    )
    waits = replace(nodes.waits, work=nodes.waits.work + waited, host=waiting)
    return replace(nodes, work=nodes.work + more, join_work=nodes.join_work + joined, host=host, waits=waits)
