"""A memory snapshot's pickle as packed rows: events, blocks and segments, without a Python object for each.

The extension `_snapshot` reads the pickle so; what it finds unusual, and everything where it is missing, Python's own
unpickler reads into dicts, which become the same rows.
"""

from __future__ import annotations

import base64
import os
import pickle
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import DTypeLike, NDArray

from traceops.core.files import open_regular, read_regular
from traceops.core.plain_pickle import load_plain_file
from traceops.core.text import is_compiled_code
from traceops.core.words import NO_STACK

_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen",
    "<string>",
    "<eval_with_key>",
    "/traceops/capture/",  # what it wraps is on the stacks of the program's own calls
)
# Frames of C++, which torch records unless it is told not to: on a GPU's thread backward has no others.
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\b")
_ALLOCATING = (
    "torch::unwind", "torch::CapturedTraceback", "torch::cuda::(anonymous namespace)::gather",
    "c10::cuda::CUDACachingAllocator", "at::detail::", "at::TensorBase at::detail::",
)  # fmt: skip
_PAGE_HEAD = 512
_IN_PAGE = re.compile(rb'"base64": ?"([A-Za-z0-9+/=]+)"')
_MOST_NAME = 80  # letters of a function with templates
_OWN, _PYTHON, _NAMED, _UNNAMED = range(4)


class Places:
    """Lines of code, numbered in order of first appearance; -1 stands for no stack. texts: of each number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._frames: dict[int, int] = {}  # by id: a frame is one dict in the pickle, in however many stacks it is
        self._stacks: dict[int, int] = {}
        self._seen: list[Any] = []  # so that no id is of two things

    def of_frame(self, filename: str, line: Any, name: Any) -> int:
        """The place's number times 4, plus how good it is.

        0: the user's own; 1: Python, or a node of backward; 2: what has a name; 3: nothing, or the allocator's own.
        """
        kind = _kind(filename, str(name))
        return self._number(_text(filename, line, str(name))) * 4 + kind

    def _number(self, text: str) -> int:
        if (known := self._numbers.get(text)) is None:
            known = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return known

    def of(self, frames: Sequence[Mapping[str, Any]]) -> int:
        """Of a stack, the innermost frame first: the innermost line of the user's own, else of Python, else a name."""
        if (known := self._stacks.get(id(frames))) is None:
            known = self._stacks[id(frames)] = self._of(frames)
            self._seen.append(frames)
        return known

    def _of(self, frames: Sequence[Mapping[str, Any]]) -> int:
        best, place = _UNNAMED, -1
        for frame in frames:
            if (code := self._frames.get(id(frame))) is None:
                code = self.of_frame(str(frame.get("filename", "")), frame.get("line", 0), frame.get("name", ""))
                self._frames[id(frame)] = code
                self._seen.append(frame)
            if code % 4 < best:
                best, place = code % 4, code // 4
                if best == _OWN:
                    break
        return place

    def number(self, text: str) -> int:
        """Of a place that has one; -1 of others."""
        return self._numbers.get(text, -1)

    def text(self, number: int) -> str:
        """Of a place; of -1 that there was no stack."""
        return self.texts[number] if number >= 0 else NO_STACK


def _kind(filename: str, name: str) -> int:
    if filename.endswith(".py"):
        return _PYTHON if any(part in filename for part in _LIBRARIES) or is_compiled_code(filename) else _OWN
    if _NODE.match(name):
        return _PYTHON
    return _NAMED if name and not name.startswith(_ALLOCATING) else _UNNAMED


def _text(filename: str, line: Any, name: str) -> str:
    """'train.py:9 main'; of C++ without a line the function, without what it takes, or the node of backward."""
    if not filename.endswith(".py"):
        if node := _NODE.match(name):
            return f"{node[1]} in backward"
        if name and not line:
            return name.replace("(anonymous namespace)", "").replace("::::", "::").partition("(")[0][:_MOST_NAME]
    return f"{filename.replace(chr(92), '/').rpartition('/')[2]}:{line} {name}".strip()


def frames_of(thing: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The stack of a block or an event, innermost first; () where none was recorded."""
    if (frames := thing.get("frames")) is None:  # until torch 2.1
        history = thing.get("history") or ()
        frames = history[0].get("frames") if history else None
    return frames or ()


NOT_NEEDED, ALLOC, FREE_COMPLETED, OOM, SEGMENT_TAKEN, SEGMENT_GIVEN = range(6)  # as native/snapshot.h numbers them
_ACTIONS = {
    "alloc": ALLOC, "free_completed": FREE_COMPLETED, "oom": OOM, "segment_alloc": SEGMENT_TAKEN,
    "segment_map": SEGMENT_TAKEN, "segment_free": SEGMENT_GIVEN, "segment_unmap": SEGMENT_GIVEN,
}  # fmt: skip
_HELD = ("active_allocated", "active_pending_free", "active_awaiting_free")
_MOST, _MOST_ASKED = 1 << 47, 1 << 62  # bytes: that a device has, and that a program asks for by mistake
SEGMENT = np.dtype([("device", "i8"), ("address", "i8"), ("bytes", "i8"), ("first", "u4"), ("count", "u4")], align=True)
BLOCK = np.dtype([("address", "i8"), ("bytes", "i8"), ("place", "i4"), ("held", "?")], align=True)
SHORTAGE = np.dtype([("event", "u4"), ("device_free", "i8")], align=True)
TRACE = np.dtype([("first", "u4"), ("count", "u4")])


class SnapshotRows(Struct, frozen=True):
    """What a snapshot holds. Of each event: action, address, size in bytes, place; traces: which events are a device's.
    segments name their blocks as a first row and a number of rows. A block's address is -1 where it lies right behind
    the one before. Places are numbers of `places`. Sizes are 0 where they are not needed."""

    action: NDArray[np.uint8]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    place: NDArray[np.int32]
    shortages: NDArray[np.void]
    blocks: NDArray[np.void]
    segments: NDArray[np.void]
    traces: NDArray[np.void]
    places: Places


def read_rows(path: Path) -> SnapshotRows:
    """The rows of a pickle, or of a page that torch.cuda._memory_viz made of one. Raises OSError, UnpicklingError,
    EOFError, and what `rows_of` raises."""
    if (pickled := _pickle_in_page(path)) is None:
        return native_rows(path) or rows_of(load_plain_file(path))
    with tempfile.NamedTemporaryFile() as file:
        file.write(pickled)
        file.flush()
        return native_rows(Path(file.name)) or rows_of(load_plain_file(Path(file.name)))


def _pickle_in_page(path: Path) -> bytes | None:
    """The snapshot that a page carries in base64; None for a file that is no page."""
    with open_regular(str(path)) as file:
        if b"<html" not in file.read(_PAGE_HEAD).lower():
            return None
    if (found := _IN_PAGE.search(read_regular(path))) is None:
        raise pickle.UnpicklingError("a page that holds no snapshot: give the pickle that it was made of")
    return base64.b64decode(found[1])


def native_rows(path: Path) -> SnapshotRows | None:
    """The same by the extension; None where it is missing, or where the file is not as torch writes it."""
    if os.environ.get("TRACEOPS_NATIVE") == "0":
        return None
    try:
        from traceops.traces import _snapshot  # an installation without a compiler has none
    except ImportError:
        return None
    places = Places()
    with open_regular(str(path)) as file:
        found = _snapshot.read(file.fileno(), places.of_frame)
    return None if found is None else _typed(found, places)


def rows_of(found: Any) -> SnapshotRows:
    """The rows of dicts. Raises TypeError, ValueError, LookupError, AttributeError, OverflowError for another shape."""
    places = Places()
    segments, blocks = _segments(found["segments"], places)
    columns: list[tuple[int, int, int, int]] = []
    shortages: list[tuple[int, int]] = []
    traces: list[tuple[int, int]] = []
    seen: set[int] = set()
    for trace in found.get("device_traces") or ():
        if len(trace) and id(trace) in seen:
            raise ValueError("two devices with the same events")
        seen.add(id(trace))
        traces.append((len(columns), len(trace)))
        for event in trace:
            action = _ACTIONS.get(event["action"], NOT_NEEDED)
            address, size = 0, 0
            if action != NOT_NEEDED:
                size = _size(event["size"], _MOST_ASKED if action == OOM else _MOST)
            if action in (ALLOC, FREE_COMPLETED):
                address = int(event["addr"])
            elif action == OOM:
                shortages.append((len(columns), _size(event.get("device_free", 0))))
            columns.append((action, address, size, places.of(frames_of(event)) if action == ALLOC else -1))
    rows = dict(
        zip(("action", "address", "size", "place"), zip(*columns, strict=True) if columns else ((),) * 4, strict=True)
    )
    return _typed({**rows, "shortages": shortages, "blocks": blocks, "segments": segments, "traces": traces}, places)


def _segments(
    found: Sequence[Mapping[str, Any]], places: Places
) -> tuple[list[tuple[int, ...]], list[tuple[Any, ...]]]:
    segments: list[tuple[int, ...]] = []
    blocks: list[tuple[Any, ...]] = []
    seen: set[int] = set()
    for segment in found:
        own = segment["blocks"]
        if len(own) and id(own) in seen:
            raise ValueError("two segments with the same blocks")
        seen.add(id(own))
        first = len(blocks)
        for block in own:
            held = block["state"] in _HELD
            place = places.of(frames_of(block)) if held else -1
            address = block.get("address")
            blocks.append((-1 if address is None else int(address), _size(block["size"]), place, held))
        numbers = int(segment.get("device", 0)), int(segment.get("address", 0)), _size(segment["total_size"])
        segments.append((*numbers, first, len(blocks) - first))
    return segments, blocks


def _size(value: Any, most: int = _MOST) -> int:
    size = int(value)
    if not 0 <= size < most:
        raise ValueError("sizes that no memory has")
    return size


def _typed(found: Mapping[str, Any], places: Places) -> SnapshotRows:
    types: dict[str, DTypeLike] = {
        "action": np.uint8, "address": np.int64, "size": np.int64, "place": np.int32,
        "shortages": SHORTAGE, "blocks": BLOCK, "segments": SEGMENT, "traces": TRACE,
    }  # fmt: skip
    return SnapshotRows(**{name: _array(found[name], kind) for name, kind in types.items()}, places=places)


def _array(values: Any, kind: DTypeLike) -> NDArray[Any]:
    if isinstance(values, (list, tuple)):
        return np.array(values, dtype=kind)
    return np.frombuffer(values, dtype=kind) if len(memoryview(values)) else np.zeros(0, dtype=kind)
