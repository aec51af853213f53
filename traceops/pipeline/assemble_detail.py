"""The picture of each step for a page: rows of the map, collectives of the reduce, on one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.across.links import busbw_gbs, collective_bytes
from traceops.across.match import Collective
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
_MOST_STAGES = 6


def step_details(
    run: CrossRank, findings: Sequence[Finding], rows: Sequence[RankRow], most_ranks: int = MOST_RANKS
) -> Detail | None:
    """What the chosen ranks did in every step; None where the summaries hold nothing of it."""
    chosen = chosen_ranks(run, findings, rows, most_ranks)
    names: dict[str, int] = {}
    by_step: dict[int, dict[int, tuple[RankTimes, int, tuple[DetailRow, ...]]]] = defaultdict(dict)
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
            by_step[number][summary.rank] = times, place, _joined(parts, numbers)
    if not any(drawn for ranks in by_step.values() for _, _, drawn in ranks.values()):
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
    steps = tuple(
        _step(run, number, ranks, moved, budgets[number], _MOST_TRANSFERS // max(len(by_step), 1))
        for number, ranks in sorted(by_step.items())
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


def _joined(parts: Sequence[tuple[DetailRow, ...]], numbers: Int) -> tuple[DetailRow, ...]:
    """Rows of several steps as those of one, names numbered anew."""
    rows: dict[tuple[str, int, int], list[Bars]] = defaultdict(list)
    for part in parts:
        for row in part:
            rows[row.of, row.lane, row.level].append(row.bars)
    made = []
    for (of, lane, level), bars in rows.items():
        columns = [
            np.concatenate([getattr(own, name) for own in bars]) for name in ("start", "end", "name", "count", "busy")
        ]
        columns[2] = numbers[columns[2]]
        made.append(DetailRow(of, lane, level, Bars(*columns)))
    return tuple(made)


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
                told = told or _told(collective)
                found[rank][position] = told, wait
    return found


def _told(collective: Collective) -> _CollectiveFacts:
    return _CollectiveFacts(
        collective.op,
        collective.description or f"{len(collective.group)} ranks",
        collective_bytes(collective),
        busbw_gbs(collective),
        collective.last_rank,
    )


def _step(
    run: CrossRank,
    number: int,
    ranks: Mapping[int, tuple[RankTimes, int, tuple[DetailRow, ...]]],
    moved: _Moved,
    budget: int,
    most_transfers: int,
) -> DetailStep:
    placed = []
    for rank, (times, place, rows) in sorted(ranks.items()):
        fit = run.clocks.fits[rank]
        edges = fit.correct(times.summary.step_edges[place : place + 2])
        counts = shares([len(row.bars) for row in rows], budget) if rows else []
        lanes = []
        for row, most in zip(rows, counts, strict=True):
            bars = fewer(row.bars, most)
            start = fit.correct(bars.start)
            lanes.append((row, Bars(start, fit.correct(bars.end), bars.name, bars.count, bars.busy)))
        placed.append((rank, edges, lanes))
    drawn = [(row, bars) for _, _, lanes in placed for row, bars in lanes if len(bars)]
    zero = min([int(edges[0]) for _, edges, _ in placed] + [int(bars.start[0]) for _, bars in drawn])
    last = max(
        [int(edges[1]) for _, edges, _ in placed] + [int(bars.end.max()) for row, bars in drawn if row.of == "stream"]
    )
    made = []
    for rank, edges, lanes in placed:
        times, place, _ = ranks[rank]
        transfers, unseen = _of_rank(run, times, place, number, moved[rank], zero, most_transfers // len(ranks))
        shown = tuple(DetailLane(row.of, row.lane, row.level, _since(bars, zero)) for row, bars in lanes)
        made.append(DetailRank(rank, int(edges[0]) - zero, int(edges[1]) - zero, shown, tuple(transfers), unseen))
    return DetailStep(None if number < 0 else int(number), last - zero, tuple(made))


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


def _since(bars: Bars, zero: int) -> Bars:
    return Bars(bars.start - zero, bars.end - zero, bars.name, bars.count, bars.busy)
