"""Builds the graph of all ranks' work and collectives from the ranks' programs and the matching."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from traceops.across.clocks import ClockFit
from traceops.across.match import Collective, MatchedCollectives
from traceops.across.replay.graph import HostWaits, Label, RankNodes, StepGraph, spent_before
from traceops.core.arrays import Int, spread_before
from traceops.measure.program import FOLLOWS_NS, NEVER, RankProgram
from traceops.measure.summary import RankSummary

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
    """The graph over the steps that all ranks share; None where there is nothing to compare.

    Ranks in different `stages` of a pipeline are no peers, whatever their programs look like.
    """
    steps = _common_steps(ranks, matching)
    if not steps or len(ranks) < 2 or not matching.collectives:
        return None
    by_rank = {summary.rank: summary for summary in ranks}
    labels: dict[int, list[_Labelled]] = {summary.rank: [] for summary in ranks}
    count: dict[tuple[int, Label], int] = defaultdict(int)
    # By step, and in it from the end, because windows start at different moments; then peers' labels agree.
    for number in range(len(matching.collectives) - 1, -1, -1):
        collective = matching.collectives[number]
        senders = {i for i, _ in collective.links}
        for place, (rank, position) in enumerate(collective.members):
            sends = place in senders
            step = by_rank[rank].step_number(position)
            key = (step, collective.description, len(collective.group), collective.op, sends)
            spent = int(by_rank[rank].comm.end[position] - by_rank[rank].comm.start[position])
            lag = spent - collective.wait_ns[place] - collective.transfer_ns
            labels[rank].append((position, (*key, count[rank, key]), number, lag, collective.wait_ns[place]))
            count[rank, key] += 1
    for own in labels.values():
        own.sort(key=lambda entry: entry[0])
    nodes = {s.rank: _rank_nodes(s, fits[s.rank], labels[s.rank], steps) for s in ranks}
    at = {rank: {number: i for i, (_, _, number, *_) in enumerate(own)} for rank, own in labels.items()}
    order = _order(matching, nodes, at)
    return StepGraph(
        ranks=nodes,
        members=tuple(
            tuple((rank, at[rank][number]) for rank, _ in matching.collectives[number].members) for number in order
        ),
        transfer=np.array([matching.collectives[number].transfer_ns for number in order], dtype=np.int64),
        needs=tuple(
            _needs(
                matching.collectives[number],
                [(nodes[rank], at[rank][number]) for rank, _ in matching.collectives[number].members],
            )
            for number in order
        ),
        kind=tuple(order),
        steps=steps,
        edges={rank: np.arange(len(own.work) - len(steps) - 1, len(own.work)) for rank, own in nodes.items()},
        roles=_roles(nodes, steps, stages or {}),
        kernels={s.rank: s.inventory.step_kernels[np.isin(s.step_numbers, steps)] for s in ranks},
        on_cpu=frozenset(summary.rank for summary in ranks if not summary.on_gpu),
    )


def _needs(collective: Collective, ends: Sequence[tuple[RankNodes, int]]) -> tuple[tuple[int, ...], ...] | None:
    """What each member waits for: both ends of a message for each other, unless it was sent before it was asked for."""
    if collective.needs:
        return collective.needs
    if not collective.links:
        return None
    needs = [{place} for place in range(len(ends))]
    for sender, receiver in collective.links:
        needs[receiver].add(sender)
        (own, node), (theirs, other) = ends[sender], ends[receiver]
        if int(own.end[node]) > int(theirs.begin[other]):
            needs[sender].add(receiver)
    return tuple(tuple(sorted(own)) for own in needs)


def _roles(
    nodes: Mapping[int, RankNodes], steps: Sequence[int], stages: Mapping[int, int]
) -> dict[int, tuple[int, ...]]:
    """Ranks whose programs are nearly the same: a collective more here and there makes no other role."""
    by_program: dict[_Program, list[int]] = defaultdict(list)
    for rank, own in nodes.items():
        launches_known = bool((own.host > NEVER).any())  # else its host cannot be compared, nor its causes
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
    at = np.flatnonzero(numbers == one)
    return len(at) > 0 and int(at[0]) + 1 < len(numbers) and int(numbers[int(at[0]) + 1]) == other


def _order(
    matching: MatchedCollectives, nodes: Mapping[int, RankNodes], at: Mapping[int, Mapping[int, int]]
) -> list[int]:
    """Collectives by their end: whatever one waited for had ended before."""
    end = {rank: own.end.tolist() for rank, own in nodes.items()}
    ends = [
        max(end[rank][at[rank][number]] for rank, _ in collective.members)
        for number, collective in enumerate(matching.collectives)
    ]
    return sorted(range(len(ends)), key=lambda number: ends[number])


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

    first = int(np.flatnonzero(summary.step_numbers == steps[0])[0])
    edges = summary.step_edges[first : first + len(steps) + 1]
    start, end = comm.start[at], comm.end[at]
    ready = program.ready[at]
    for stream in np.unique(comm.stream[at]):  # a stream runs in order
        same = comm.stream[at] == stream
        ready[same] = np.minimum(np.maximum.accumulate(ready[same]), start[same])
    after, after_end = _followed(start, end - lag, comm.stream[at], ready)

    waited = np.concatenate(([0], np.cumsum(join_end - join_start)))
    moments = np.concatenate((ready, edges))
    standing, joined = _standing(join_start, join_end, moments)
    work = fit.correct(standing) - waited[joined]
    base = np.maximum(standing[: len(at)], after_end)
    delay = np.concatenate((np.maximum(start - base, 0), np.zeros(len(edges), dtype=np.int64)))
    # A join ends when its collective does, or a little later.
    late = join_end - (end - lag)[join_node] if len(join_node) else np.zeros(0, dtype=np.int64)
    chosen = np.concatenate((at, len(comm.start) + first + np.arange(len(edges))))
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
        slowed=_slowed(start, end, wait, comm.slowed[at], standing),
        waits=_waits(program, fit, join_start, join_end),
        waits_before=program.syncs_before[chosen],
        first_edge=len(at),
        begin=fit.correct(np.concatenate((start, edges))),
        end=fit.correct(np.concatenate((end, edges))),
    )


def _standing(join_start: Int, join_end: Int, moments: Int) -> tuple[Int, Int]:
    """Where the rank stands at each moment, and the joins before it: in the middle of one, where that began."""
    joined = np.searchsorted(join_end, moments, side="right")
    if not len(join_start):
        return moments, joined
    begun = np.searchsorted(join_start, moments, side="right")
    return np.where(begun > joined, join_start[np.minimum(joined, len(join_start) - 1)], moments), joined


def _waits(program: RankProgram, fit: ClockFit, join_start: Int, join_end: Int) -> HostWaits:
    """Where the host waited for the device. From when that was done to when the call returned is the host's own."""
    syncs = program.syncs
    at, joined = _standing(join_start, join_end, syncs.done)
    waited = np.concatenate(([0], np.cumsum(join_end - join_start)))
    return HostWaits(
        stands_at=syncs.done,
        work=fit.correct(at) - waited[joined],
        host=fit.correct(syncs.host) - (syncs.end - syncs.done),
        host_input=syncs.host_input,
        spent=spent_before(program, at),
    )


def _slowed(start: Int, end: Int, wait: Int, longer: Int, moments: Int) -> Int:
    """What compute took longer beside collectives that waited, before each moment, ns: their part of `longer`."""
    waiting = longer * wait / np.maximum(end - start, 1)
    return np.rint(spread_before(start, start + wait, waiting, moments)).astype(np.int64)


def _closing(end: Int, edges: Int) -> Int:
    """The collective whose end is the step's, -1 where the step ends with something else."""
    if not len(end):
        return np.full(len(edges), -1, dtype=np.int64)
    order = np.argsort(end, kind="stable")
    at = np.minimum(np.searchsorted(end[order], edges), len(end) - 1)
    return np.where(end[order][at] == edges, order[at], -1)


def _followed(start: Int, end: Int, stream: Int, ready: Int) -> tuple[Int, Int]:
    """The collective each one had to wait for (-1: none) and its end: before it on its stream, or close before it."""
    after = np.full(len(start), -1, dtype=np.int64)
    for value in np.unique(stream):
        same = np.flatnonzero(stream == value)
        after[same[1:]] = same[:-1]
    ended = np.where(after >= 0, end[after], np.iinfo(np.int64).min) if len(start) else start
    by_end = np.argsort(end, kind="stable")
    closest = np.searchsorted(end[by_end], start, side="right") - 1
    other = by_end[np.maximum(closest, 0)] if len(start) else closest
    follows = (closest >= 0) & (other != np.arange(len(start)))
    follows &= (end[other] > np.maximum(ready, ended)) & (start - end[other] <= FOLLOWS_NS)
    after = np.where(follows, other, after)
    ended = np.where(follows, end[other], ended)
    return after, np.minimum(ended, start)
