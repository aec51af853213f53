"""The allocations and frees that torch's profiler writes into a trace with `profile_memory`, read from its text."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Struct

from traceops.core.arrays import Int
from traceops.traces.event import texts_to_ns
from traceops.traces.source import Damaged, chunks, open_binary

_NAME = b'"[memory]"'
_RECORDED = re.compile(rb'"profile_memory"\s*:\s*1')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?!\d)')
_LATEST_BASE = 1 << 62
_TAIL = 4096  # bytes that the text of one event, or of one number, is shorter than
_HOST = 0  # as torch numbers kinds of devices


class MemoryEvents(Struct, frozen=True):
    """Of one GPU, in order of time. ts: ns, as in Events. tid: the thread. size: bytes, negative where they were freed.
    held: by all tensors afterwards."""

    device: int
    ts: Int
    tid: Int
    address: Int
    size: Int
    held: Int


_Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Size = Annotated[int, msgspec.Meta(ge=-(2**50), le=2**50)]


class _MemoryArgs(msgspec.Struct):
    address: _Number = msgspec.field(name="Addr")
    size: _Size = msgspec.field(name="Bytes")
    held: _Size = msgspec.field(name="Total Allocated")
    kind: _Number = msgspec.field(name="Device Type")
    device: _Number = msgspec.field(name="Device Id")


class _Event(msgspec.Struct):
    ts: msgspec.Raw
    tid: _Number
    args: _MemoryArgs


def read_memory_events(path: str) -> MemoryEvents | None:
    """Those of the GPU on which tensors held most. Raises InputError where the file cannot be opened. None where the
    trace says that it has none (its beginning is read then), where it is damaged, and where they do not add up to the
    totals that they tell, to the byte."""
    found: list[_Event] = []
    base = 0
    try:
        with open_binary(path) as file:
            left = b""
            for at, piece in enumerate(chunks(file)):
                if not at and _RECORDED.search(piece) is None:
                    return None
                text = left + piece
                if said := _BASE.search(text):
                    base = number if (number := int(said.group(1))) < _LATEST_BASE else 0
                left = text[_take(text, found) :][-_TAIL:]
    except (Damaged, msgspec.DecodeError, UnicodeDecodeError):
        return None
    most: dict[int, int] = {}
    for event in found:
        if event.args.kind != _HOST:
            most[event.args.device] = max(most.get(event.args.device, 0), event.args.held)
    if not most:
        return None
    device = max(most, key=lambda number: most[number])
    own = [event for event in found if event.args.kind != _HOST and event.args.device == device]
    ts, valid = texts_to_ns([event.ts for event in own])
    order = np.argsort(ts, kind="stable")  # a file has them by thread
    rows = [(event.tid, event.args.address, event.args.size, event.args.held) for event in own]
    events = MemoryEvents(device, ts[order] + base, *np.array(rows, dtype=np.int64)[order].T)
    adds_up = (np.diff(events.held) == events.size[1:]).all()
    return events if valid.all() and adds_up else None


def _take(text: bytes, found: list[_Event]) -> int:
    """Add the events that are whole in `text`; where the last of them ends."""
    decode = msgspec.json.Decoder(_Event).decode
    over = 0
    at = text.find(_NAME)
    while at >= 0:
        args = text.find(b"}", at)
        end = text.find(b"}", args + 1) if args >= 0 else -1
        if end < 0:
            break
        found.append(decode(text[text.rfind(b"{", over, at) : end + 1]))
        over = end + 1
        at = text.find(_NAME, over)
    return over
