"""Lines of code for the stacks of a memory snapshot: the innermost that the user wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from traceops.core.code_places import is_compiled_code

_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen",
    "<string>",
    "<eval_with_key>",
    "/traceops/capture/",  # what it wraps is on the stacks of the program's own calls
)
NO_STACK = "no stack: made before the recording began, or without stacks"
# Frames of C++, which torch records unless it is told not to: on a GPU's thread backward has no others.
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\b")
_ALLOCATING = (
    "torch::unwind",
    "torch::CapturedTraceback",
    "torch::cuda::(anonymous namespace)::gather",
    "c10::cuda::CUDACachingAllocator",
    "at::detail::",
    "at::TensorBase at::detail::",
)
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
        known = self._numbers.get(text)
        if known is None:
            known = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return known

    def of(self, frames: Sequence[Mapping[str, Any]]) -> int:
        """Of a stack, the innermost frame first: the innermost line of the user's own, else of Python, else a name."""
        known = self._stacks.get(id(frames))
        if known is None:
            known = self._stacks[id(frames)] = self._of(frames)
            self._seen.append(frames)
        return known

    def _of(self, frames: Sequence[Mapping[str, Any]]) -> int:
        best, place = _UNNAMED, -1
        for frame in frames:
            code = self._frames.get(id(frame))
            if code is None:
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
    frames = thing.get("frames")
    if frames is None:  # until torch 2.1
        history = thing.get("history") or ()
        frames = history[0].get("frames") if history else None
    return frames or ()
