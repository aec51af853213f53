"""The traces of a run as JSON documents: read, changed, and written anew."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from traceops.traces.discover import discover

Event = dict[str, Any]


@dataclass
class Trace:
    """One rank's trace in one window. document: all but its events."""

    rank: int
    document: dict[str, Any]
    events: list[Event]
    file: str  # where it is written, within the folder
    style: str = "plain"  # plain, compact, indented, reversed (keys)
    cut_at: float = 1.0  # the share of its bytes that is written

    def marks(self) -> list[Event]:
        """The profiler's steps on the host, in order."""
        found = [e for e in self.events if is_mark(e) and e.get("cat") != "gpu_user_annotation"]
        return sorted(found, key=lambda e: e["ts"])


@dataclass
class Traces:
    """A run. beside: other files, by name."""

    traces: list[Trace]
    beside: dict[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Into an empty folder."""
        for trace in self.traces:
            path = folder / trace.file
            path.parent.mkdir(parents=True, exist_ok=True)
            data = _encoded(trace)
            data = gzip.compress(data, 1) if path.suffix == ".gz" else data
            path.write_bytes(data[: int(len(data) * trace.cut_at)])
        for name, data in self.beside.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


def is_mark(event: Event) -> bool:
    """Whether it is the profiler's mark of a step."""
    return str(event.get("name", "")).startswith("ProfilerStep#")


def read_traces(folder: Path) -> Traces:
    """The window that `analyze` takes, as compact files under names of their ranks; nothing beside it."""
    found = []
    for file in discover(str(folder)).latest.files:
        data = Path(file.path).read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        document = json.loads(text, parse_float=Decimal)
        if isinstance(document, list):
            document = {"traceEvents": document}
        events = document.pop("traceEvents")
        name = f"rank_{file.rank}.pt.trace.json"
        found.append(Trace(file.rank, document, events, name))
    return Traces(found)


def _encoded(trace: Trace) -> bytes:
    """As kineto writes it, or in another style."""
    head = json.dumps(trace.document, default=float, indent=2 if trace.style == "indented" else None)
    events = "[" + (",\n" if trace.style != "compact" else ",").join(_event(e, trace.style) for e in trace.events) + "]"
    comma = ", " if trace.document else ""
    if trace.style == "reversed":
        text = f'{{"traceEvents": {events}{comma}{head[1:]}'
    else:
        text = f'{head[:-1]}{comma}"traceEvents": {events}}}'
    return text.encode(errors="surrogatepass")


def _event(event: Event, style: str) -> str:
    """Numbers in full: no float holds all digits of absolute times."""
    pairs = list(event.items())
    if style == "reversed":
        pairs.reverse()
    indent = 4 if style == "indented" else None
    colon = ":" if style == "compact" else ": "
    separators = (",", ":") if style == "compact" else None
    texts = [
        f'"{key}"{colon}'
        + (
            str(value)
            if isinstance(value, Decimal)
            else json.dumps(value, default=float, indent=indent, separators=separators)
        )
        for key, value in pairs
    ]
    if style == "indented":
        return "{\n  " + ",\n  ".join(texts) + "\n}"
    return "{" + ("," if style == "compact" else ", ").join(texts) + "}"


def timed(events: list[Event]) -> Iterator[Event]:
    """The events that have a time."""
    return (event for event in events if isinstance(event.get("ts"), (int, float, Decimal)))
