"""Reads a written timeline and its sources with json.load, knowing nothing of how traceops writes it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]
OWN_METADATA = ("process_name", "process_sort_index")
NOTES = ("Record Window End", "Iteration Start: PyTorch Profiler")


def read(path: Path) -> Any:
    """A file's JSON, floats as Decimals so that no digit is lost."""
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw, parse_float=Decimal)


def ns(us: Any) -> int:
    """Decimal µs to ns, half a ns rounded up."""
    return int((Decimal(str(us)) * 1000 + Decimal("0.5")) // 1)


def is_note(event: Event) -> bool:
    """Whether the profiler wrote the event about itself."""
    return event.get("cat") == "Trace" or event.get("name") in NOTES


@dataclass(frozen=True)
class Timeline:
    """A timeline taken apart: the sources' events by rank, what was added, and who is who."""

    base_ns: int
    by_rank: dict[int, list[Event]]  # in the file's order, without metadata
    metadata: dict[int, list[Event]]
    added: list[Event]
    titles: dict[int, str]  # process id -> name

    def rank_of(self, pid: int) -> int | None:
        """The rank a process belongs to, by its name."""
        words = self.titles[pid].split()
        return int(words[1]) if words[0] == "rank" else None

    def tracks(self, pid: int) -> dict[int, str]:
        """Names of a process's threads."""
        return {
            event["tid"]: event["args"]["name"]
            for event in (*self.added, *(e for own in self.metadata.values() for e in own))
            if event["name"] == "thread_name" and event["pid"] == pid
        }

    def pid_of(self, title: str) -> int:
        """The process of that name."""
        (pid,) = (pid for pid, name in self.titles.items() if name == title)
        return pid

    def added_slices(self, title: str, track: str) -> list[Event]:
        """Slices traceops added on tracks whose name begins so, in time order."""
        pid = self.pid_of(title)
        tids = {tid for tid, name in self.tracks(pid).items() if name.startswith(track)}
        own = [e for e in self.added if e["ph"] == "X" and e["pid"] == pid and e["tid"] in tids]
        return sorted(own, key=lambda event: event["ts"])


def read_timeline(path: Path) -> Timeline:
    """Take a written timeline apart and check what holds for every one."""
    document = read(path)
    events = document["traceEvents"]
    assert all(type(event["pid"]) is int and 0 < event["pid"] < 1 << 32 for event in events)
    titles: dict[int, str] = {}
    for event in events:
        if event["name"] == "process_name" and event["ph"] == "M":
            assert event["pid"] not in titles, "a process is named twice"
            titles[event["pid"]] = event["args"]["name"]
    assert {event["pid"] for event in events} <= titles.keys(), "a process has no name"
    timeline = Timeline(document["baseTimeNanoseconds"], defaultdict(list), defaultdict(list), [], titles)
    for event in events:
        rank = timeline.rank_of(event["pid"])
        if rank is None or titles[event["pid"]].endswith("overview") or event.get("cat") == "traceops":
            timeline.added.append(event)
        elif event["ph"] != "M":
            timeline.by_rank[rank].append(event)
        elif event["name"] not in OWN_METADATA:
            timeline.metadata[rank].append(event)
    check_nesting(timeline.added)
    check_ids(timeline)
    return timeline


def check_nesting(events: list[Event]) -> None:
    """On each track slices nest or do not overlap."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["dur"])))
    for own in tracks.values():
        open_ends: list[int] = []
        for start, duration in sorted(own, key=lambda pair: (pair[0], -pair[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or start + duration <= open_ends[-1]
            open_ends.append(start + duration)


def check_ids(timeline: Timeline) -> None:
    """No id of a flow or an asynchronous event is two ranks', and traceops' own are nobody's."""
    owners: dict[Any, set[int | None]] = defaultdict(set)
    for rank, own in [*timeline.by_rank.items(), (None, timeline.added)]:
        for event in own:
            if event["ph"] == "C":
                continue
            for value in (event.get("id"), event.get("bind_id"), *(event.get("id2") or {}).values()):
                if value is not None:
                    owners[int(value, 16) if isinstance(value, str) else value].add(rank)
    assert all(len(ranks) == 1 for ranks in owners.values())


def comparable(event: Event) -> Event:
    """What of an event may not change."""
    return {k: v for k, v in event.items() if k not in ("pid", "ts", "id", "id2", "bind_id")}


def check_rank(timeline: Timeline, rank: int, source: Path, expected: list[Event] | None = None) -> set[int]:
    """Compare a rank's events one by one with its source's (or the `expected` ones of it).

    Returns by how many ns times were moved, the difference of the files' zeros not counted.
    """
    document = read(source)
    document = {"traceEvents": document} if isinstance(document, list) else document
    everything = document["traceEvents"]
    if expected is None:
        expected = [e for e in everything if e.get("ph") != "M" and not is_note(e)]
    written = [event for event in timeline.by_rank[rank] if not is_note(event)]
    assert len(written) == len(expected)
    shift = document.get("baseTimeNanoseconds", 0) - timeline.base_ns
    moved, pids, ids = set(), {}, {}
    for event, original in zip(written, expected, strict=True):
        assert comparable(event) == comparable(original)
        moved.add(ns(event["ts"]) - ns(original["ts"]) - shift)
        assert pids.setdefault(repr(original.get("pid")), event["pid"]) == event["pid"]
        for key in ("id", "bind_id"):
            assert (key in event) == (key in original)
            if key in original and event["ph"] != "C":
                assert ids.setdefault(repr(original[key]), event[key]) == event[key]
    assert len(set(pids.values())) == len(pids), "two processes became one"
    assert len(set(ids.values())) == len(ids), "two ids became one"
    used = {repr(event.get("pid")) for event in expected}
    described = [
        comparable(event)
        for event in everything
        if event.get("ph") == "M" and event["name"] not in OWN_METADATA and repr(event["pid"]) in used
    ]
    assert [comparable(e) for e in timeline.metadata[rank] if e["pid"] in pids.values()] == described
    return moved
