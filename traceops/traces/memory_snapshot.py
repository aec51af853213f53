"""torch's memory snapshots (`torch.cuda.memory._dump_snapshot`): what held the memory, by stack, and what is lost.

A snapshot is a pickle of dicts, lists, text and numbers. It is read as that and nothing else: a pickle that asks for
a class is refused.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traceops.core.errors import InputError
from traceops.core.plain_pickle import load_plain_file
from traceops.traces.snapshot_places import NO_STACK, Places, frames_of

_HELD = ("active_allocated", "active_pending_free", "active_awaiting_free")
_MOST = 1 << 62  # bytes
_SHOWN_PLACES, _MOMENTS = 7, 120  # of memory over time
_PARTS, _MOST_PARTS = 8, 6  # of a trace, and in how many of them a leak shows


@dataclass(frozen=True)
class Held:
    """Memory that allocations of one place hold: `place` is the line of the user's code, else the innermost known."""

    place: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class OverTime:
    """Bytes that each place held, a row a moment and a column a place.

    moments: numbers of events; peak: that before which most was held.
    """

    places: tuple[str, ...]
    moments: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]
    peak: int


@dataclass(frozen=True)
class DeviceSnapshot:
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
        found = load_plain_file(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except pickle.UnpicklingError as error:
        raise InputError(f"{path} is no memory snapshot of torch: {error}") from error
    try:
        devices = _devices(found)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path} is no memory snapshot of torch: it lacks what torch.cuda.memory._dump_snapshot writes ({error!r})"
        ) from error
    return devices


def _devices(found: Any) -> tuple[DeviceSnapshot, ...]:
    segments: Sequence[Mapping[str, Any]] = found["segments"]
    traces: Sequence[Sequence[Mapping[str, Any]]] = found.get("device_traces") or ()
    places = Places()
    by_device: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for segment in segments:
        by_device[int(segment.get("device", 0))].append(segment)
    numbers = sorted({*by_device, *(number for number, trace in enumerate(traces) if trace)})
    return tuple(
        _device(number, by_device.get(number, []), traces[number] if number < len(traces) else (), places)
        for number in numbers
    )


def _device(
    number: int, segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], places: Places
) -> DeviceSnapshot:
    reserved = whole = between = largest = 0
    held: dict[int, tuple[int, str]] = {}
    for segment in segments:
        reserved += int(segment["total_size"])
        address, in_use, free = int(segment.get("address", 0)), False, []
        for block in segment["blocks"]:
            size = int(block["size"])
            if block["state"] in _HELD:
                in_use = True
                held[int(block.get("address", address))] = (size, places.of(frames_of(block)))
            else:
                free.append(size)
            address += size
        if in_use:
            between += sum(free)
            largest = max(largest, *free) if free else largest
        else:
            whole += sum(free)
    peak, peak_at, ran_out = _peak(held, trace)
    at_peak = list(_alive(held, trace, peak_at, places).values())
    made = _still_held(held, trace, places)
    asked, device_free, at, held_then = ran_out or (None, None, len(trace), reserved)
    then = max(_reserved_before(reserved, trace, at) - held_then, 0)
    if not all(0 <= size < _MOST for size in (reserved, peak, whole, between, asked or 0, device_free or 0)):
        raise ValueError("sizes that no memory has")
    return DeviceSnapshot(
        device=number,
        reserved=reserved,
        allocated=sum(size for size, _ in held.values()),
        free_whole=whole,
        free_between=between,
        largest_free=largest,
        recorded=len(trace),
        peak=peak,
        at_peak=by_place(at_peak),
        asked=asked,
        device_free=device_free,
        stays=_stays(made, len(trace)),
        held=by_place(held.values()),
        over_time=_over_time(held, trace, at_peak, peak_at, made, places),
        unused_then=then,
    )


def _peak(
    held: Mapping[int, tuple[int, str]], trace: Sequence[Mapping[str, Any]]
) -> tuple[int, int, tuple[int, int, int, int] | None]:
    """Backwards from the end, undoing each event: the most that was held, and before which; the last out of memory.

    Of that: what was asked for, what the device had free, the number of the event, and what tensors held.
    """
    now, total = dict(held), sum(size for size, _ in held.values())
    peak, at = total, len(trace)
    ran_out = None
    for index in range(len(trace) - 1, -1, -1):
        event = trace[index]
        action = event["action"]
        if action == "alloc":
            before = now.pop(int(event["addr"]), None)
            total -= before[0] if before is not None else 0
        elif action == "free_completed":
            size = int(event["size"])
            now[int(event["addr"])] = (size, "")  # by whom is known where it is made
            total += size
        elif action == "oom" and ran_out is None:
            ran_out = int(event["size"]), int(event.get("device_free", 0)), index, total
        if total > peak:
            peak, at = total, index
    return peak, at, ran_out


def _reserved_before(reserved: int, trace: Sequence[Mapping[str, Any]], at: int) -> int:
    """What was reserved before event `at`, of what is at the end."""
    for index in range(at, len(trace)):
        action = trace[index]["action"]
        if action in ("segment_alloc", "segment_map"):
            reserved -= int(trace[index]["size"])
        elif action in ("segment_free", "segment_unmap"):
            reserved += int(trace[index]["size"])
    return reserved


def _still_held(
    held: Mapping[int, tuple[int, str]], trace: Sequence[Mapping[str, Any]], places: Places
) -> dict[int, tuple[int, str]]:
    """Number of the event that made a block which is held at the end -> its size as it lies there, and place."""
    found: dict[int, tuple[int, str]] = {}
    waited = set(held)
    for index in range(len(trace) - 1, -1, -1):
        event = trace[index]
        if event["action"] == "alloc" and (address := int(event["addr"])) in waited:
            waited.discard(address)
            found[index] = held[address][0], places.of(frames_of(event))
    return found


def _stays(made: Mapping[int, tuple[int, str]], events: int) -> tuple[Held, ...]:
    """What is held at the end and was made in most parts of the trace, by place, most first."""
    parts: dict[str, set[int]] = defaultdict(set)
    for index, (_, place) in made.items():
        parts[place].add(index * _PARTS // events)
    return tuple(
        own
        for own in by_place(made.values())
        if own.place != NO_STACK and len(parts[own.place]) >= _MOST_PARTS
    )


def _alive(
    held: Mapping[int, tuple[int, str]], trace: Sequence[Mapping[str, Any]], at: int, places: Places
) -> dict[int, tuple[int, str]]:
    """What was held before event `at` of the trace, by address."""
    alive = dict(held)
    for index in range(len(trace) - 1, at - 1, -1):
        event = trace[index]
        if event["action"] == "alloc":
            alive.pop(int(event["addr"]), None)
        elif event["action"] == "free_completed":
            alive[int(event["addr"])] = (int(event["size"]), "")
    unknown = {address for address, (_, place) in alive.items() if not place}
    for index in range(at - 1, -1, -1):
        if not unknown:
            break
        event = trace[index]
        if event["action"] == "alloc" and int(event["addr"]) in unknown:
            unknown.discard(int(event["addr"]))
            alive[int(event["addr"])] = (alive[int(event["addr"])][0], places.of(frames_of(event)))
    return {address: (size, place or NO_STACK) for address, (size, place) in alive.items()}


def _over_time(
    held: Mapping[int, tuple[int, str]],
    trace: Sequence[Mapping[str, Any]],
    at_peak: Iterable[tuple[int, str]],
    peak_at: int,
    made: Mapping[int, tuple[int, str]],
    places: Places,
) -> OverTime | None:
    """What the places that held most at the peak held all along, at even numbers of events and at the peak."""
    if not trace:
        return None
    shown = [own.place for own in by_place(at_peak)[:_SHOWN_PLACES]]
    column = {place: number for number, place in enumerate(shown)}
    now = _alive(held, trace, 0, places)
    sums = [0] * (len(shown) + 1)
    for size, place in now.values():
        sums[column.get(place, -1)] += size
    every = max(len(trace) // _MOMENTS, 1)
    moments: list[int] = []
    rows: list[tuple[int, ...]] = []
    for index, event in enumerate(trace):
        if index % every == 0 or index == peak_at:
            moments.append(index)
            rows.append(tuple(sums))
        if event["action"] == "alloc":
            size, place = made.get(index) or (int(event["size"]), places.of(frames_of(event)))
            now[int(event["addr"])] = size, place
            sums[column.get(place, -1)] += size
        elif event["action"] == "free_completed":
            before = now.pop(int(event["addr"]), None)
            if before is not None:
                sums[column.get(before[1], -1)] -= before[0]
    moments.append(len(trace))
    rows.append(tuple(sums))
    return OverTime((*shown, "others"), tuple(moments), tuple(rows), peak_at)


def by_place(blocks: Iterable[tuple[int, str]]) -> tuple[Held, ...]:
    """Blocks, as sizes and places, together by place, most first."""
    sizes: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for size, place in blocks:
        sizes[place] += size
        counts[place] += 1
    return tuple(
        Held(place, size, counts[place])
        for place, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    )


def difference(before: DeviceSnapshot, after: DeviceSnapshot) -> tuple[Held, ...]:
    """What each place holds more (or less, below zero) at the peak of `after`, the largest change first."""
    old = {held.place: held for held in before.at_peak}
    new = {held.place: held for held in after.at_peak}
    none = Held("", 0, 0)
    changes = [
        Held(place, new.get(place, none).bytes - old.get(place, none).bytes, new.get(place, none).blocks)
        for place in dict.fromkeys([*new, *old])
    ]
    return tuple(
        sorted((change for change in changes if change.bytes), key=lambda change: -abs(change.bytes))
    )
