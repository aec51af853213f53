"""Lines of code for the stacks of a memory snapshot: the innermost that the user wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "<frozen",
    "<string>",
    "<eval_with_key>",
    "torchinductor",
    "/traceops/capture/",  # what it wraps is on the stacks of the program's own calls
)
NO_STACK = "no stack: made before the recording began, or without stacks"
_OWN, _PYTHON, _NAMED, _UNNAMED = range(4)


class Places:
    """Lines of code for stacks. A frame is one dict in the pickle, in however many stacks it is."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, str, Any]] = {}

    def of(self, frames: Sequence[Mapping[str, Any]]) -> str:
        """The innermost line of the user's own, else of Python, else what has a name at all."""
        best, place = _UNNAMED, NO_STACK
        for frame in frames:
            known = self._known.get(id(frame))
            if known is None:
                known = self._known[id(frame)] = (_kind(frame), _text(frame), frame)
            if known[0] < best:
                best, place, _ = known
                if best == _OWN:
                    break
        return place


def _kind(frame: Mapping[str, Any]) -> int:
    file = str(frame.get("filename", ""))
    if file.endswith(".py"):
        return _PYTHON if any(part in file for part in _LIBRARIES) else _OWN
    return _NAMED if frame.get("name") else _UNNAMED


def _text(frame: Mapping[str, Any]) -> str:
    name = str(frame.get("filename", "")).replace("\\", "/").rpartition("/")[2]
    return f"{name}:{frame.get('line', 0)} {frame.get('name', '')}".strip()


def frames_of(thing: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The stack of a block or an event, innermost first; () where none was recorded."""
    frames = thing.get("frames")
    if frames is None:  # until torch 2.1
        history = thing.get("history") or ()
        frames = history[0].get("frames") if history else None
    return frames or ()
