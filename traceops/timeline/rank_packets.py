"""One rank's events as packets of Perfetto's native format: held until all have passed, then written row by row."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from traceops.timeline.packets import Bar, Packets, Track, lanes
from traceops.timeline.processes import DEVICE_CATEGORIES, TrackNumbers, rank_uuid

_ROW = tuple[int, str]  # process and thread, as text: a file may have either as number or text
_OWN = frozenset({"process_name", "process_labels", "process_sort_index"})
_DEEPEST = 64  # slices that one moment lies in, looked through for whose arrow it is
_MEMORY = "[memory]"
_MEMORY_KINDS = {0: "host", 1: "GPU"}  # c10::DeviceType
_MEMORY_VALUES = {"Total Allocated": "allocated", "Total Reserved": "reserved"}
_RANK = re.compile(r"^rank \d+ · ")


class _Held(Struct):
    """What one thread or stream did: slices with (flow's phase and moment apart), instants, open begins."""

    bars: list[Bar] = field(default_factory=list)
    flows: list[tuple[int, int]] = field(default_factory=list)  # moment, number
    instants: list[tuple[int, bytes]] = field(default_factory=list)
    open: list[tuple[int, bytes]] = field(default_factory=list)


class RankPackets:
    """A sink for one rank's rewritten events. `untold` counts those that the format has no place for."""

    def __init__(self, slot: int, streams: Mapping[int, str]) -> None:
        self.untold = 0
        self._slot, self._streams = slot, streams
        self._packets = Packets(slot + 2)  # 1 is the sequence of what is common to all ranks
        self._rows: dict[_ROW, _Held] = defaultdict(_Held)
        self._counters: dict[tuple[int, str, str], list[tuple[int, float]]] = defaultdict(list)
        self._flows: dict[tuple[str, str, str], int] = {}
        self._asynchronous: dict[tuple[int, str, str], list[tuple[int, bytes]]] = defaultdict(list)
        self._names: dict[_ROW, str] = {}
        self._orders: dict[_ROW, float] = {}
        self._processes: dict[int, str] = {}
        self._places: dict[int, int] = {}
        self._devices: set[int] = set()

    def take(self, events: Sequence[dict[str, Any]]) -> None:
        """Keep the events, whose times are µs since the timeline's zero."""
        for event in events:
            phase = event.get("ph")
            if phase == "M":
                self._describe(event)
                continue
            start = round(float(event.get("ts", 0)) * 1000)
            row = int(event["pid"]), str(event.get("tid", ""))
            name, category = str(event.get("name", "")), str(event.get("cat", ""))
            if category in DEVICE_CATEGORIES:
                self._devices.add(row[0])
            args = event.get("args")
            args = args if isinstance(args, dict) else {} if args is None else {"args": args}
            if phase == "X":
                end = start + round(float(event.get("dur") or 0) * 1000)
                self._rows[row].bars.append(Bar(start, end, self._packets.body(name, category, args)))
            elif phase in ("i", "I", "R", "n"):
                if name != _MEMORY or not self._memory(row[0], start, args):
                    self._rows[row].instants.append((start, self._packets.body(name, category, args)))
            elif phase in ("s", "t", "f"):
                known = category, name, str(event.get("id"))
                self._rows[row].flows.append((start, self._flows.setdefault(known, len(self._flows) + 1)))
            elif phase == "C":
                self._count(row[0], start, name, args)
            else:
                self._pair(phase, row, start, event, name, category, args)

    def write(self) -> Iterator[bytes]:
        """Tracks first, then what is on them."""
        packets, place = self._packets, TrackNumbers(self._slot)
        for pid in sorted(self._used(), key=lambda pid: (self._places.get(pid, 0), pid)):
            title = _RANK.sub("", self._processes.get(pid, "")) or f"process {pid}"
            parent = place.next()
            yield packets.track(Track(parent, rank_uuid(self._slot), title, 100 + self._places.get(pid, 0) % 1000))
            own = sorted((row for row in self._rows if row[0] == pid), key=self._order)
            for order, row in enumerate(own):
                yield from self._row(row, parent, order * 100, place)
            for (_, name, unit), values in sorted(self._counters.items()):
                if _ == pid:
                    uuid = place.next()
                    yield packets.track(Track(uuid, parent, name, (len(own) + 1) * 100, unit))
                    yield packets.counter(uuid, sorted(values, key=lambda value: value[0]))

    def _row(self, row: _ROW, parent: int, order: int, place: TrackNumbers) -> Iterator[bytes]:
        held, packets = self._rows[row], self._packets
        for moment, body in held.open:  # begun and never ended
            held.bars.append(Bar(moment, max((bar.end for bar in held.bars), default=moment), body))
        if not held.bars and not held.instants:
            return
        name = self._title(row)
        for lane, bars in enumerate(lanes(_with_flows(held, self._slot)) or [[]]):
            uuid = place.next()
            yield packets.track(Track(uuid, parent, name + (f" ({lane + 1})" if lane else ""), order + min(lane, 99)))
            yield packets.slices(uuid, bars)
            if lane == 0:
                for moment, body in held.instants:
                    yield packets.instant(uuid, moment, body)

    def _title(self, row: _ROW) -> str:
        device = row[0] in self._devices
        numbered = f"{'stream' if device else 'thread'} {row[1]}" if row[1].lstrip("-").isdigit() else row[1]
        name = self._names.get(row, numbered).strip()
        words = self._streams.get(int(row[1])) if device and row[1].isdigit() else None
        return f"{name} · {words}" if words else name

    def _order(self, row: _ROW) -> tuple[float, int, str]:
        return self._orders.get(row, 0.0), int(row[1]) if row[1].lstrip("-").isdigit() else 0, row[1]

    def _used(self) -> set[int]:
        return {row[0] for row in self._rows} | {pid for pid, _, _ in self._counters}

    def _describe(self, event: Mapping[str, Any]) -> None:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        name, pid = event.get("name"), int(event["pid"])
        row = pid, str(event.get("tid", ""))
        if name == "process_name":
            self._processes[pid] = str(args.get("name", ""))
        elif name == "process_sort_index":
            self._places[pid] = int(args.get("sort_index", 0))
        elif name == "thread_name" and args.get("name"):
            self._names[row] = str(args["name"])
        elif name == "thread_sort_index" and isinstance(args.get("sort_index"), (int, float)):
            self._orders[row] = float(args["sort_index"])

    def _memory(self, pid: int, moment: int, args: Mapping[str, Any]) -> bool:
        """What the profiler notes at each allocation, as counters."""
        kind = _MEMORY_KINDS.get(args.get("Device Type", -1), "device")
        where = kind if kind == "host" else f"{kind} {args.get('Device Id', '')}".strip()
        known = False
        for source, what in _MEMORY_VALUES.items():
            value = args.get(source)
            if isinstance(value, (int, float)):
                known = True
                self._counters[pid, f"memory {what} · {where}", "bytes"].append((moment, float(value)))
        return known

    def _count(self, pid: int, moment: int, name: str, args: Mapping[str, Any]) -> None:
        for what, value in args.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                title = name if len(args) == 1 else f"{name} · {what}"
                self._counters[pid, title, "count"].append((moment, float(value)))

    def _pair(
        self,
        phase: Any,
        row: _ROW,
        moment: int,
        event: Mapping[str, Any],
        name: str,
        category: str,
        args: dict[str, Any],
    ) -> None:
        """Begins and ends that are events of their own."""
        opened = self._rows[row].open if phase in ("B", "E") else None
        if opened is None and phase in ("b", "e", "S", "F"):
            identity = event.get("id", event.get("id2", ""))
            row = row[0], f"{category or name} · asynchronous"
            opened = self._asynchronous[row[0], category, str(identity)]
        if opened is None:
            self.untold += 1
        elif phase in ("B", "b", "S"):
            opened.append((moment, self._packets.body(name, category, args)))
        elif opened:
            begun, body = opened.pop()
            self._rows[row].bars.append(Bar(begun, max(moment, begun), body))
        else:
            self.untold += 1


def _with_flows(held: _Held, slot: int) -> list[Bar]:
    """The slices with the arrows that begin or end at them: at the innermost slice that the moment lies in."""
    bars = sorted(held.bars, key=lambda bar: (bar.start, -bar.end))
    starts = [bar.start for bar in bars]
    at: dict[int, list[int]] = defaultdict(list)
    for moment, flow in held.flows:
        last = bisect_right(starts, moment) - 1
        inside = (i for i in range(last, max(last - _DEEPEST, -1), -1) if bars[i].end >= moment)
        if (found := next(inside, None)) is not None:
            at[found].append((slot + 1 << 32) + flow)
    for i, flows in at.items():
        bars[i] = Bar(bars[i].start, bars[i].end, bars[i].body, tuple(flows))
    return bars
