"""Which steps all ranks share, and which are unlike the others.

Steps that were found, not marked, must mean the same on all ranks; where they cannot, each rank is one window.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.match import MatchedCollectives, match_collectives
from traceops.core.arrays import Floats, Int, Mask, median, nanmedian, uniques
from traceops.measure.copies import RankCopies
from traceops.measure.found_steps import LEAST_STEPS
from traceops.measure.inventory import RankInventory
from traceops.measure.program import PAINTED, RankProgram
from traceops.measure.steps import FAR, NO_STEP, far_beyond, typical_steps
from traceops.measure.summary import RankSummary, numbered_steps

_CLEAR = 0.9  # of the collectives that two ranks share: they must say the same


def with_agreed_steps(ranks: Sequence[RankSummary], world: int) -> list[RankSummary]:
    """The ranks with steps that mean the same on all of them; as they are where the profiler marked the steps. Steps
    that marks do not number are counted on each rank from where it began to record: what is matched across ranks tells
    how far that is apart. Ranks that found other marks, none, or hardly any steps in common are left with one window
    each."""
    found = [summary for summary in ranks if summary.steps_by not in ("profiler", "window", "cut_off")]
    if not found:
        return list(ranks)
    agreed = _agreed(found, world) if len(found) == len(ranks) else None
    if agreed is not None:
        return agreed
    looked = {summary.rank for summary in found}
    return [as_one_window(summary) if summary.rank in looked else summary for summary in ranks]


def _agreed(ranks: list[RankSummary], world: int) -> list[RankSummary] | None:
    if len({(summary.steps_by, summary.step_mark) for summary in ranks}) > 1:
        return None
    if len({frozenset(_numbers(summary)) for summary in ranks}) > 1:
        if (apart := _apart(ranks, world)) is None:
            return None
        ranks = [_renumbered(summary, apart[summary.rank]) for summary in ranks]
    numbers = [_numbers(summary) for summary in ranks]
    common, every = set.intersection(*numbers), set.union(*numbers)
    return ranks if len(common) >= max(LEAST_STEPS, len(every) / 2) else None


def _numbers(summary: RankSummary) -> set[int]:
    return {*summary.step_numbers.tolist(), *summary.empty_steps}


def _apart(ranks: Sequence[RankSummary], world: int) -> dict[int, int] | None:
    """What to add to each rank's numbers so that matched collectives are in one step; None where that is not clear."""
    by_rank = {summary.rank: summary for summary in ranks}
    matching = match_collectives([as_one_window(summary) for summary in ranks], tuple(range(world)))
    votes: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for collective in matching.collectives:
        (first, position), *others = collective.members
        number = by_rank[first].step_number(position)
        for rank, place in others:
            other = by_rank[rank].step_number(place)
            if number is not None and other is not None:
                votes[first, rank][number - other] += 1
                votes[rank, first][other - number] += 1
    apart, reached = {ranks[0].rank: 0}, [ranks[0].rank]
    for rank in reached:
        for (one, other), counts in votes.items():
            if one == rank and other not in apart:
                shift, most = counts.most_common(1)[0]
                if most < _CLEAR * counts.total():
                    return None
                apart[other] = apart[rank] + shift
                reached.append(other)
    if len(apart) < len(ranks):
        return None
    least = min(apart[summary.rank] + min(_numbers(summary)) for summary in ranks)
    return {rank: shift - min(least, 0) for rank, shift in apart.items()}


def _renumbered(summary: RankSummary, shift: int) -> RankSummary:
    if not shift:
        return summary
    host = replace(summary.host, extra=tuple(replace(one, step=one.step + shift) for one in summary.host.extra))
    return replace(
        summary,
        step_numbers=summary.step_numbers + shift,
        empty_steps=tuple(number + shift for number in summary.empty_steps),
        host=host,
    )


_R = TypeVar("_R", bound=Struct)


def _summed(record: _R, *names: str) -> _R:
    """The record with these columns, a number a step, as that of one step."""
    return replace(record, **{name: getattr(record, name).sum(keepdims=True) for name in names})


def as_one_window(summary: RankSummary) -> RankSummary:
    """The same rank with all its steps taken as one, from the first one's start to the last one's end."""
    count = len(summary.step_numbers)
    step, ledger, backward = summary.comm.step, summary.ledger, summary.backward
    buckets = {name: ns.sum(keepdims=True) for name, ns in ledger.buckets.items()}
    return replace(
        summary,
        step_numbers=np.array([NO_STEP]),
        step_edges=summary.step_edges[[0, -1]],
        empty_steps=(),
        ledger=replace(ledger, duration=ledger.duration.sum(keepdims=True), buckets=buckets),
        comm=replace(summary.comm, step=np.where(step < 0, step, np.where(step < count, 0, 1))),
        program=_program(summary.program, summary.step_edges),
        inventory=_inventory(summary.inventory),
        host=replace(summary.host, extra=(), optimizing=(sum(summary.host.optimizing),)),
        backward=replace(
            backward,
            steps_with_backward=min(backward.steps_with_backward, 1),
            steps_synchronised=min(backward.steps_synchronised, 1),
            device_end=backward.device_end.max(keepdims=True),
        ),
        copies=None if summary.copies is None else _copies(summary.copies),
        stacks=tuple(
            replace(_summed(one, "host_ns"), idle_ns=one.idle_ns.sum(axis=1, keepdims=True)) for one in summary.stacks
        ),
        anomaly=None if summary.anomaly is None else _summed(summary.anomaly, "count", "host_ns"),
        held=tuple(_summed(one, "idle_ns", "count") for one in summary.held),
        host_work=None if summary.host_work is None else _summed(summary.host_work, "idle_ns"),
        steps_by="window",
        step_mark="",
    )


def _program(program: RankProgram, edges: Int) -> RankProgram:
    inner = len(program.host) - len(edges)  # collectives, then the edges
    kept = np.concatenate((np.arange(inner), [inner, len(program.host) - 1]))
    cells = edges[0] + (edges[-1] - edges[0]) * (np.arange(PAINTED) + 0.5) / PAINTED
    step = np.clip(np.searchsorted(edges, cells, side="right") - 1, 0, len(edges) - 2)
    within = (cells - edges[step]) / np.maximum(edges[step + 1] - edges[step], 1)
    at = np.clip((within * PAINTED).astype(np.int64), 0, PAINTED - 1)
    return replace(
        program,
        host=program.host[kept],
        host_input=program.host_input[kept],
        syncs_before=program.syncs_before[kept],
        painted=program.painted[step, at][None, :],
    )


def _inventory(inventory: RankInventory) -> RankInventory:
    whole = inventory.step_bytes.sum(keepdims=True) if (inventory.step_bytes >= 0).all() else np.array([-1])
    return replace(_summed(inventory, "step_kernels", "step_collectives", "step_blocking"), step_bytes=whole)


def _copies(copies: RankCopies) -> RankCopies:
    kinds = []
    for kind in copies.kinds:
        known = kind.total_bytes[kind.total_bytes >= 0]
        one = _summed(kind, "count", "device_ns", "blocked_ns", "alone_ns", "exposed_ns")
        total = known.sum(keepdims=True) if len(known) else np.array([-1])
        kinds.append(replace(one, bytes=np.array([kind.size]), total_bytes=total))
    return replace(_summed(copies, "sync_ns"), kinds=tuple(kinds))


# Ranks that were recorded at another time than the others and share no collective with them: of another capture.

_LEAST_APART_NS = 10**9
_WINDOWS_APART = 2


class ApartInTime(Struct, frozen=True):
    """A rank whose window begins so long after (negative: before) that of the ranks it is held against, ns."""

    rank: int
    path: str
    after_ns: int
    others: tuple[int, ...]


def apart_in_time(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> tuple[ApartInTime, ...]:
    """Of ranks that mark the same steps and have collectives, those of which none matches, far from the most others.
    Clocks may be apart: then collectives match all the same, and align them."""
    matched = {rank for collective in matching.collectives for rank, _ in collective.members}
    alone = [summary for summary in ranks if len(summary.comm.start)]
    main, rest = most_at_one_time(alone, _LEAST_APART_NS, _WINDOWS_APART)
    steps = numbered_steps(main)
    found = []
    for summary in rest:
        if summary.rank not in matched and steps & summary.numbered_steps:
            others = tuple(one.rank for one in main)
            found.append(ApartInTime(summary.rank, summary.path, begin_ns(summary) - begin_ns(main[0]), others))
    return tuple(found)


def most_at_one_time(
    ranks: Sequence[RankSummary], least_ns: int, windows: int
) -> tuple[list[RankSummary], list[RankSummary]]:
    """The most ranks whose windows lie near each other, of two such groups the later, and the rest, in order of time.
    Between groups lies more than `least_ns` and so many of the longest window."""
    in_order = sorted(ranks, key=begin_ns)
    longest = max((int(own.step_edges[-1]) - begin_ns(own) for own in in_order), default=0)
    groups: list[list[RankSummary]] = []
    end = 0
    for summary in in_order:
        if not groups or begin_ns(summary) - end > max(least_ns, windows * longest):
            groups.append([])
            end = int(summary.step_edges[-1])
        groups[-1].append(summary)
        end = max(end, int(summary.step_edges[-1]))
    main = max(groups, key=lambda own: (len(own), begin_ns(own[0])), default=[])
    return main, [summary for group in groups if group is not main for summary in group]


def begin_ns(summary: RankSummary) -> int:
    """Where the rank's first step begins, by its own clock."""
    return int(summary.step_edges[0])


MORE_WORK = 1.2  # times the kernels of a typical step: other work runs
_FELT = 0.5  # of what a rank does more in a step: the others wait for that in the next one; of a long step: its cause
_WHOLE = 0.9  # of the shortest other step: a first one that the device begins late takes less
_ALONE = 0.3  # of the steps: so many without any communication
_FEWEST_SHARED = 2  # steps that all ranks recorded, so that the others are left out
_SHARED = 0.25  # of the median rank's steps, for the same


def unlike_steps(
    ranks: Sequence[RankSummary],
    waits: Mapping[int, Int],
    usual_ms: Sequence[float] = (),
    transfers: Mapping[int, Int] | None = None,
) -> tuple[int, ...]:
    """Numbers of the steps that are no measure of the others, in order [docs/metrics.md, the typical step].

    `waits` is what each rank waits for others in each of its steps, ns, `transfers` what it then exchanges. A step is
    unlike the others where its median over ranks takes far longer than most; where a rank's own time makes it as long,
    though the others, already in the next step, wait for that rank there; and where they do so. Where ranks communicate
    in few steps, these are part of each round, and only the ranks' own times without communication tell: those of the
    slowest rank, whom the others wait for.
    """
    numbers = sorted({number for summary in ranks for number in summary.step_numbers.tolist()})
    at = {number: i for i, number in enumerate(numbers)}
    durations, own, waited = (np.full((len(ranks), len(numbers)), np.nan) for _ in range(3))
    # In post-local SGD no rank communicates in a good part of the steps, though they do in others.
    meets = np.zeros(len(at), dtype=bool)
    for summary in ranks:
        step = summary.comm.step[(summary.comm.step >= 0) & (summary.comm.step < len(summary.step_numbers))]
        meets[[at[number] for number in summary.step_numbers[uniques(step)].tolist()]] = True
    in_few = bool(meets.any()) and float(meets.mean()) <= 1 - _ALONE
    for row, summary in enumerate(ranks):
        place = [at[number] for number in summary.step_numbers.tolist()]
        durations[row, place], waited[row, place] = summary.ledger.duration, waits[summary.rank]
        own[row, place] = durations[row, place] - waited[row, place] - (transfers or {}).get(summary.rank, 0) * in_few
    if not numbers:
        return ()
    if in_few:
        durations = own
    took = np.nanmax(durations, axis=0) if in_few else nanmedian(durations, axis=0)
    rare = _rare_in_run(took, usual_ms)
    unlike = ~typical_steps(took) | _with_more_work(took, _kernels(ranks, at)) | rare
    if len(numbers) > 1:
        # Each rank against itself: a slow rank is as slow in every step.
        more = np.nanmax(np.minimum(_beyond(own), _beyond(durations)), axis=0)
        alone = ~typical_steps(median(took) + more)
        alone_in_run = rare & (more >= _FELT * (took - median(took)))
        more_waiting = np.nanmax(np.minimum(_beyond(waited), _beyond(durations)), axis=0)
        echo = np.concatenate(([False], (alone | alone_in_run)[:-1] & (more_waiting[1:] >= _FELT * more[:-1])))
        unlike |= alone | echo
        # The device ends what was launched before: the rest of the first step is no step.
        lacks, least = -max(summary.catches_up_ns for summary in ranks), took[1:].min()
        unlike[0] |= len(numbers) > 2 and not unlike.any() and took[0] < _WHOLE * least <= took[0] + lacks
    return tuple(number for number, odd in zip(numbers, unlike.tolist(), strict=True) if odd)


def unshared_steps(ranks: Sequence[RankSummary]) -> tuple[int, ...]:
    """Numbers of the steps that some ranks did not record, where enough are left; in them nothing can be matched."""
    recorded = [set(summary.step_numbers.tolist()) for summary in ranks]
    if len(recorded) < 2:
        return ()
    shared = set.intersection(*recorded)
    usual = float(median([len(own) for own in recorded]))
    if len(shared) < max(_FEWEST_SHARED, _SHARED * usual):
        return ()
    return tuple(sorted(set.union(*recorded) - shared))


def _kernels(ranks: Sequence[RankSummary], at: Mapping[int, int]) -> Floats:
    """Kernels in each step, the median over ranks."""
    counts = np.full((len(ranks), len(at)), np.nan)
    for row, summary in enumerate(ranks):
        counts[row, [at[number] for number in summary.step_numbers.tolist()]] = summary.inventory.step_kernels
    middle: Floats = nanmedian(counts, axis=0)
    return middle


def _with_more_work(took: Floats, kernels: Floats) -> Mask:
    """Steps that are far longer than most, and in which more runs: an evaluation in every second or third one. There
    are too many of them for the spread of all steps to show. So most steps must run as many kernels, and these are held
    against the spread of those."""
    usual = median(kernels)
    like = (kernels <= MORE_WORK * usual) & (usual <= MORE_WORK * kernels)
    if 2 * int(like.sum()) <= len(like):
        return np.zeros(len(took), dtype=bool)
    return (kernels > MORE_WORK * usual) & far_beyond(took, took[like])


def _rare_in_run(took: Floats, usual_ms: Sequence[float]) -> Mask:
    """Steps (ns) that take far longer than the longest typical one of the whole run. Recording makes steps longer, and
    so it makes that one: as much as the lower median of the recorded steps is beyond the median of those. So most
    recorded steps are never left out."""
    if not len(usual_ms):
        return np.zeros(len(took), dtype=bool)
    lower = np.sort(took)[(len(took) - 1) // 2]
    slower = max(1.0, float(lower) / (1e6 * median(usual_ms)))
    rare: Mask = took > FAR * slower * 1e6 * float(np.max(usual_ms))
    return rare


def _beyond(ns: Floats) -> Floats:
    """What each rank (row) has in a step beyond its median step."""
    more: Floats = ns - nanmedian(ns, axis=1)[:, None]
    return more
