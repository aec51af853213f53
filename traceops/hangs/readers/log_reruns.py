"""Starts that did not get past a program's imports, where a later one of the same file did: by its tracebacks alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from traceops.hangs.evidence import Frame, LogEvent

_MODULE = "<module>"
_FROZEN = "<frozen "


def reruns(events: Sequence[LogEvent]) -> list[int]:
    """Lines of failures behind which the same program was started once more, of events that name no rank, in order.

    Code of a module runs from the top. Who failed in line 20 of `train.py` while it was imported ended there; who then
    comes to line 168 of it is another start.
    """
    raised = [event for event in events if event.kind == "error" and event.frames]
    return [
        before.line
        for before, after in pairwise(raised)
        if (at := _ended_in_imports(before.frames)) is not None and _comes_further(after.frames, at)
    ]


def _ended_in_imports(frames: Sequence[Frame]) -> tuple[str, int] | None:
    """The outermost line of an exception that modules raised while they were imported; None of another."""
    own = [frame for frame in frames if not frame.file.startswith(_FROZEN)]
    if not own or any(frame.function != _MODULE for frame in own) or own[-1].line is None:
        return None
    return own[-1].file, own[-1].line


def _comes_further(frames: Sequence[Frame], at: tuple[str, int]) -> bool:
    file, line = at
    return any(
        frame.function == _MODULE and frame.file == file and frame.line is not None and frame.line > line
        for frame in frames
    )
