"""torch's memory snapshots (`torch.cuda.memory._dump_snapshot`): what held the memory, by stack, and what is lost.

A snapshot is a pickle of dicts, lists, text and numbers. It is read as that and nothing else: a pickle that asks for
a class is refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from traceops.core.errors import InputError
from traceops.traces.snapshot_rows import Places, SnapshotRows, read_rows
from traceops.traces.snapshot_use import Blocks, HeldMemory, at_end

_SHOWN_PLACES, _MOMENTS = 7, 120  # of memory over time
_PARTS, _MOST_PARTS = 8, 6  # of a trace, and in how many of them a leak shows


class Held(Struct, frozen=True):
    """Memory that allocations of one place hold: `place` is the line of the user's code, else the innermost known."""

    place: str
    bytes: int
    blocks: int


class OverTime(Struct, frozen=True):
    """Bytes that each place held, a row a moment and a column a place.

    moments: numbers of events; peak: that before which most was held.
    """

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
        return _devices(read_rows(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (pickle.UnpicklingError, EOFError, MemoryError) as error:
        raise InputError(f"{path} is not a memory snapshot of torch: {error or type(error).__name__}") from error
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path} is not a memory snapshot of torch: parts that torch.cuda.memory._dump_snapshot writes are missing "
            f"({error!r})"
        ) from error


def _devices(rows: SnapshotRows) -> tuple[DeviceSnapshot, ...]:
    counts = rows.traces["count"]
    numbers = sorted({*rows.segments["device"].tolist(), *np.flatnonzero(counts).tolist()})
    return tuple(_device(number, rows) for number in numbers)


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
