"""The trace of a profiler of the script's own, taken as this rank's window, with our steps in it."""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from traceops.capture.guard import contained
from traceops.capture.trace_file import TraceFolder

_HEAD_BYTES = 1 << 16
_ROWS = re.compile(rb'"traceEvents"\s*:\s*\[')
_EMPTY = re.compile(rb"\s*\]")  # a list of events without one
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_STEP, _OTHERS_STEP = b'"ProfilerStep#', b'"ScriptStep#'


class Adoption:
    """Waits for the trace of the script's profiler, from the moment that ours gave way to it.

    The script's profiler runs, exports and steps as it always does. Ours copies the file that it exports. A session
    that the script drops without an export is exported in its stead, when nobody can ask it for anything any more.
    """

    def __init__(self, folder: TraceFolder, window: int) -> None:
        self.trace: Path | None = None
        self.steps: list[int] = []
        self._folder = folder
        self._window = window
        self._ends: list[tuple[int, int]] = []  # number of a step, Unix time in ns at which it ended
        self._begun_ns = time.time_ns()
        self._ended_ns: int | None = None
        self._thread = threading.get_native_id()
        self._dropped: weakref.finalize[..., Any] | None = None
        self._undo = self._listen()

    def step_ended(self, step: int) -> None:
        """Step number `step` ended now."""
        if self.trace is None:
            self._ends.append((step, time.time_ns()))

    def close(self, *, last: bool) -> None:
        """Hear no more. last: the script has ended, so that a session of its can be exported now."""
        if self._dropped is not None and last:
            self._dropped()
        elif self._dropped is not None:
            self._dropped.detach()
        self._undo()

    def _listen(self) -> Callable[[], None]:
        from torch.autograd.profiler import profile

        saved = {name: getattr(profile, name) for name in ("_start_trace", "__exit__", "export_chrome_trace")}

        @functools.wraps(saved["_start_trace"])
        def start(session: Any, *args: Any, **kwargs: Any) -> Any:
            if self.trace is None:
                self._begun_ns, self._ended_ns = time.time_ns(), None
            return saved["_start_trace"](session, *args, **kwargs)

        @functools.wraps(saved["__exit__"])
        def leave(session: Any, *args: Any, **kwargs: Any) -> Any:
            ended_ns = time.time_ns()
            result = saved["__exit__"](session, *args, **kwargs)
            contained(self._left, session, ended_ns)
            return result

        @functools.wraps(saved["export_chrome_trace"])
        def export(session: Any, *args: Any, **kwargs: Any) -> Any:  # torch 2.13 passes more than a path
            result = saved["export_chrome_trace"](session, *args, **kwargs)
            contained(functools.partial(self._exported, *args, **kwargs))
            return result

        ours = {"_start_trace": start, "__exit__": leave, "export_chrome_trace": export}
        for name, method in ours.items():
            setattr(profile, name, method)

        def undo() -> None:
            for name, method in ours.items():
                if getattr(profile, name) is method:
                    setattr(profile, name, saved[name])

        return undo

    def _left(self, session: Any, ended_ns: int) -> None:
        self._ended_ns = ended_ns
        results = getattr(session, "kineto_results", None)
        if self.trace is None and results is not None:
            self._dropped = weakref.finalize(session, contained, self._export, results)
            self._dropped.atexit = False

    def _exported(self, path: Any, *_args: Any, **_kwargs: Any) -> None:
        if self._dropped is not None:
            self._dropped.detach()
        self._take(Path(path))

    def _export(self, results: Any) -> None:
        """Save what nobody else can save any more."""
        plain = self._folder.plain(self._window)
        try:
            results.save(str(plain))
            self._take(plain)
        finally:
            with suppress(OSError):
                plain.unlink()

    def _take(self, source: Path) -> None:
        steps = list(self._whole_steps())
        if self.trace is not None or not steps:
            return
        self.trace = self._folder.pack(self._window, with_steps(source, steps, self._thread))
        self.steps = [step for step, _begin, _end in steps]

    def _whole_steps(self) -> Iterator[tuple[int, int, int]]:
        """Number, begin and end in Unix ns of each step that the session holds whole."""
        end_ns = self._ended_ns if self._ended_ns is not None else time.time_ns()
        for (_, begin), (step, end) in zip(self._ends, self._ends[1:], strict=False):
            if begin >= self._begun_ns and end <= end_ns:
                yield step, begin, end


def with_steps(source: Path, steps: list[tuple[int, int, int]], thread: int) -> Iterator[bytes]:
    """The bytes of a trace of torch.profiler with a ``ProfilerStep#`` for each of `steps`, on that thread.

    steps: number, begin and end in Unix ns. The script's own steps become ``ScriptStep#``.
    Raises ValueError where the file is no such trace.
    """
    with source.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _HEAD_BYTES))
        tail = file.read()
        rows = _ROWS.search(head)
        if rows is None:
            raise ValueError(f"{source}: no traceEvents in its first {_HEAD_BYTES} bytes")
        base = _BASE.search(head) or _BASE.search(tail)
        base_ns = 0 if base is None else int(base[1])
        marks = [
            {
                "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": os.getpid(), "tid": thread,
                "ts": (begin - base_ns) / 1000, "dur": (end - begin) / 1000,
            }
            for step, begin, end in steps
        ]  # fmt: skip
        file.seek(rows.end())
        yield head[: rows.end()]
        yield ",".join(json.dumps(mark) for mark in marks).encode()
        if not _EMPTY.match(head, rows.end()):
            yield b","
        kept = b""
        while block := file.read(1 << 20):
            text = (kept + block).replace(_STEP, _OTHERS_STEP)
            kept, text = text[-len(_STEP) :], text[: -len(_STEP)]
            yield text
        yield kept
