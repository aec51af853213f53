"""One rank's events on the timeline: its file read once, rewritten event by event, and written as a piece."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct, field

from traceops.core.arrays import Int
from traceops.core.errors import InputError, problem_of
from traceops.core.units import events_text
from traceops.timeline.keep import StepFilter, Timed
from traceops.timeline.packets import RankPackets
from traceops.timeline.pieces import CannotWrite, CompressedPiece, PieceWriter
from traceops.timeline.processes import Ids, Processes
from traceops.timeline.reader import WholeEvent, read_whole_events
from traceops.timeline.times import LONGEST_NS, Placement, format_us, parse_us
from traceops.traces.source import chunks, open_binary
from traceops.words.catalogue import texts

Form = Literal["json", "perfetto"]

_ABSENT = msgspec.Raw(b"null")
_NOTES_PID = msgspec.Raw(b'"profiler"')
_MAY_STRETCH = 0.05  # how far beyond its events the profiler's notes on itself may reach, as a share


class PartTask(Struct, frozen=True):
    """What to write of one rank: `slot` is its place among the `slots` of the timeline.

    `form` is Chrome's JSON or Perfetto's own packets. `windows` are the times to keep (ns, as the analysis has
    them), None for all.
    """

    path: str
    rank: int
    slot: int
    slots: int
    host: str | None
    placement: Placement
    windows: tuple[tuple[int, int], ...] | None
    output: Path
    gzipped: bool
    form: Form = "json"
    streams: Mapping[int, str] = field(default_factory=dict)  # what runs on them


class RankPart(Struct, frozen=True):
    """A rank's piece of the timeline; `piece` is None where nothing could be read.

    `first_ns` and `last_ns` bound its events, ns since the timeline's zero; `damage` says what was lost.
    """

    rank: int
    path: str
    piece: CompressedPiece | None
    events: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    damage: tuple[str, ...] = ()


def _decoded(events: list[Any], encoded: bytes, rewriter: _Rewriter) -> list[Any]:
    """The events as Python has them, without those that hold a number which nothing can hold, such as 1e999."""
    try:
        decoded: list[Any] = msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        decoded = []
        for event in events:
            try:
                decoded.append(msgspec.json.decode(msgspec.json.encode(event)))
            except msgspec.DecodeError:
                rewriter.untimed += 1
    return decoded


def write_part(task: PartTask) -> RankPart:
    """Write one rank's events. A file that cannot be opened is damage, no error."""
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects that are all freed by reference count
    rewriter = _Rewriter(task)
    packets = RankPackets(task.slot, task.streams) if task.form == "perfetto" else None
    encode = msgspec.json.Encoder().encode

    def write(events: list[Any]) -> None:
        if not events:
            return
        encoded = encode(events)
        if packets is None:
            writer.write(encoded[1:-1] + b",\n")
        else:
            packets.take(_decoded(events, encoded, rewriter))

    try:
        with open_binary(task.path) as file, PieceWriter(task.output, task.gzipped) as writer:
            scanner = read_whole_events(chunks(file), lambda batch: write(rewriter.rewrite(batch)))
            write(rewriter.rest())
            if rewriter.events:
                write(rewriter.processes.titles())
            for piece in packets.write() if packets is not None else ():
                writer.write(piece)
    except CannotWrite:
        raise
    except InputError as error:
        task.output.unlink(missing_ok=True)
        return RankPart(task.rank, task.path, None, damage=(problem_of(error),))
    finally:
        if collecting:
            gc.enable()
    counts = {"not readable": scanner.unreadable, "without a valid time": rewriter.untimed}
    if packets is not None:
        counts[texts("views", "timeline")["unknown_kinds"]] = packets.untold
    damage = [*dict.fromkeys(scanner.damage), *(f"{events_text(n)} {what}" for what, n in counts.items() if n)]
    return RankPart(
        task.rank, task.path, writer.piece, rewriter.events, rewriter.first_ns, rewriter.last_ns, tuple(damage)
    )


class _Rewriter:
    """Turns events of one file into events of the timeline."""

    def __init__(self, task: PartTask) -> None:
        self.processes = Processes(task.rank, task.slot, task.slots, task.host)
        self.events = self.untimed = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._placement = task.placement
        self._ids = Ids(task.slot)
        self._filter = StepFilter(task.windows) if task.windows is not None else None
        self._notes: list[Timed] = []

    def rewrite(self, batch: list[WholeEvent]) -> list[WholeEvent]:
        """The batch's events to write now."""
        base, chosen = self._placement.base_ns, self._filter
        kept: list[Timed] = []
        for event in batch:
            phase = bytes(event.get("ph", _ABSENT))
            if phase == b'"M"':
                self.processes.describe(event)
                continue
            ns = parse_us(bytes(event.get("ts", _ABSENT)))
            duration = _duration(event) if phase == b'"X"' else 0
            if ns is None or duration is None:
                self.untimed += 1
                continue
            timed = event, ns + base, duration
            if _is_note(event):
                event["pid"] = _NOTES_PID  # one process for them, where the profiler has three
                self._notes.append(timed)
            elif chosen is None or chosen.keeps(timed, phase):
                kept.append(timed)
        return self._place(kept)

    def rest(self) -> list[WholeEvent]:
        """What could be decided only when all events had passed."""
        written = self._place(self._filter.held() if self._filter is not None else [])
        written += self._place(self._notes_within())
        for event in self.processes.metadata():
            ns = parse_us(bytes(event.get("ts", _ABSENT)))
            if ns is not None:
                moment = self._placement.place_one(ns + self._placement.base_ns)
                event["ts"] = msgspec.Raw(format_us(moment))
            written.append(event)
            self.events += 1
        return written

    def _place(self, timed: list[Timed]) -> list[WholeEvent]:
        """The events with time, process and ids as they are on the timeline."""
        if not timed:
            return []
        starts = np.array([start for _, start, _ in timed], dtype=np.int64)
        durations = np.array([duration for _, _, duration in timed], dtype=np.int64)
        placed = self._placement.place(starts)
        if self._placement.clock is not None:
            self._stretch(timed, durations, self._placement.place(starts + durations) - placed)
        first, last = int(placed.min()), int((placed + durations).max())
        self.first_ns = first if self.first_ns is None else min(self.first_ns, first)
        self.last_ns = last if self.last_ns is None else max(self.last_ns, last)
        number = self.processes.number
        for (event, _, _), start in zip(timed, placed.tolist(), strict=True):
            event["ts"] = msgspec.Raw(format_us(start))
            event["pid"] = number(event)
            if "id" in event or "bind_id" in event or "id2" in event:
                self._ids.rewrite(event)
        self.events += len(timed)
        return [event for event, _, _ in timed]

    @staticmethod
    def _stretch(timed: list[Timed], durations: Int, corrected: Int) -> None:
        """Durations on the common clock, where it runs at another pace: else slices would no longer nest."""
        for at in np.flatnonzero(corrected != durations).tolist():
            timed[at][0]["dur"] = msgspec.Raw(format_us(int(corrected[at])))

    def _notes_within(self) -> list[Timed]:
        """The profiler's notes on itself, unless the timeline grew longer by them."""
        if self.first_ns is None or self.last_ns is None:
            return self._notes if self._filter is None else []
        slack = int(_MAY_STRETCH * (self.last_ns - self.first_ns))
        first, last = self.first_ns - slack, self.last_ns + slack
        place = self._placement.place_one
        return [
            (event, start, duration)
            for event, start, duration in self._notes
            if first <= place(start) and place(start + duration) <= last
        ]


def _duration(event: WholeEvent) -> int | None:
    """A slice's duration in ns, 0 where the file has none, None where it is no possible one."""
    text = bytes(event.get("dur", _ABSENT))
    if text == b"null":
        return 0
    ns = parse_us(text)
    return ns if ns is not None and 0 <= ns < LONGEST_NS else None


def _is_note(event: WholeEvent) -> bool:
    """Whether the profiler wrote the event about its own window."""
    pid = bytes(event.get("pid", _ABSENT))
    if not pid.startswith(b'"'):
        return False
    name = bytes(event.get("name", _ABSENT))
    return (
        bytes(event.get("cat", _ABSENT)) == b'"Trace"'
        or name == b'"Record Window End"'
        or name.startswith(b'"Iteration Start:')
    )
