"""One clock for all ranks, and when collectives end on it.

Ends of collectives that every member leaves together set the clocks. Where hosts run the collectives, waiting is over
when the last member came, however late a thread goes on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.match import Collective, MatchedCollectives
from traceops.core.arrays import Floats, Int, median, merge, percentiles, union
from traceops.measure.steps import NO_STEP
from traceops.measure.summary import RankSummary

# All members leave these together; of a broadcast or a reduce the root may leave long before.
_SYNCHRONISES = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.I)
_TOGETHER_NS = 50_000  # both ends of a message are left within this time where neither could go on before
_LEAST_ANCHORS = 3
_LEAST_FOR_DRIFT = 8
_OUT_OF_NOISE = 6.0  # times the residual that a drift moves a clock over the window
_MOST_ANCHORS = 200  # a pair; slopes are taken between all of them
_ONE_CLOCK_NS = 200_000  # ranks of one host whose fits differ by more have other clocks
_NOISE = 4.0  # times what the ends of a collective lie apart: no less is told from noise either
_DRIFT_PPM = 500.0  # no clock of a computer is worse: what looks like more is noise


class ClockFit(Struct, frozen=True):
    """How a rank's clock maps to the common one: t + offset + drift · (t − reference), ns."""

    offset_ns: int = 0
    drift: float = 0.0
    reference_ns: int = 0

    def correct(self, t: Int) -> Int:
        """Moments of the rank's clock (int64 ns) on the common clock."""
        if not self.drift:
            return t + self.offset_ns
        moved: Int = t + self.offset_ns + np.rint(self.drift * (t - self.reference_ns)).astype(np.int64)
        return moved


class ClockAlignment(Struct, frozen=True):
    """A fit a rank, and how far apart the aligned ends of one collective still are (ns). `unaligned` are ranks that
    share no synchronising collective with the others; `anchors` counts the collectives used."""

    fits: dict[int, ClockFit]
    anchors: int
    residual_p50_ns: float | None
    residual_p95_ns: float | None
    unaligned: tuple[int, ...] = ()


def on_one_clock(
    matching: MatchedCollectives, ranks: Sequence[RankSummary], hosts: Mapping[int, str | None]
) -> tuple[MatchedCollectives, ClockAlignment, list[RankSummary]]:
    """The collectives of all ranks on one clock, without what only looks like waiting, and the ranks after that."""
    clocks = align_clocks(ranks, matching, hosts)
    matching = without_first_meetings(without_late_ends(matching, ranks, clocks), ranks)
    matching = with_roots(matching, ranks, clocks)
    return matching, clocks, with_woken_threads(ranks, matching)


def align_clocks(
    ranks: Sequence[RankSummary], matching: MatchedCollectives, hosts: Mapping[int, str | None] | None = None
) -> ClockAlignment:
    """Fit offset and drift by Theil–Sen on ends of collectives, along a spanning tree over the groups. Ranks of one
    host share its clock: they get the median of their fits, unless their own ends contradict that (a trace whose times
    were shifted), and one without anchors gets another's."""
    hosts = hosts or {}
    ends = {summary.rank: summary.comm.end for summary in ranks}
    anchors: dict[int, dict[int, int]] = {rank: {} for rank in ends}
    together = _end_together(ranks, matching)
    used = 0
    for number, collective in enumerate(matching.collectives):
        if _SYNCHRONISES.search(collective.op) or number in together:
            used += 1
            for rank, position in collective.members:
                anchors[rank][number] = int(ends[rank][position])
    fits = _along_tree(anchors)
    # A rank that shares no anchor with the others takes the fit of one of its host.
    by_host = {hosts.get(rank): fits[rank] for rank in sorted(fits) if hosts.get(rank) is not None}
    fits |= {rank: by_host[host] for rank in anchors.keys() - fits.keys() if (host := hosts.get(rank)) in by_host}
    unaligned = tuple(sorted(anchors.keys() - fits.keys()))
    fits |= dict.fromkeys(unaligned, ClockFit())
    own = _spreads(fits, anchors)
    fits = _one_a_host(fits, anchors, hosts, own)
    spread = _spreads(fits, anchors)
    if len(own) and median(spread) > _ONE_CLOCK_NS:
        spread = own  # late threads, and no clock is at fault: each rank's own fit says whether pairs are right
    middle, high = percentiles(spread, (50, 95)) if len(spread) else (None, None)
    return ClockAlignment(fits, used, middle, high, unaligned if len(anchors) > 1 else ())


def _end_together(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> set[int]:
    """Sends and receives that both ends leave together: a small message may be sent long before it is received. Those
    of two ranks on GPUs, both ways at once, or else the ones that end latest at the sender."""
    ends = {summary.rank: summary.comm.end for summary in ranks if summary.on_gpu}
    apart: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    found = set[int]()
    for number, collective in enumerate(matching.collectives):
        if len(collective.members) != 2 or any(rank not in ends for rank in collective.group):
            continue
        if len(set(collective.links)) == 2:
            found.add(number)
        elif collective.links:
            (sender, sent), (receiver, received) = (collective.members[i] for i in collective.links[0])
            apart[sender, receiver].append((int(ends[sender][sent]) - int(ends[receiver][received]), number))
    for own in apart.values():
        latest = max(later for later, _ in own)
        found |= {number for later, number in own if latest - later <= _TOGETHER_NS}
    return found


def theil_sen(x: Int, y: Int) -> tuple[float, float]:
    """Slope and the value at median x of the line through the medians [Theil 1950, Sen 1968]."""
    middle = median(x)
    if len(x) < 2:
        return 0.0, median(y)
    left, right = np.triu_indices(len(x), 1)
    run = (x[right] - x[left]).astype(float)
    apart = np.abs(run) > 0
    slope = float(median((y[right] - y[left])[apart] / run[apart])) if np.count_nonzero(apart) else 0.0
    return slope, float(median(y - slope * (x - middle)))


def _along_tree(anchors: dict[int, dict[int, int]]) -> dict[int, ClockFit]:
    """Fits of all ranks that can be reached from the one with most anchors, each through its best neighbour."""
    if not anchors:
        return {}
    by_anchor: dict[int, list[int]] = defaultdict(list)
    for rank, own in anchors.items():
        for number in own:
            by_anchor[number].append(rank)
    root = min(anchors, key=lambda rank: (-len(anchors[rank]), rank))
    fits = {root: ClockFit()}
    shared: dict[int, list[tuple[int, int]]] = defaultdict(list)  # rank -> anchors and their common time
    known: dict[int, float] = {}
    newly = [root]
    while True:
        for rank in newly:
            numbers = [number for number in anchors[rank] if number not in known]
            common = fits[rank].correct(np.array([anchors[rank][n] for n in numbers], dtype=np.int64))
            for number, moment in zip(numbers, common, strict=True):
                known[number] = int(moment)
                for other in by_anchor[number]:
                    if other not in fits:
                        shared[other].append((number, int(moment)))
        if (most := max(map(len, shared.values()), default=0)) < _LEAST_ANCHORS:
            return fits
        newly = [rank for rank, met in shared.items() if len(met) == most]
        for rank in newly:
            met, moments = zip(*shared.pop(rank), strict=True)
            theirs = np.array([anchors[rank][number] for number in met], dtype=np.int64)
            fits[rank] = _fit(theirs, np.array(moments, dtype=np.int64))


def _fit(own: Int, common: Int) -> ClockFit:
    """Offset and drift that take `own` to `common`; drift only where it explains more than it disturbs."""
    if len(own) > _MOST_ANCHORS:
        chosen = np.linspace(0, len(own) - 1, _MOST_ANCHORS).astype(np.int64)
        own, common = own[chosen], common[chosen]
    apart = common - own
    base = int(median(apart))
    middle = round(median(own))
    if len(own) < _LEAST_FOR_DRIFT:
        return ClockFit(base, 0.0, middle)
    slope, at_middle = theil_sen(own, apart - base)
    flat = np.abs(apart - base)
    sloped = np.abs(apart - base - at_middle - slope * (own - middle))
    trusted = abs(slope) * 1e6 <= _DRIFT_PPM
    moved = abs(slope) * float(np.ptp(own))  # over the window: has to stand out of the noise
    if trusted and median(sloped) < 0.5 * median(flat) and moved > _OUT_OF_NOISE * median(sloped):
        return ClockFit(base + round(at_middle), slope, middle)
    return ClockFit(base, 0.0, middle)


def _one_a_host(
    fits: dict[int, ClockFit], anchors: dict[int, dict[int, int]], hosts: Mapping[int, str | None], spread: Floats
) -> dict[int, ClockFit]:
    """Ranks whose traces came from one clock get its fit: less noise, and kernels keep their order."""
    most = max(_ONE_CLOCK_NS, _NOISE * median(spread) if len(spread) else 0.0)
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank in fits:
        if (host := hosts.get(rank)) is not None and anchors[rank]:
            by_host[host].append(rank)
    result = dict(fits)
    for own in by_host.values():
        offsets = [fits[rank].offset_ns for rank in own]
        if max(offsets) - min(offsets) < most and not any(fits[rank].drift for rank in own):
            result |= dict.fromkeys(own, ClockFit(int(median(offsets))))
    return result


def _spreads(fits: dict[int, ClockFit], anchors: dict[int, dict[int, int]]) -> Floats:
    """Per anchor, last minus first end among its members after alignment, ns."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for rank, own in anchors.items():
        moments = fits[rank].correct(np.fromiter(own.values(), dtype=np.int64, count=len(own)))
        for number, moment in zip(own, moments.tolist(), strict=True):
            first[number] = min(first.get(number, moment), moment)
            last[number] = max(last.get(number, moment), moment)
    return np.array([last[number] - first[number] for number in first], dtype=float)


def without_late_ends(
    matching: MatchedCollectives, ranks: Sequence[RankSummary], clocks: ClockAlignment
) -> MatchedCollectives:
    """The same with waiting on hosts ended where the last member came, on the common clock. Kernels of a collective end
    together, so that what a rank spends beyond the shortest is waiting. A backend's thread on a busy CPU may end
    milliseconds after the others: that is no waiting for a rank."""
    on_cpu = {summary.rank for summary in ranks if summary.exchanges_on_host} - set(clocks.unaligned)
    if not on_cpu:
        return matching
    begin = {
        summary.rank: clocks.fits[summary.rank].correct(summary.comm.start).tolist()
        for summary in ranks
        if summary.rank in on_cpu
    }
    return replace(
        matching,
        collectives=tuple(
            one if one.links or not on_cpu.issuperset(one.group) else _until_last_came(one, begin)
            for one in matching.collectives
        ),
    )


def _until_last_came(collective: Collective, begin: dict[int, list[int]]) -> Collective:
    came = [begin[rank][position] for rank, position in collective.members]
    last = max(came)
    waits = zip(collective.wait_ns, came, strict=True)
    return replace(
        collective,
        wait_ns=tuple(min(wait, last - moment) for wait, moment in waits),
        came_last=None if collective.is_rooted else collective.members[came.index(last)][0],
    )


def with_woken_threads(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> list[RankSummary]:
    """The ranks, with each open spell of a thread decided that the other ranks decide. A backend's own thread records a
    collective's end, and where it gets no core it does so long after the end. A thread that went on once the last
    member was there, and before that record, had waited for the collective. One that went on while a member was still
    missing had not: it did something of its own."""
    asked = {summary.rank: summary for summary in ranks if len(summary.program.spell_comm)}
    came: dict[int, dict[int, int]] = {rank: {} for rank in asked}  # by position: when the last member had begun
    for collective in matching.collectives if asked else ():
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            if rank in asked:
                came[rank][position] = int(asked[rank].comm.start[position]) + wait
    return [_decided(summary, came[summary.rank]) if summary.rank in asked else summary for summary in ranks]


def _decided(summary: RankSummary, came: Mapping[int, int]) -> RankSummary:
    program = summary.program
    waited_for = program.spell_comm.tolist()
    known = np.array([position in came for position in waited_for])
    there = program.spell_end >= np.array([came.get(position, 0) for position in waited_for])
    waited, own = known & there, known & ~there
    start = np.concatenate((program.join_start, program.spell_start[waited]))
    order = start.argsort(kind="stable")
    return replace(
        summary,
        program=replace(
            program,
            join_start=start[order],
            join_end=np.concatenate((program.join_end, program.spell_end[waited]))[order],
            join_comm=np.concatenate((program.join_comm, program.spell_comm[waited]))[order],
            unheld=merge(program.unheld, union(program.spell_start[own], program.spell_end[own])),
        ),
    )


# The collectives in which ranks first met in a window that marks no steps: they show when each began to record.

FIRST_MEETING = "the first between its ranks, which shows how far apart they began to record"


def without_first_meetings(matching: MatchedCollectives, ranks: Sequence[RankSummary]) -> MatchedCollectives:
    """The matching less those collectives, if no rank has steps: what ranks wait there says nothing of the run. Where
    there are steps the profiler was at work before the first of them, and ranks had met."""
    if any((summary.step_numbers != NO_STEP).any() for summary in ranks):
        return matching
    ends = {summary.rank: summary.comm.end for summary in ranks}
    order = sorted(
        matching.collectives, key=lambda one: max(int(ends[rank][position]) for rank, position in one.members)
    )
    root = {summary.rank: summary.rank for summary in ranks}

    def find(rank: int) -> int:
        while root[rank] != rank:
            root[rank] = rank = root[root[rank]]
        return rank

    first = set()
    for collective in order:
        apart = {find(rank) for rank, _ in collective.members}
        if len(apart) > 1:
            first.add(collective.members)
            one = apart.pop()
            for other in apart:
                root[other] = one
    if not first:
        return matching
    events = sum(len(members) for members in first)
    return replace(
        matching,
        collectives=tuple(one for one in matching.collectives if one.members not in first),
        unmatched={**matching.unmatched, FIRST_MEETING: events},
    )


# The root of a broadcast, reduce, gather or scatter: traces do not name it, but who waits for whom tells it.

_FROM_ROOT = re.compile(r"broadcast|^scatter", re.I)
_EXPLAINED = 0.9  # of the waiting, that a root must explain
_NEXT_BEST = 0.5  # of what the root explains: the most that another one may explain
_ALL = -1  # in place of a root: each member needs all others
_SOON = 0.2  # of its waiting: a member that waited for another goes on so soon when that has come
_LEAST_STEPS = 3  # in which a place tells its root
_EARLY_NS = 200_000  # by so much clocks may let a member end before the root that it waited for has begun


def with_roots(
    matching: MatchedCollectives, ranks: Sequence[RankSummary], clocks: ClockAlignment
) -> MatchedCollectives:
    """The same with the root of rooted operations where times tell it, and waiting only for whom it takes.

    Of one group's operations of one kind, a root is whose coming ends the others' waiting (broadcast, scatter), or who
    alone waits (reduce, gather), each time. No member may end before one that it needs has begun. Where no root
    explains the waiting and nobody ever ends before the last has come, all wait for the last, as in an all-reduce.
    Where neither is so, the same is asked of each place in the step: ZeRO's optimizers send from rank after rank.
    Where that tells nothing either (several in flight, handed on along a tree), but members go on as soon as another
    has come, each waits for the last that came before it could end.
    """
    begin = {s.rank: clocks.fits[s.rank].correct(s.comm.start) for s in ranks}
    end = {s.rank: clocks.fits[s.rank].correct(s.comm.end) for s in ranks}
    alike: dict[tuple[tuple[int, ...], str, str], list[int]] = defaultdict(list)
    for number, one in enumerate(matching.collectives):
        if one.is_rooted and not set(one.group) & set(clocks.unaligned):
            alike[one.group, one.description, one.op].append(number)
    found = dict[int, Collective]()
    step_of = {s.rank: s.comm.step for s in ranks}
    for (_, _, op), numbers in alike.items():
        if not _find(found, op, numbers, matching, begin, end):
            for of_place in _by_place(numbers, matching, step_of):
                _find(found, op, of_place, matching, begin, end)
            left = [number for number in numbers if number not in found]
            found |= _by_arrival(left, matching, begin, end)
    return replace(
        matching, collectives=tuple(found.get(number, one) for number, one in enumerate(matching.collectives))
    )


def _find(
    found: dict[int, Collective],
    op: str,
    numbers: Sequence[int],
    matching: MatchedCollectives,
    begin: Mapping[int, Int],
    end: Mapping[int, Int],
) -> bool:
    """Adds these operations to `found` where times tell whom their members wait for; whether they do."""
    own = [matching.collectives[number] for number in numbers]
    shape = (len(own), len(own[0].members))
    begins, ends = (
        np.array([at[rank][position] for one in own for rank, position in one.members]).reshape(shape)
        for at in (begin, end)
    )
    waits = np.array([one.wait_ns for one in own], dtype=np.int64)
    root = _root(op, begins, ends, waits)
    for row, (number, one) in enumerate(zip(numbers, own, strict=True)):
        if root == _ALL:
            found[number] = replace(one, came_last=one.members[int(begins[row].argmax())][0])
        elif root is not None:
            found[number] = _waiting_for(one, root, begins[row].tolist(), ends[row].tolist())
    return root is not None


def _by_arrival(
    numbers: Sequence[int], matching: MatchedCollectives, begin: Mapping[int, Int], end: Mapping[int, Int]
) -> dict[int, Collective]:
    """Each member waits for those that came before it ended; none where hardly any ends as soon as the last of them."""
    found, soon, whole = dict[int, Collective](), 0, 0
    for number in numbers:
        one = matching.collectives[number]
        begins = [int(begin[rank][position]) for rank, position in one.members]
        ends = [int(end[rank][position]) for rank, position in one.members]
        needs = [[j for j, came in enumerate(begins) if j == i or came <= ends[i]] for i in range(len(begins))]
        came = [max(begins[j] for j in own) for own in needs]
        waits = [last - first for last, first in zip(came, begins, strict=True)]
        whole += sum(one.wait_ns)
        soon += sum(wait for wait, over, last in zip(waits, ends, came, strict=True) if over - last <= _SOON * wait)
        found[number] = replace(one, wait_ns=tuple(waits), needs=tuple(map(tuple, needs)))
    return found if whole and soon >= _EXPLAINED * whole else {}


def _by_place(numbers: Sequence[int], matching: MatchedCollectives, step_of: Mapping[int, Int]) -> list[list[int]]:
    """The operations by their place among these in a step; none where steps have not as many, or but one has any."""
    by_step: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        rank, position = matching.collectives[number].members[0]
        by_step[int(step_of[rank][position])].append(number)
    inside = [own for step, own in by_step.items() if step >= 0]
    if len(inside) < _LEAST_STEPS or len({len(own) for own in inside}) > 1:
        return []
    return [list(of_place) for of_place in zip(*inside, strict=True)]


def _root(op: str, begins: Int, ends: Int, waits: Int) -> int | None:
    """The root's place, _ALL where all wait for the last, None where times tell neither. Arrays have the shape
    (operations, members)."""
    together = _until_came(op, _ALL, begins)
    if not (whole := float(np.minimum(waits, together).sum())):
        return None
    explained = np.zeros(begins.shape[1])
    for root in range(begins.shape[1]):
        until = _until_came(op, root, begins)
        if _possible(until, begins, ends):
            explained[root] = float(np.minimum(waits, until).sum())
    order = explained.argsort(kind="stable")
    best, following = explained[order[-1]], explained[order[-2]] if len(order) > 1 else 0.0
    if best >= _EXPLAINED * whole and following <= _NEXT_BEST * best:
        return int(order[-1])
    return _ALL if best < _EXPLAINED * whole and _possible(together, begins, ends) else None


def _until_came(op: str, root: int, begins: Int) -> Int:
    """How long each member waits until those that it needs have begun, ns; shape (operations, members)."""
    last = begins.max(axis=1, keepdims=True)
    if root == _ALL:
        until: Int = last - begins
    elif _FROM_ROOT.search(op):
        until = np.maximum(begins[:, [root]] - begins, 0)
    else:
        until = np.zeros_like(begins)
        until[:, [root]] = last - begins[:, [root]]
    return until


def _possible(until: Int, begins: Int, ends: Int) -> bool:
    """Whether no member ends before one that it needs has begun."""
    return bool((begins + until <= ends + _EARLY_NS).all())


def _waiting_for(one: Collective, root: int, begins: Sequence[int], ends: Sequence[int]) -> Collective:
    """The operation with each member's waiting for those that it needs. The side that gives its data needs the other as
    well where it did not end before that came: it could not hand over."""
    gives = bool(_FROM_ROOT.search(one.op))
    of_root = [i for i, begin in enumerate(begins) if i == root or not gives or ends[root] > begin]
    of_others = [gives or end > begins[root] for end in ends]
    needs = [of_root if i == root else sorted((i, root)) if needed else [i] for i, needed in enumerate(of_others)]
    waits = zip(one.wait_ns, needs, begins, strict=True)
    return replace(
        one,
        wait_ns=tuple(min(wait, max(begins[i] for i in own) - begin) for wait, own, begin in waits),
        needs=tuple(map(tuple, needs)),
    )
