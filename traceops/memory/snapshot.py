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
from traceops.core.plain_pickle import load_plain

_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen",
    "<string>",
    "<eval_with_key>",
    "torchinductor",
)
_HELD = ("active_allocated", "active_pending_free", "active_awaiting_free")
_NO_STACK = "no stack: made before the recording began, or without stacks"


@dataclass(frozen=True)
class Held:
    """Memory that allocations of one place hold: `place` is the line of the user's code, else the innermost known."""

    place: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class DeviceSnapshot:
    """One device: bytes when the snapshot was taken, and at the most that the recorded events reached.

    `free_whole` is in segments that hold nothing, which torch can give back; `free_between` lies beside blocks in use,
    and `largest_free` is the largest piece of that. `recorded` counts events, 0 where no history was on: then the peak
    is the moment of the snapshot.
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


def read_snapshot(path: Path) -> tuple[DeviceSnapshot, ...]:
    """The devices of a snapshot that hold or held something. Raises InputError for what is no snapshot."""
    try:
        found = load_plain(path.read_bytes())
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
    places = _Places()
    by_device: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for segment in segments:
        by_device[int(segment.get("device", 0))].append(segment)
    numbers = sorted({*by_device, *(number for number, trace in enumerate(traces) if trace)})
    return tuple(
        _device(number, by_device.get(number, []), traces[number] if number < len(traces) else (), places)
        for number in numbers
    )


def _device(
    number: int, segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], places: _Places
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
                held[int(block.get("address", address))] = (size, places.of(_frames(block)))
            else:
                free.append(size)
            address += size
        if in_use:
            between += sum(free)
            largest = max(largest, *free) if free else largest
        else:
            whole += sum(free)
    peak, at_peak, asked, device_free = _peak(held, trace, places)
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
    )


def _peak(
    held: Mapping[int, tuple[int, str]], trace: Sequence[Mapping[str, Any]], places: _Places
) -> tuple[int, list[tuple[int, str]], int | None, int | None]:
    """Backwards from the end, undoing each event: the most that was held, and by what; the last out of memory."""
    now, total = dict(held), sum(size for size, _ in held.values())
    peak, at = total, len(trace)
    asked = device_free = None
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
        elif action == "oom" and asked is None:
            asked, device_free = int(event["size"]), int(event.get("device_free", 0))
        if total > peak:
            peak, at = total, index
    return peak, _alive(held, trace, at, places), asked, device_free


def _alive(
    held: Mapping[int, tuple[int, str]], trace: Sequence[Mapping[str, Any]], at: int, places: _Places
) -> list[tuple[int, str]]:
    """What was held before event `at` of the trace."""
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
            alive[int(event["addr"])] = (alive[int(event["addr"])][0], places.of(_frames(event)))
    return [(size, place or _NO_STACK) for size, place in alive.values()]


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


def _frames(thing: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    frames = thing.get("frames")
    if frames is None:  # until torch 2.1
        history = thing.get("history") or ()
        frames = history[0].get("frames") if history else None
    return frames or ()


class _Places:
    """Lines of code for stacks; a stack is one list in the pickle, however many blocks have it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def of(self, frames: Sequence[Mapping[str, Any]]) -> str:
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = (frames, _place(frames))
        return known[1]


def _place(frames: Sequence[Mapping[str, Any]]) -> str:
    python = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py")]
    own = [frame for frame in python if not any(part in str(frame["filename"]) for part in _LIBRARIES)]
    for frame in (*own, *python, *(frame for frame in frames if frame.get("name"))):
        name = Path(str(frame.get("filename", ""))).name
        return f"{name}:{frame.get('line', 0)} {frame.get('name', '')}".strip()
    return _NO_STACK
