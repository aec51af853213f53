"""The picture of each step for a page: rows of the map, collectives of the reduce, on one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

import numpy as np
from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.across.links import busbw_gbs, collective_bytes
from traceops.across.rank_times import RankTimes
from traceops.core.arrays import Bars, Int, fewer, shares
from traceops.core.findings import Finding
from traceops.core.words import Role
from traceops.measure.detail import DetailRow, unpack_detail
from traceops.measure.exchanges import message_bytes
from traceops.report.detail import Detail, DetailLane, DetailRank, DetailStep, DetailTransfer, alike_ranks
from traceops.report.rows import RankRow
from traceops.traces.model import CommArgs

MOST_RANKS = 8
MOST_BARS = 32_000  # of all ranks and steps together; some 6 bytes each in a page
_LEAST_BARS = 40  # a rank and step
_MOST_TRANSFERS = 8_000  # likewise together
_MOST_DRAWN = 9_000  # bars of the steps that a page has room for: 45 to 60 kB
_MOST_STAGES = 6
_NONE = np.empty(0, dtype=np.int64)


class _Recorded(Struct, frozen=True):
    """What one rank recorded of a step: the step's place in its summary, its rows, and a number for each name there."""

    times: RankTimes
    place: int
    rows: Sequence[DetailRow]
    numbers: Int

    def edges(self, run: CrossRank) -> Int:
        """Begin and end of its step on the device, on the common clock."""
        summary = self.times.summary
        return run.clocks.fits[summary.rank].correct(summary.step_edges[self.place : self.place + 2])

    def thinned(self, most: int) -> list[tuple[DetailRow, Bars]]:
        """Its rows with at most so many bars in all, named by their numbers."""
        counts = shares([len(row.bars) for row in self.rows], most) if self.rows else []
        named = [
            Bars(b.start, b.end, self.numbers.take(b.name), b.count, b.busy) for b in (row.bars for row in self.rows)
        ]
        return [(row, fewer(bars, share)) for row, bars, share in zip(self.rows, named, counts, strict=True)]


_Thinned = dict[int, list[tuple[DetailRow, Bars]]]  # by rank, in order: its rows of a step, with the bars to draw


def step_details(
    run: CrossRank, findings: Sequence[Finding], rows: Sequence[RankRow], most_ranks: int = MOST_RANKS
) -> Detail | None:
    """What the chosen ranks did in every step; None where the summaries hold nothing of it."""
    chosen = chosen_ranks(run, findings, rows, most_ranks)
    names: dict[str, int] = {}
    by_step: dict[int, dict[int, _Recorded]] = defaultdict(dict)
    for times in run.ranks:
        summary = times.summary
        if summary.rank not in chosen:
            continue
        try:
            own, held = unpack_detail(summary.detail)
        except ValueError:  # a summary of somebody else's
            continue
        numbers = np.array([names.setdefault(name, len(names)) for name in own], dtype=np.int64)
        for place, number in enumerate(summary.step_numbers.tolist()):
            # Steps that were put together afterwards, because ranks do not agree on them, are one here too.
            parts = [held.get(at, ()) for at in (range(len(held)) if number < 0 else (place,))]
            by_step[number][summary.rank] = _Recorded(
                times, place, parts[0] if len(parts) == 1 else _joined(parts), numbers
            )
    if not any(own.rows for ranks in by_step.values() for own in ranks.values()):
        return None
    moved = _transfers(run, chosen)
    # Most people look at the longest step, the one in the middle, and the first that a finding names.
    lengths: dict[int, int] = {}
    for times in run.ranks:
        for number, ns in zip(times.summary.step_numbers.tolist(), times.duration.tolist(), strict=True):
            lengths[number] = max(lengths.get(number, 0), ns)
    ordered = sorted(lengths, key=lambda number: lengths[number])
    named = [finding.steps[0] for finding in findings if finding.steps]
    wanted = {*ordered[-1:], *ordered[len(ordered) // 2 :][:1], *named[:1]}
    budgets = _budgets({step: len(ranks) for step, ranks in by_step.items()}, wanted)
    thinned = {
        number: {rank: ranks[rank].thinned(budgets[number]) for rank in sorted(ranks)}
        for number, ranks in by_step.items()
    }
    most = _MOST_TRANSFERS // max(len(by_step), 1)
    steps = tuple(
        _step(run, number, by_step[number], thinned[number], moved, most) for number in _drawn(run, by_step, thinned)
    )
    return Detail(tuple(names), steps, not (set(run.clocks.unaligned) & set(chosen)))


def chosen_ranks(run: CrossRank, findings: Sequence[Finding], rows: Sequence[RankRow], most: int) -> tuple[int, ...]:
    """All ranks, or where they are too many: the first that findings name, the ones that wait most and least, and of
    each kind of ranks that spend their steps alike one.
    """
    ranks = [times.summary.rank for times in run.ranks]
    if len(ranks) <= most:
        return tuple(ranks)
    known = set(ranks)
    found: dict[int, None] = {}
    for finding in findings:
        found.update((rank, None) for rank in finding.ranks[:2] if rank in known and len(found) < most // 2)
    waited = sorted(run.ranks, key=lambda times: (-(times.wait_ns or 0), times.summary.rank))
    for times in (waited[0], waited[-1]):
        found[times.summary.rank] = None
    for kind in alike_ranks(rows, most):
        found.setdefault(kind.example)
    return tuple(sorted(list(found)[:most]))


def _budgets(ranks: Mapping[int, int], plain: Collection[int]) -> dict[int, int]:
    """Bars a rank of each step: half of all for the plain steps, where there are others beside them."""
    half = MOST_BARS // 2 if set(ranks) - set(plain) else MOST_BARS
    of_plain = max(sum(n for step, n in ranks.items() if step in plain), 1)
    of_all = max(sum(ranks.values()), 1)
    rest = MOST_BARS - half
    return {step: max((half // of_plain if step in plain else 0) + rest // of_all, _LEAST_BARS) for step in ranks}


def _joined(parts: Sequence[Sequence[DetailRow]]) -> Sequence[DetailRow]:
    """Rows of several steps as those of one."""
    rows: dict[tuple[str, int, int], list[Bars]] = defaultdict(list)
    for part in parts:
        for row in part:
            rows[row.of, row.lane, row.level].append(row.bars)
    columns = ("start", "end", "name", "count", "busy")
    return [
        DetailRow(*where, Bars(*(np.concatenate([getattr(own, name) for own in bars]) for name in columns)))
        for where, bars in rows.items()
    ]


def _drawn(
    run: CrossRank, by_step: Mapping[int, Mapping[int, _Recorded]], thinned: Mapping[int, _Thinned]
) -> list[int]:
    """The longest step, and of the others as many as a page has room for; `traceops view` has all."""
    lengths, bars = [], []
    for number in (numbers := sorted(thinned)):
        edges = [own.edges(run) for own in by_step[number].values()]
        lengths.append(max(int(end - begin) for begin, end in edges))
        bars.append(sum(len(drawn) for lanes in thinned[number].values() for _, drawn in lanes))
    longest, room, drawn = numbers[lengths.index(max(lengths))], _MOST_DRAWN, []
    for number, count in sorted(zip(numbers, bars, strict=True), key=lambda one: one[0] != longest):
        if number == longest or count <= room:
            drawn.append(number)
            room -= count
    return sorted(drawn)


class _CollectiveFacts(Struct, frozen=True):
    """What is told of a matched collective, the same on all its members."""

    op: str
    group: str
    bytes: int | None
    busbw_gbs: float | None
    last_rank: int | None


_Moved = dict[int, dict[int, tuple[_CollectiveFacts, int]]]


def _transfers(run: CrossRank, chosen: Collection[int]) -> _Moved:
    """By rank and position in its communication: what is told of the collective, and how long the rank waited."""
    found: _Moved = {rank: {} for rank in chosen}
    for collective in run.matching.collectives:
        told = None
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            if rank in found:
                told = told or _CollectiveFacts(
                    collective.op,
                    collective.description or f"{len(collective.group)} ranks",
                    collective_bytes(collective),
                    busbw_gbs(collective),
                    collective.last_rank,
                )
                found[rank][position] = told, wait
    return found


def _step(
    run: CrossRank, number: int, ranks: Mapping[int, _Recorded], thinned: _Thinned, moved: _Moved, most_transfers: int
) -> DetailStep:
    placed: list[tuple[int, Int, Int, Int, list[slice]]] = []  # its edges, its bars, and which are of which lane
    for rank, lanes in thinned.items():
        correct, counts = run.clocks.fits[rank].correct, [len(bars) for _, bars in lanes]
        start = correct(np.concatenate([_NONE, *(bars.start for _, bars in lanes)]))
        end = correct(np.concatenate([_NONE, *(bars.end for _, bars in lanes)]))
        cuts = [slice(over - count, over) for count, over in zip(counts, accumulate(counts), strict=True)]
        placed.append((rank, ranks[rank].edges(run), start, end, cuts))
    zero = min(int(times.min()) for _, edges, start, *_ in placed for times in (edges[:1], start) if len(times))
    lasts = [int(edges[1]) for _, edges, *_ in placed]
    made = []
    for rank, edges, start, end, cuts in placed:
        own, lanes, shown = ranks[rank], thinned[rank], []
        transfers, unseen = _of_rank(run, own.times, own.place, number, moved[rank], zero, most_transfers // len(ranks))
        for (row, bars), cut in zip(lanes, cuts, strict=True):
            lasts += [int(end[cut].max())] if row.of == "stream" and len(bars) else []
            bars = Bars(start[cut] - zero, end[cut] - zero, bars.name, bars.count, bars.busy)
            shown.append(DetailLane(row.of, row.lane, row.level, bars))
        begin, over = edges.tolist()
        made.append(DetailRank(rank, begin - zero, over - zero, tuple(shown), tuple(transfers), unseen))
    return DetailStep(None if number < 0 else int(number), max(lasts) - zero, tuple(made))


def _of_rank(
    run: CrossRank,
    times: RankTimes,
    place: int,
    number: int,
    moved: Mapping[int, tuple[_CollectiveFacts, int]],
    zero: int,
    most: int,
) -> tuple[list[DetailTransfer], int]:
    """The rank's communication in a step, ns since `zero` on the common clock, in order; how many are left out. These
    are the shortest of more than `most`, and what overlaps too many others."""
    summary, fit = times.summary, run.clocks.fits[times.summary.rank]
    comm = summary.comm
    inside = comm.step == place if number >= 0 else np.ones(len(comm.start), dtype=bool)
    positions = inside.nonzero()[0]
    lasts = (comm.end - comm.start)[positions]
    if unseen := max(len(positions) - max(most, 1), 0):
        positions = np.sort(positions[np.argsort(-lasts, kind="stable")[: len(positions) - unseen]])
    roles = run.roles.of_event.get(summary.rank, ())
    starts = (fit.correct(comm.start[positions]) - zero).tolist()
    ends = (fit.correct(comm.end[positions]) - zero).tolist()
    reached: list[int] = []
    found = []
    for position, start, end in zip(positions.tolist(), starts, ends, strict=True):
        known = moved.get(position)
        args = comm.args[position]
        role: Role = roles[position] if position < len(roles) else "unknown"
        stage = next((at for at, over in enumerate(reached) if over <= start), len(reached))
        if stage == _MOST_STAGES:
            unseen += 1
            continue
        reached[stage:] = [end, *reached[stage + 1 :]]
        if known is None:
            found.append(_unmatched(start, end, comm.name[position], args, role, stage))
            continue
        told, wait = known
        turn = min(start + wait, end)
        found.append(
            DetailTransfer(
                start, turn, end, told.op, told.group, role, told.bytes, told.busbw_gbs, told.last_rank, stage
            )
        )
    return found, unseen


def _unmatched(start: int, end: int, name: str, args: CommArgs | None, role: Role, stage: int) -> DetailTransfer:
    """One of which nobody knows when the others came."""
    elements = max(args.elements_in or 0, args.elements_out or 0) if args is not None else 0
    return DetailTransfer(
        start=start,
        turn=None,
        end=end,
        op=args.op if args is not None and args.op else name,
        group=(args.group_description if args is not None else None) or "",
        role=role,
        bytes=message_bytes(elements, args.dtype) if args is not None and elements else None,
        busbw_gbs=None,
        last_rank=None,
        stage=stage,
    )
