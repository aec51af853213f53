"""What one rank did in each step, to draw it: kernels by stream, and what the host's threads did, in few bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Bars, Int, bars_of, fewer, numbered, shares
from traceops.core.text import short_name
from traceops.measure.activity import COMM, Activity
from traceops.measure.host_rows import find_nesting
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events
from traceops.traces.windows import pack_part, unpack_part

MOST_BARS = 8_000  # a rank, over all its steps
_MOST_A_STEP, _LEAST_A_STEP = 3_000, 150
_MOST_THREADS = 4
_FEW_LANES = 8
_HELD_UP_NS = 50_000
_LONGEST_NAME = 120
_LEVELS = ("annotation", "annotation", "operator", "operator", "call")
_Where = tuple[str, int, int]  # 'stream' or 'thread', its number, and the level in a thread


class DetailRow(Struct, frozen=True):
    """One row: the kernels of a stream, or one level of what a thread did. lane: the stream's or thread's number.
    level: 0 for streams; of a thread 0 and 1 are annotations, 2 and 3 operators, 4 calls that held the host up."""

    of: str
    lane: int
    level: int
    bars: Bars


class _PackedBars(msgspec.Struct, array_like=True):
    of: str
    lane: int
    level: int
    step: int
    count: int


class _Detail(msgspec.Struct, array_like=True):
    names: list[str]
    rows: list[_PackedBars]
    columns: bytes  # start, duration, name, count, busy: int64, differences down each row


def measure_detail(events: Events, activity: Activity, steps: StepBounds) -> bytes:
    """Bars of every step and row, packed; at most MOST_BARS. `unpack_detail` reads them. Empty without steps."""
    if not len(steps):
        return b""
    rows = dict(_rows(events, activity))
    most = min(max(MOST_BARS // len(steps), _LEAST_A_STEP), _MOST_A_STEP)
    packed: list[_PackedBars] = []
    columns: list[NDArray[np.integer]] = []
    # The bars that begin in each step: on the host those of a thread, on the device those of a stream.
    host, device = (steps.host_start, steps.host_end), (steps.edges[:-1], steps.edges[1:])
    cuts = {}
    for where, bars in rows.items():
        begins, ends = device if where[0] == "stream" else host
        cuts[where] = bars.start.searchsorted(begins), bars.start.searchsorted(ends)
    for step in range(len(steps)):
        within = {where: (int(cut[0][step]), int(cut[1][step])) for where, cut in cuts.items()}
        within = {where: (first, over) for where, (first, over) in within.items() if over > first}
        for (where, (first, over)), share in zip(
            within.items(), shares([over - first for first, over in within.values()], most), strict=True
        ):
            bars = fewer(rows[where].take(slice(first, over)), share)
            packed.append(_PackedBars(*where, step, len(bars)))
            columns += (np.diff(bars.start, prepend=0), bars.end - bars.start, bars.name, bars.count, bars.busy)
    used = np.zeros(len(events.names), dtype=bool)
    for name in columns[2::5]:
        used[name] = True
    numbers, place = used.nonzero()[0], used.cumsum() - 1
    columns[2::5] = [place[name] for name in columns[2::5]]
    names = [short_name(events.names[number], _LONGEST_NAME) for number in numbers.tolist()]
    whole = np.concatenate(columns).astype(np.int64) if columns else np.empty(0, dtype=np.int64)
    # Bytes of equal weight beside each other: most of them are zero.
    shuffled = whole.view(np.uint8).reshape(-1, 8).T.tobytes()
    return pack_part(_Detail(names, packed, shuffled), level=2)


def unpack_detail(packed: bytes) -> tuple[tuple[str, ...], Mapping[int, tuple[DetailRow, ...]]]:
    """Names, and the rows by the step's position. Raises ValueError where it is nothing that `measure_detail` made."""
    if not packed:
        return (), {}
    detail = unpack_part(packed, _Detail)
    total = sum(row.count for row in detail.rows)
    if any(row.count < 1 for row in detail.rows) or len(detail.columns) != total * 5 * 8:
        raise ValueError("bars of another number than it says")
    whole = np.frombuffer(detail.columns, np.uint8).reshape(8, -1).T.copy().view(np.int64).ravel()
    steps: dict[int, list[DetailRow]] = {}
    at = 0
    for row in detail.rows:
        start, lasts, name, count, busy = whole[at : at + 5 * row.count].reshape(5, row.count)
        at += 5 * row.count
        if name.min() < 0 or name.max() >= len(detail.names) or lasts.min() < 0:
            raise ValueError("a name or a duration that cannot be")
        begin = start.cumsum()
        steps.setdefault(row.step, []).append(
            DetailRow(row.of, row.lane, row.level, Bars(begin, begin + lasts, name, count, busy))
        )
    return tuple(detail.names), {step: tuple(rows) for step, rows in steps.items()}


def _by_value(values: Int, rows: Int) -> Iterator[tuple[int, Int]]:
    """Each value with its rows, in their order; sorted once, as there may be as many values as rows."""
    distinct, which = numbered(values)
    if len(distinct) <= _FEW_LANES:
        yield from ((value, rows[which == place]) for place, value in enumerate(distinct.tolist()))
        return
    order, behind = which.argsort(kind="stable"), np.bincount(which).cumsum()
    yield from zip(distinct.tolist(), np.split(rows[order], behind[:-1]), strict=True)


def _rows(events: Events, activity: Activity) -> Iterator[tuple[_Where, Bars]]:
    """All bars by row."""
    if activity.on_gpu:
        own = activity.by_start[activity.kind.take(activity.by_start) != COMM]
        streams = events.stream.take(activity.row.take(own))
        for stream, at in _by_value(streams, own):
            names = events.name.take(activity.row.take(at))
            yield ("stream", stream, 0), bars_of(activity.start.take(at), activity.end.take(at), names)
    host = activity.host
    nesting = host.nesting
    outer, depth = nesting.rows, nesting.depth
    calls = host.held_up(_HELD_UP_NS)
    annotations = find_nesting(events, host.annotations)
    levels = (
        annotations.rows[annotations.depth == 0],
        annotations.rows[annotations.depth == 1],
        outer[depth == 0],
        outer[depth == 1],
        calls,
    )
    time: dict[int, int] = {}
    for level in (0, 2, 4):
        for tid, rows in _by_value(events.tid.take(levels[level]), levels[level]):
            time[tid] = time.get(tid, 0) + int(events.dur.take(rows).sum())
    for tid in sorted(sorted(time, key=lambda tid: (-time[tid], tid))[:_MOST_THREADS]):
        for level, rows in enumerate(levels):
            own = rows[events.tid.take(rows) == tid]
            if len(own):
                start = events.ts.take(own)
                yield ("thread", tid, level), bars_of(start, start + events.dur.take(own), events.name.take(own))
