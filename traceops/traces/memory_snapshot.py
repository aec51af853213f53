"""torch's memory snapshots (`torch.cuda.memory._dump_snapshot`): what held the memory, by stack, and what is lost.

A snapshot is a pickle of dicts, lists, text and numbers. It is read as that and nothing else: a pickle that asks for
a class is refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.errors import InputError
from traceops.core.text import near_path
from traceops.traces.snapshot_rows import (
    ALLOC,
    FREE_COMPLETED,
    SEGMENT_GIVEN,
    SEGMENT_TAKEN,
    Places,
    SnapshotRows,
    read_rows,
)

Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Blocks(Struct, frozen=True):
    """Blocks of memory, an item of each array a block: bytes, and the number of the place that made it (-1 unknown)."""

    bytes: Longs
    place: Longs

    def by_place(self) -> tuple[Longs, Longs, Longs]:
        """Places, and of each the bytes and the number of blocks."""
        order = np.argsort(self.place, kind="stable")
        place = self.place[order]
        starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]]) if len(place) else np.zeros(0, np.int64)
        if not len(starts):
            return starts, starts, starts
        return place[starts], np.add.reduceat(self.bytes[order], starts), np.diff(np.r_[starts, len(place)])


class AtEnd(Struct, frozen=True):
    """The blocks in use when the snapshot was taken, by address, and what of the segments was free (bytes)."""

    address: Longs
    blocks: Blocks
    reserved: int
    free_whole: int
    free_between: int
    largest_free: int


def at_end(rows: SnapshotRows, device: int) -> AtEnd:
    """Of the segments of a device."""
    own = rows.segments[rows.segments["device"] == device]
    counts = own["count"].astype(np.int64)
    starts = np.cumsum(counts) - counts
    segment = np.repeat(np.arange(len(own)), counts)
    blocks = rows.blocks[np.repeat(own["first"].astype(np.int64) - starts, counts) + np.arange(int(counts.sum()))]
    size, held = blocks["bytes"].astype(np.int64), blocks["held"]
    before = np.cumsum(size) - size
    behind = own["address"][segment] + before - before[starts[segment]]
    address = np.where(blocks["address"] >= 0, blocks["address"], behind)
    in_use = np.bincount(segment, held, len(own)) > 0
    free = np.where(held, 0, size)
    beside = free[in_use[segment]]
    # Of blocks with the same address the last one counts.
    order = np.flatnonzero(held)
    order = order[np.argsort(address[order], kind="stable")]
    found = address[order]
    order = order[np.r_[found[1:] != found[:-1], True]] if len(order) else order
    return AtEnd(
        address[order],
        Blocks(size[order], blocks["place"][order].astype(np.int64)),
        reserved=int(own["bytes"].sum()),
        free_whole=int(free.sum() - beside.sum()),
        free_between=int(beside.sum()),
        largest_free=int(beside.max(initial=0)),
    )


class HeldMemory:
    """What a device held before each of its events, and at their end. first, count: which rows its events are."""

    def __init__(self, rows: SnapshotRows, first: int, count: int, end: AtEnd) -> None:
        self.count, self._end = count, end
        self._rows = rows
        self._own = slice(first, first + count)
        action = rows.action[self._own]
        event = np.flatnonzero((action == ALLOC) | (action == FREE_COMPLETED)).astype(np.uint32)
        event = event[np.argsort(rows.address[self._own][event], kind="stable").astype(np.uint32)]
        self._event = event
        self._address = rows.address[self._own][event]
        self._made = action[event] == ALLOC
        self._size = rows.size[self._own][event]
        if float(self._size.sum(dtype=np.float64)) >= 2**62:
            raise ValueError("sizes that no memory has")
        changes = self._address[1:] != self._address[:-1]
        self._first = np.r_[True, changes][: len(event)]
        self._last = np.r_[changes, True][: len(event)]

    @cached_property
    def before(self) -> Longs:
        """Bytes held before each event, and at the end: one more than there are events."""
        found = np.zeros(self.count + 1, np.int64)
        gone = ~self._made
        found[self._event[gone]] = self._size[gone]
        freed = np.flatnonzero(self._made[:-1] & gone[1:] & ~self._last[:-1])
        found[self._event[freed]] = -self._size[freed + 1]
        stays = np.flatnonzero(self._made & self._last)
        at, known = self._at_end(self._address[stays])
        found[self._event[stays[known]]] = -self._end.blocks.bytes[at[known]]
        backwards = found[::-1]
        np.cumsum(backwards, out=backwards)
        found += int(self._end.blocks.bytes.sum())
        return found

    def peak(self) -> tuple[int, int]:
        """The most that was held, and before which event, the last one of several."""
        before = self.before
        at = self.count - int(np.argmax(before[::-1]))
        return int(before[at]), at

    def reserved_before(self, at: int) -> int:
        """Bytes that were reserved before event `at`."""
        action = self._rows.action[self._own][at:]
        size = self._rows.size[self._own][at:]
        given, taken = size[action == SEGMENT_GIVEN].sum(), size[action == SEGMENT_TAKEN].sum()
        return self._end.reserved + int(given) - int(taken)

    def alive(self, at: int) -> Blocks:
        """The blocks held before event `at`."""
        later = self._event >= at
        next_one = later.copy()
        next_one[1:] &= self._first[1:] | ~later[:-1]
        freed = np.flatnonzero(next_one & ~self._made)
        # of each: what made it, if that was recorded
        numbers = np.arange(len(self._made), dtype=np.int32)
        numbers[~self._made] = -1
        maker = np.maximum.accumulate(numbers, out=numbers)[freed]
        known = (maker >= 0) & (self._address[maker] == self._address[freed])
        place = np.where(known, self._place_at(maker), -1)
        untouched = np.isin(self._end.address, self._address[next_one], invert=True)
        return Blocks(
            np.r_[self._size[freed], self._end.blocks.bytes[untouched]], np.r_[place, self._end.blocks.place[untouched]]
        )

    @cached_property
    def _stays(self) -> tuple[Longs, Longs]:
        """Rows of what made blocks that are held at the end, and which of these they are."""
        makers = np.flatnonzero(self._made)
        address = self._address[makers]
        makers = makers[np.r_[address[1:] != address[:-1], True]] if len(makers) else makers
        at, known = self._at_end(self._address[makers])
        return makers[known], at[known]

    def stays(self) -> tuple[Longs, Blocks]:
        """Of blocks that are held at the end and whose making was recorded: its event, and the blocks."""
        makers, at = self._stays
        return self._event[makers].astype(np.int64), Blocks(self._end.blocks.bytes[at], self._place_at(makers))

    def over_time(self, moments: Longs, places: Longs) -> Longs:
        """Bytes that each of these places, and in the last column all others, held before these events, a row each."""
        change = np.zeros(self.count, np.int64)
        column = np.full(self.count, len(places), np.uint8)
        makers, at = self._stays
        size = self._size.copy()
        size[makers] = self._end.blocks.bytes[at]  # as they lie there
        change[self._event] = np.where(self._made, size, 0)
        column[self._event] = _column(self._rows.place[self._own][self._event], places)
        gone = np.flatnonzero(~self._made[1:] & self._made[:-1] & ~self._first[1:]) + 1
        change[self._event[gone]] = -size[gone - 1]
        column[self._event[gone]] = column[self._event[gone - 1]]
        old = np.flatnonzero(~self._made & self._first)
        change[self._event[old]] = -size[old]
        column[self._event[old]] = _column(np.array([-1]), places)[0]
        begin = self.alive(0)
        begins = _column(begin.place, places)
        found = np.zeros((len(moments), len(places) + 1), np.int64)
        sums = np.empty(self.count, np.int64)
        for number in range(len(places) + 1):
            np.multiply(change, column == number, out=sums)
            np.cumsum(sums, out=sums)
            found[:, number] = np.where(moments > 0, sums[moments - 1], 0) + int(begin.bytes[begins == number].sum())
        return found

    def _place_at(self, rows: Longs) -> Longs:
        """Of events in the order of addresses."""
        return self._rows.place[self._own][self._event[rows]].astype(np.int64)

    def _at_end(self, address: Longs) -> tuple[Longs, Flags]:
        """Which block in use at the end lies at each address, and whether one does."""
        known = self._end.address
        if not len(known):
            return np.zeros(len(address), np.int64), np.zeros(len(address), np.bool_)
        at = np.minimum(np.searchsorted(known, address), len(known) - 1)
        return at, known[at] == address


def _column(place: NDArray[np.integer[Any]], places: Longs) -> NDArray[np.uint8]:
    """The position of each place among `places`, their number for others."""
    if not len(places):
        return np.zeros(len(place), np.uint8)
    table = np.full(max(int(place.max(initial=-1)), int(places.max())) + 2, len(places), np.uint8)
    table[places + 1] = np.arange(len(places))
    found: NDArray[np.uint8] = table[place + 1]
    return found


_SHOWN_PLACES, _MOMENTS = 7, 120  # of memory over time
_PARTS, _MOST_PARTS = 8, 6  # of a trace, and in how many of them a leak shows


class Held(Struct, frozen=True):
    """Memory that allocations of one place hold: `place` is the line of the user's code, else the innermost known."""

    place: str
    bytes: int
    blocks: int


class OverTime(Struct, frozen=True):
    """Bytes that each place held, a row a moment and a column a place. moments: numbers of events; peak: that before
    which most was held."""

    places: tuple[str, ...]
    moments: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]
    peak: int


class DeviceSnapshot(Struct, frozen=True):
    """One device: bytes when the snapshot was taken, and at the most that the recorded events reached.

    `held` is what was allocated when it was taken, place by place, and `stays` what of that was made all through the
    recorded events: what a leak leaves behind.
    `free_whole` is in segments that hold nothing, which torch can give back; `free_between` lies beside blocks in use,
    and `largest_free` is the largest piece of that. `recorded` counts events, 0 where no history was on: then the peak
    is the moment of the snapshot. asked, device_free, unused_then: of the last time that memory ran out, what was asked
    for, what the device had free, and what torch had reserved and no tensor used.
    """

    device: int
    reserved: int
    allocated: int
    free_whole: int
    free_between: int
    largest_free: int
    recorded: int
    peak: int
    at_peak: tuple[Held, ...]
    asked: int | None
    device_free: int | None
    stays: tuple[Held, ...] = ()
    held: tuple[Held, ...] = ()
    over_time: OverTime | None = None
    unused_then: int = 0


def read_snapshot(path: Path) -> tuple[DeviceSnapshot, ...]:
    """The devices of a snapshot that hold or held something. Raises InputError for what is no snapshot."""
    try:
        rows = read_rows(path)
        numbers = {*rows.segments["device"].tolist(), *np.flatnonzero(rows.traces["count"]).tolist()}
        return tuple(_device(number, rows) for number in sorted(numbers))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist{near_path(str(path))}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (pickle.UnpicklingError, EOFError, MemoryError) as error:
        raise InputError(f"{path} is not a memory snapshot of torch: {error or type(error).__name__}") from error
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path} is not a memory snapshot of torch: parts that torch.cuda.memory._dump_snapshot writes are missing "
            f"({error!r})"
        ) from error


def _device(number: int, rows: SnapshotRows) -> DeviceSnapshot:
    end = at_end(rows, number)
    first, count = rows.traces[number].tolist() if 0 <= number < len(rows.traces) else (0, 0)
    held = HeldMemory(rows, first, count, end)
    peak, peak_at = held.peak()
    at_peak = by_place(held.alive(peak_at), rows.places)
    asked = device_free = None
    unused_then = 0
    short = rows.shortages[(rows.shortages["event"] >= first) & (rows.shortages["event"] < first + count)]
    if len(short):
        at = int(short["event"][-1])
        asked, device_free = int(rows.size[at]), int(short["device_free"][-1])
        unused_then = max(held.reserved_before(at - first) - int(held.before[at - first]), 0)
    return DeviceSnapshot(
        device=number,
        reserved=end.reserved,
        allocated=int(end.blocks.bytes.sum()),
        free_whole=end.free_whole,
        free_between=end.free_between,
        largest_free=end.largest_free,
        recorded=count,
        peak=peak,
        at_peak=at_peak,
        asked=asked,
        device_free=device_free,
        stays=_stays(held, rows.places),
        held=by_place(end.blocks, rows.places),
        over_time=_over_time(held, at_peak, peak_at, rows.places),
        unused_then=unused_then,
    )


def _stays(held: HeldMemory, places: Places) -> tuple[Held, ...]:
    """What is held at the end and was made in most parts of the trace, by place, most first."""
    events, blocks = held.stays()
    pairs = np.unique(np.stack([blocks.place, events * _PARTS // max(held.count, 1)]), axis=1)
    number, parts = np.unique(pairs[0], return_counts=True)
    steady = {places.text(place) for place in number[(parts >= _MOST_PARTS) & (number >= 0)].tolist()}
    return tuple(own for own in by_place(blocks, places) if own.place in steady)


def _over_time(held: HeldMemory, at_peak: Sequence[Held], peak_at: int, places: Places) -> OverTime | None:
    """What the places that held most at the peak held all along, at even numbers of events and at the peak."""
    if not held.count:
        return None
    shown = [own.place for own in at_peak[:_SHOWN_PLACES]]
    every = max(held.count // _MOMENTS, 1)
    moments = sorted({*range(0, held.count, every), peak_at, held.count})
    numbers = np.array([places.number(place) for place in shown], np.int64)
    rows = held.over_time(np.array(moments), numbers)
    return OverTime((*shown, "others"), tuple(moments), tuple(map(tuple, rows.tolist())), peak_at)


def by_place(blocks: Blocks, places: Places) -> tuple[Held, ...]:
    """Blocks together by place, most first."""
    columns = (column.tolist() for column in blocks.by_place())
    found = (Held(places.text(place), size, count) for place, size, count in zip(*columns, strict=True))
    return tuple(sorted(found, key=lambda own: (-own.bytes, own.place)))


def difference(before: DeviceSnapshot, after: DeviceSnapshot) -> tuple[Held, ...]:
    """What each place holds more (or less, below zero) at the peak of `after`, the largest change first."""
    old = {held.place: held for held in before.at_peak}
    new = {held.place: held for held in after.at_peak}
    none = Held("", 0, 0)
    changes = [
        Held(place, new.get(place, none).bytes - old.get(place, none).bytes, new.get(place, none).blocks)
        for place in dict.fromkeys([*new, *old])
    ]
    return tuple(sorted((change for change in changes if change.bytes), key=lambda change: -abs(change.bytes)))
