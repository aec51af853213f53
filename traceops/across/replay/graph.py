"""The graph of all ranks' work and collectives, made from the ranks' programs and the matching."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from traceops.across.clocks import ClockFit
from traceops.across.match import Collective, MatchedCollectives
from traceops.core.arrays import Int, is_in, spread_before, uniques
from traceops.measure.ledger import OWN_BUCKETS
from traceops.measure.program import FOLLOWS_NS, NEVER, RankProgram
from traceops.measure.summary import RankSummary

# Beside the ledger's own buckets: time in which communication ran while the rank's host was late.
WORK = (*OWN_BUCKETS, "masked")

Steps = NDArray[np.float64]  # of something in each step, ns
Label = tuple[Any, ...]
# Where the members of each collective begin, their ranks by place in the graph and their nodes; where what each member
# needs begins, and that, as places among the members; whether all members of a collective end together.
FlatCollectives = tuple[Int, Int, Int, Int, Int, Int]


class HostWaits(Struct, frozen=True):
    """Where a rank's host waited for its device, in order: it launches nothing behind that before the device is there.
    At own time `work` the device was done with what the host waited for, and `host` is the host's own time when it went
    on, `host_input` of it spent in data loading. `stands_at`, `spent` and `longer` are as those of RankNodes."""

    stands_at: Int
    work: Int
    host: Int
    host_input: Int
    spent: Int
    longer: Int


class RankNodes(Struct, frozen=True):
    """One rank's part: its collectives and step edges as nodes, and where it waited for one of them.

    `work[i]` is the rank's own time at node i: the moment (ns, common clock) less all waiting in joins
    before it; the node begins `delay[i]` after that, or after the end of node `after[i]` (-1: none),
    whichever is later. Join j, over at `joined_at[j]`, waits at own time `join_work[j]` for the
    end of node `join_node[j]`. Neither node i nor the work behind it begins before `host[i]`, the host's own
    time. `spent` and `join_spent` tell how much of the own time went to each of WORK. `slowed` is how much of it
    before node i compute kernels took only because communication beside them waited for other ranks; `longer` and
    `join_longer` count with it what the host was in the allocator while communication ran. Node i was launched behind
    the first `waits_before[i]` of `waits`.
    """

    labels: tuple[Label, ...]
    work: Int
    delay: Int
    after: Int
    stands_at: Int  # the moment of each node (ns, the rank's clock), which orders nodes and joins
    standing: Int  # the same moment on the common clock, or when the join began in which it falls
    join_node: Int
    joined_at: Int
    join_work: Int
    host: Int
    host_input: Int
    spent: Int
    join_spent: Int
    slowed: Int
    longer: Int
    join_longer: Int
    waits: HostWaits
    waits_before: Int
    first_edge: int  # node of the first step's start; the other edges follow
    begin: Int  # as measured, common clock
    end: Int


class StepGraph(Struct, frozen=True, dict=True):
    """All ranks' nodes; `members[c]` are (rank, node) of collective c, in an order in which they can be replayed.
    `needs[c][i]` are the members, as positions in `members[c]`, that member i cannot end without, itself too; None
    where all members end together. `kind[c]` is the index of the collective in `matching.collectives`. `loading_ns` is
    what workers of a rank's loader take for the batches of a step, where that is known; `typical` are the steps like
    each other, None: all."""

    ranks: dict[int, RankNodes]
    members: tuple[tuple[tuple[int, int], ...], ...]
    needs: tuple[tuple[tuple[int, ...], ...] | None, ...]
    transfer: Int
    kind: tuple[int, ...]
    steps: tuple[int, ...]
    edges: dict[int, NDArray[np.int64]]  # rank -> node of each edge of `steps`, one more than steps
    roles: dict[int, tuple[int, ...]]  # rank -> the ranks that ran nearly the same program, itself too
    on_cpu: frozenset[int] = frozenset()  # ranks whose work the host itself does
    loading_ns: Mapping[int, float] = field(default_factory=dict)
    typical: NDArray[np.bool_] | None = None
    kernels: Mapping[int, Int] = field(default_factory=dict)  # rank -> how many it ran in each of `steps`

    @cached_property
    def end_of(self) -> dict[int, Int]:
        """Rank -> the place of each of its nodes among the members of all collectives in order, -1 for step edges."""
        found = {rank: [-1] * len(nodes.work) for rank, nodes in self.ranks.items()}
        for place, (rank, node) in enumerate(member for members in self.members for member in members):
            found[rank][node] = place
        return {rank: np.array(own, dtype=np.int64) for rank, own in found.items()}

    @cached_property
    def collectives(self) -> FlatCollectives:
        """`members` and `needs` as arrays."""
        place = {rank: number for number, rank in enumerate(self.ranks)}
        needs = [own or ((),) * len(members) for members, own in zip(self.members, self.needs, strict=True)]
        each = [places for own in needs for places in own]
        return (
            _starts(map(len, self.members)),
            np.array([place[rank] for members in self.members for rank, _ in members], dtype=np.int64),
            np.array([node for members in self.members for _, node in members], dtype=np.int64),
            _starts(map(len, each)),
            np.array([one for places in each for one in places], dtype=np.int64),
            np.array([own is None for own in self.needs], dtype=np.int64),
        )

    @cached_property
    def lead(self) -> dict[int, int]:
        """Rank -> how far its host had run ahead before the window, ns."""
        return {rank: lead(nodes) for rank, nodes in self.ranks.items()}

    @cached_property
    def hosts_unknown(self) -> tuple[int, ...]:
        """The ranks whose hosts are slower in the window than they were before it, or whose lead is not known.

        Changes take it that they keep up.
        """
        return tuple(rank for rank, nodes in self.ranks.items() if is_unknown(nodes))

    @cached_property
    def hosts_slower(self) -> tuple[int, ...]:
        """Those of them that are known to be slower in the window."""
        return tuple(rank for rank, nodes in self.ranks.items() if uses_up_lead(nodes))

    @cached_property
    def own_steps(self) -> dict[int, Steps]:
        """Rank -> its own time in each step, ns: what is left of it without waiting."""
        return {rank: np.diff(nodes.work[self.edges[rank]]).astype(float) for rank, nodes in self.ranks.items()}

    def needed_by(self, number: int, rank: int) -> tuple[tuple[int, int], ...]:
        """Those members of a collective, as (rank, node), that this rank's cannot end without, itself too."""
        members, needs = self.members[number], self.needs[number]
        if needs is None:
            return members
        own = next(i for i, (member, _) in enumerate(members) if member == rank)
        return tuple(members[i] for i in needs[own])

    def slowed_us(self, rank: int) -> float:
        """What a rank's kernels took a step only because communication beside them waited, µs."""
        first, *_, last = self.edges[rank].tolist()
        slowed = self.ranks[rank].slowed
        return float(slowed[last] - slowed[first]) / 1e3 / len(self.steps)

    def peers(self, rank: int) -> list[int]:
        """The other ranks that ran the same program."""
        return [other for other in self.roles[rank] if other != rank]

    def has_peers(self, rank: int) -> bool:
        """Whether there are any, without a list of thousands of peers for each rank."""
        return any(other != rank for other in self.roles[rank])


def _starts(lengths: Iterable[int]) -> Int:
    """Where each of these begins behind the others, and where the last one ends."""
    return np.concatenate(([0], np.fromiter(lengths, dtype=np.int64).cumsum())).astype(np.int64)


def spent_before(program: RankProgram, moments: Int) -> Int:
    """Own time by WORK before each moment, ns; what no bucket holds is communication that masked a late host."""
    if not len(moments):
        return np.empty((0, program.own.shape[1] + 1), dtype=np.int64)
    inside = np.minimum(np.maximum(moments, program.times[0]), program.times[-1])
    own = program.own[program.times.searchsorted(inside)]
    joined = program.joined_before(np.concatenate((program.times[:1], inside)))
    masked = np.maximum(inside - program.times[0] - (joined[1:] - joined[0]) - own.sum(axis=1), 0)
    return np.concatenate((own, masked[:, None]), axis=1)


def place_of(label: Label) -> Label:
    """The same in each step."""
    return (label[0], *label[2:]) if label[0] == "step" else label[1:]


def step_of(label: Label, index: Mapping[int, int], count: int) -> int:
    """Index of the step that what comes before this label is of; -1 outside of them."""
    if label[0] != "step":
        return index.get(label[0], -1)
    return count - 1 if label[1] == "end" else index[label[1]] - 1


_LOST = 0.002  # of a step, a step: what a host must lose of its lead under a change to be looked at
_USED = 0.02  # of a step, a step: what a host must take longer than the measured steps to use up its lead
_MOST_STEPS = 64  # whose leads are held against each other


def least_loss(step_ns: float, steps: int) -> float:
    """What a host must lose of its lead over so many steps under a change to be looked at, ns."""
    return _LOST * steps * step_ns


def lead(nodes: RankNodes) -> int:
    """How far the host had run ahead before the window, ns: while its rank waited, which a change may end. None of it
    is taken from a host that uses it up in the steps as they were measured. It takes longer there than they do, so it
    cannot have got ahead at that pace: the profiler slows it, and nothing tells how fast it is without. Nor from one of
    which the first step does not tell, or that waits in every step until its device has done all, and gets ahead
    anew."""
    own = leads(nodes)
    return 0 if not own[0] or caught_up_each_step(nodes) or _uses_up(nodes, own) else own[0]


def is_unknown(nodes: RankNodes) -> bool:
    """Whether nobody knows how fast the host is by itself. One without any launch in the trace is not replayed. It uses
    up its lead, or the trace has launches, and none in the first step: nothing shows how far ahead it was."""
    own = leads(nodes)
    return (own[0] is None and any(one is not None for one in own)) or _uses_up(nodes, own)


def caught_up_each_step(nodes: RankNodes) -> bool:
    """Whether in every step the host waits until the device has done all that was launched before. One that waits for
    an event of the step before keeps what it is ahead."""
    edges, waits = nodes.stands_at[nodes.first_edge :], nodes.waits.stands_at
    if len(waits) < len(edges) - 1:
        return False
    launched = nodes.host > NEVER
    behind, stands_at = nodes.waits_before[launched], nodes.stands_at[launched]
    order = behind.argsort(kind="stable")
    latest = np.maximum.accumulate(np.concatenate(([NEVER], stands_at[order])))
    all_done = latest[behind[order].searchsorted(np.arange(len(waits)), side="right")] <= waits
    # A wait on an edge is of the step that ends there.
    step = edges.searchsorted(waits[all_done], side="left")
    return len(uniques(step[(step > 0) & (step < len(edges))])) == len(edges) - 1


def uses_up_lead(nodes: RankNodes) -> bool:
    """Whether the host takes longer than the steps do, so that it is less far ahead from one to the next. By the median
    over all pairs of steps, which no single odd step decides. Steps in which nothing is left of the lead tell no more
    than the first of them."""
    return _uses_up(nodes, leads(nodes))


def _uses_up(nodes: RankNodes, own: Sequence[int | None]) -> bool:
    known = [(number, ns) for number, ns in enumerate(own[:_MOST_STEPS]) if ns is not None]
    while len(known) > 1 and known[-1][1] == known[-2][1] == 0:
        known.pop()
    lost = [(before - after) / (later - at) for (at, before), (later, after) in combinations(known, 2)]
    edges = nodes.stands_at[nodes.first_edge :]
    step_ns = float(edges[-1] - edges[0]) / max(len(edges) - 1, 1)
    return bool(lost) and median(lost) > _USED * step_ns


def leads(nodes: RankNodes) -> list[int | None]:
    """By how much the host was ahead at the latest launch in each step, ns; 0 where it was not, None if not known."""
    edges = nodes.stands_at[nodes.first_edge :]
    known = nodes.host > NEVER
    ahead, at = (nodes.standing - nodes.host)[known], nodes.stands_at[known]
    step = np.maximum(edges.searchsorted(at, side="left") - 1, 0)  # on an edge it is of the step that ends there
    own = [ahead[step == number] for number in range(len(edges) - 1)]
    return [max(int(one.min()), 0) if len(one) else None for one in own]


# The pace of data loaders in a replay: workers that rest behind a late rank bound the step that its cure leaves.

_INPUT = WORK.index("idle_input")
_LONGER = 0.05  # of the step: who waits so much longer for input than its peer is late by its loader


def batch_ns(graph: StepGraph, program_of: Mapping[int, int], in_time: Sequence[int] = ()) -> float:
    """What the slowest of the ranks' loaders takes for the batches of a step, ns; 0 where none is known. program_of:
    whose program a rank runs. It keeps its own loader unless that is why it is late. in_time: ranks whose input is
    taken to be there."""
    if not (known := graph.loading_ns):
        return 0.0
    left = [rank for rank in graph.ranks if rank not in in_time]
    taken = [known.get(_loader_of(graph, rank, program_of.get(rank, rank)), 0.0) for rank in left]
    return max(taken, default=0.0)


def paced(steps: NDArray[np.float64], batch: float, typical: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """The steps, ns, if the typical ones take no less than `batch` on average: the shortest wait for input. typical:
    None where all are. Batches that lie ready from a long step serve the short ones after it."""
    usual = np.sort(steps[typical] if typical is not None and np.count_nonzero(typical) else steps)
    if not len(usual) or usual.mean() >= batch:
        return steps
    total = batch * len(usual)
    for count in range(1, len(usual) + 1):
        level = (total - usual[count:].sum()) / count
        if count == len(usual) or level <= usual[count]:
            break
    raised: NDArray[np.float64] = np.maximum(steps, level)
    return raised


def _loader_of(graph: StepGraph, rank: int, source: int) -> int:
    """Whose loader feeds a rank that runs the program of `source`."""
    if source == rank:
        return rank
    longer = _waits_for_input(graph, rank) - _waits_for_input(graph, source)
    begin, edges = graph.ranks[rank].begin, graph.edges[rank]
    return source if longer >= _LONGER * int(begin[edges[-1]] - begin[edges[0]]) else rank


def _waits_for_input(graph: StepGraph, rank: int) -> int:
    spent, edges = graph.ranks[rank].spent[:, _INPUT], graph.edges[rank]
    return int(spent[edges[-1]] - spent[edges[0]])


# Position in the rank's communication, label, collective, and in ns: lag and waiting.
_Labelled = tuple[int, Label, int, int, int]
_Program = tuple[frozenset[Label], bool, int | None]  # collectives, whether launches are known, stage
_ALIKE = 0.9  # of their collectives that ranks of one role share
_MOST_ROLES = 64  # beyond so many different programs only equal ones are one role
_MATCHED = 0.5  # of a rank's collectives in a step: with fewer the step shows too little


def build_graph(
    ranks: Sequence[RankSummary],
    matching: MatchedCollectives,
    fits: Mapping[int, ClockFit],
    stages: Mapping[int, int] | None = None,
) -> StepGraph | None:
    """The graph over the steps that all ranks share; None where there is nothing to compare. Ranks in different
    `stages` of a pipeline are no peers, whatever their programs look like."""
    steps = _common_steps(ranks, matching)
    if not steps or len(ranks) < 2 or not matching.collectives:
        return None
    step_of = {summary.rank: summary.steps_of_comm() for summary in ranks}
    took = {summary.rank: (summary.comm.end - summary.comm.start).tolist() for summary in ranks}
    labels: dict[int, list[_Labelled]] = {summary.rank: [] for summary in ranks}
    count: dict[Label, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    # By step, and in it from the end, because windows start at different moments; then peers' labels agree.
    for number in range(len(matching.collectives) - 1, -1, -1):
        collective = matching.collectives[number]
        senders = {i for i, _ in collective.links}
        for place, (rank, position) in enumerate(collective.members):
            key = (
                step_of[rank][position],
                collective.description,
                len(collective.group),
                collective.op,
                place in senders,
            )
            lag = took[rank][position] - collective.wait_ns[place] - collective.transfer_ns
            before = count[key]
            labels[rank].append((position, (*key, before[rank]), number, lag, collective.wait_ns[place]))
            before[rank] += 1
    for own in labels.values():
        own.sort(key=lambda entry: entry[0])
    nodes = {s.rank: _rank_nodes(s, fits[s.rank], labels[s.rank], steps) for s in ranks}
    at = {rank: {number: i for i, (_, _, number, *_) in enumerate(own)} for rank, own in labels.items()}
    members = [
        tuple((rank, at[rank][number]) for rank, _ in one.members) for number, one in enumerate(matching.collectives)
    ]
    order = _order(members, nodes)
    return StepGraph(
        ranks=nodes,
        members=tuple(members[number] for number in order),
        transfer=np.array([matching.collectives[number].transfer_ns for number in order], dtype=np.int64),
        needs=tuple(_needs(matching.collectives[number], members[number], nodes) for number in order),
        kind=tuple(order),
        steps=steps,
        edges={rank: np.arange(len(own.work) - len(steps) - 1, len(own.work)) for rank, own in nodes.items()},
        roles=_roles(nodes, steps, stages or {}),
        kernels={s.rank: s.inventory.step_kernels[is_in(s.step_numbers, steps)] for s in ranks},
        on_cpu=frozenset(summary.rank for summary in ranks if not summary.on_gpu),
    )


def _needs(
    collective: Collective, members: Sequence[tuple[int, int]], nodes: Mapping[int, RankNodes]
) -> tuple[tuple[int, ...], ...] | None:
    """What each member waits for: both ends of a message for each other, unless it was sent before it was asked for."""
    if collective.needs:
        return collective.needs
    if not collective.links:
        return None
    needs = [{place} for place in range(len(members))]
    for sender, receiver in collective.links:
        needs[receiver].add(sender)
        (rank, node), (other, theirs) = members[sender], members[receiver]
        if int(nodes[rank].end[node]) > int(nodes[other].begin[theirs]):
            needs[sender].add(receiver)
    return tuple(tuple(sorted(own)) for own in needs)


def _roles(
    nodes: Mapping[int, RankNodes], steps: Sequence[int], stages: Mapping[int, int]
) -> dict[int, tuple[int, ...]]:
    """Ranks whose programs are nearly the same: a collective more here and there makes no other role."""
    by_program: dict[_Program, list[int]] = defaultdict(list)
    for rank, own in nodes.items():
        launches_known = bool(np.count_nonzero(own.host > NEVER))  # else its host cannot be compared, nor its causes
        inside = frozenset(label for label in own.labels if label[0] == "step" or label[0] in steps)
        by_program[inside, launches_known, stages.get(rank)].append(rank)
    roles: dict[int, tuple[int, ...]] = {}
    for program, ranks in by_program.items():
        like = (
            [other for other in by_program if _alike(program, other)] if len(by_program) <= _MOST_ROLES else [program]
        )
        together = tuple(sorted(rank for other in like for rank in by_program[other]))
        roles |= dict.fromkeys(ranks, together)
    return roles


def _alike(one: _Program, other: _Program) -> bool:
    shared = len(one[0] & other[0])
    return one[1:] == other[1:] and shared >= _ALIKE * max(len(one[0]), len(other[0]))


def _common_steps(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> tuple[int, ...]:
    """The longest run of consecutive steps that every rank recorded, with most of their collectives matched."""
    if not ranks:
        return ()
    matched: dict[int, list[int]] = defaultdict(list)
    for collective in matching.collectives:
        for rank, position in collective.members:
            matched[rank].append(position)
    common = set.intersection(*(_usable_steps(summary, matched[summary.rank]) for summary in ranks))
    first = [int(n) for n in ranks[0].step_numbers if int(n) in common]
    runs: list[list[int]] = []
    for number in first:
        if runs and all(_consecutive(summary, runs[-1][-1], number) for summary in ranks):
            runs[-1].append(number)
        else:
            runs.append([number])
    longest = max((len(run) for run in runs), default=0)
    return next((tuple(run) for run in runs if len(run) == longest), ())


def _usable_steps(summary: RankSummary, matched: Sequence[int]) -> set[int]:
    """Numbers of the steps that can be replayed: none of an incomplete trace; other damage may lie in the last one."""
    if summary.incomplete:
        return set()
    count = len(summary.step_numbers)
    inside = (summary.comm.step >= 0) & (summary.comm.step < count)
    of_all = np.bincount(summary.comm.step[inside], minlength=count)
    chosen = np.zeros(len(inside), dtype=bool)
    chosen[np.array(matched, dtype=np.int64)] = True
    of_matched = np.bincount(summary.comm.step[inside & chosen], minlength=count)
    usable = of_matched >= _MATCHED * of_all
    usable[count - bool(summary.damage) :] = False
    return {int(number) for number in summary.step_numbers[usable]}


def _consecutive(summary: RankSummary, one: int, other: int) -> bool:
    numbers = summary.step_numbers
    at = (numbers == one).nonzero()[0]
    return len(at) > 0 and int(at[0]) + 1 < len(numbers) and int(numbers[int(at[0]) + 1]) == other


def _order(members: Sequence[Sequence[tuple[int, int]]], nodes: Mapping[int, RankNodes]) -> list[int]:
    """Collectives by their end: whatever one waited for had ended before."""
    end = {rank: own.end.tolist() for rank, own in nodes.items()}
    ends = [max(end[rank][node] for rank, node in own) for own in members]
    return sorted(range(len(ends)), key=ends.__getitem__)


def _rank_nodes(summary: RankSummary, fit: ClockFit, own: Sequence[_Labelled], steps: tuple[int, ...]) -> RankNodes:
    """The rank's part; what its own threads end a collective later than it was over (lag) is its own time."""
    comm, program = summary.comm, summary.program
    at = np.array([position for position, *_ in own], dtype=np.int64)
    lag, wait = np.array([entry[3:] for entry in own], dtype=np.int64).reshape(-1, 2).T
    node_of = np.full(len(comm.start) + 1, -1, dtype=np.int64)
    node_of[at] = np.arange(len(at))
    known = node_of[program.join_comm] >= 0 if len(program.join_comm) else np.zeros(0, dtype=bool)
    join_start, join_end = program.join_start[known], program.join_end[known]
    join_node = node_of[program.join_comm[known]]

    first = int((summary.step_numbers == steps[0]).nonzero()[0][0])
    edges = summary.step_edges[first : first + len(steps) + 1]
    start, end = comm.start[at], comm.end[at]
    ready = program.ready[at]
    for stream in uniques(comm.stream[at]):  # a stream runs in order
        same = comm.stream[at] == stream
        ready[same] = np.minimum(np.maximum.accumulate(ready[same]), start[same])
    after, after_end = _followed(start, end - lag, comm.stream[at], ready)

    waited = np.concatenate(([0], (join_end - join_start).cumsum()))
    moments = np.concatenate((ready, edges))
    standing, joined = _standing(join_start, join_end, moments)
    work = fit.correct(standing) - waited[joined]
    base = np.maximum(standing[: len(at)], after_end)
    delay = np.concatenate((np.maximum(start - base, 0), np.zeros(len(edges), dtype=np.int64)))
    # A join ends when its collective does, or a little later.
    late = join_end - (end - lag)[join_node] if len(join_node) else np.zeros(0, dtype=np.int64)
    chosen = np.concatenate((at, len(comm.start) + first + np.arange(len(edges))))
    slowed = partial(_slowed, start, end, wait, comm.slowed[at])

    def longer(moments: Int) -> Int:
        return slowed(moments) + program.allocating.covered_before(moments)

    return RankNodes(
        labels=(*(label for _, label, *_ in own), *(("step", number) for number in (*steps, "end"))),
        work=work,
        delay=delay,
        after=np.concatenate((after, _closing(end, edges))),
        stands_at=moments,
        standing=fit.correct(standing),
        join_node=join_node,
        joined_at=join_end,
        join_work=fit.correct(join_start) - waited[:-1] - late,
        host=np.where(program.host[chosen] > NEVER, fit.correct(program.host[chosen]), NEVER),
        host_input=program.host_input[chosen],
        spent=spent_before(program, standing),
        join_spent=spent_before(program, join_start),
        slowed=slowed(standing),
        longer=longer(standing),
        join_longer=longer(join_start),
        waits=_waits(program, fit, join_start, join_end, longer),
        waits_before=program.syncs_before[chosen],
        first_edge=len(at),
        begin=fit.correct(np.concatenate((start, edges))),
        end=fit.correct(np.concatenate((end, edges))),
    )


def _standing(join_start: Int, join_end: Int, moments: Int) -> tuple[Int, Int]:
    """Where the rank stands at each moment, and the joins before it: in the middle of one, where that began."""
    joined = join_end.searchsorted(moments, side="right")
    if not len(join_start):
        return moments, joined
    begun = join_start.searchsorted(moments, side="right")
    return np.where(begun > joined, join_start[np.minimum(joined, len(join_start) - 1)], moments), joined


def _waits(
    program: RankProgram, fit: ClockFit, join_start: Int, join_end: Int, longer: Callable[[Int], Int]
) -> HostWaits:
    """Where the host waited for the device. From when that was done to when the call returned is the host's own."""
    syncs = program.syncs
    at, joined = _standing(join_start, join_end, syncs.done)
    waited = np.concatenate(([0], (join_end - join_start).cumsum()))
    return HostWaits(
        stands_at=syncs.done,
        work=fit.correct(at) - waited[joined],
        host=fit.correct(syncs.host) - (syncs.end - syncs.done),
        host_input=syncs.host_input,
        spent=spent_before(program, at),
        longer=longer(at),
    )


def _slowed(start: Int, end: Int, wait: Int, longer: Int, moments: Int) -> Int:
    """What compute took longer beside collectives that waited, before each moment, ns: their part of `longer`."""
    waiting = longer * wait / np.maximum(end - start, 1)
    return np.rint(spread_before(start, start + wait, waiting, moments)).astype(np.int64)


def _closing(end: Int, edges: Int) -> Int:
    """The collective whose end is the step's, -1 where the step ends with something else."""
    if not len(end):
        return np.full(len(edges), -1, dtype=np.int64)
    order = end.argsort(kind="stable")
    at = np.minimum(end[order].searchsorted(edges), len(end) - 1)
    return np.where(end[order][at] == edges, order[at], -1)


def _followed(start: Int, end: Int, stream: Int, ready: Int) -> tuple[Int, Int]:
    """The collective each one had to wait for (-1: none) and its end: before it on its stream, or close before it."""
    after = np.full(len(start), -1, dtype=np.int64)
    for value in uniques(stream):
        same = (stream == value).nonzero()[0]
        after[same[1:]] = same[:-1]
    ended = np.where(after >= 0, end[after], NEVER) if len(start) else start
    by_end = end.argsort(kind="stable")
    closest = end[by_end].searchsorted(start, side="right") - 1
    other = by_end[np.maximum(closest, 0)] if len(start) else closest
    follows = (closest >= 0) & (other != np.arange(len(start)))
    follows &= (end[other] > np.maximum(ready, ended)) & (start - end[other] <= FOLLOWS_NS)
    after = np.where(follows, other, after)
    ended = np.where(follows, end[other], ended)
    return after, np.minimum(ended, start)
