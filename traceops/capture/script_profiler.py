"""Tells in which steps a profiler of the script's own was at work: none of them shows what a step takes without one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from traceops.capture.after_import import when_loaded
from traceops.capture.guard import Guard, contained
from traceops.capture.manifest import ScriptProfilerRecord

_MODULE = "torch.autograd.profiler"
_PREPARES = "_prepare_trace"
_OURS = str(Path(__file__).parent)
_BETWEEN = ("/contextlib.py", "/functools.py")  # of the standard library
# Of torch's profilers, the public ones too. What begins in C++ alone is seen when a step's end looks at everything.
_BEGINNINGS = (
    ("profile", _PREPARES),
    ("profile", "_start_trace"),
    ("emit_nvtx", "__enter__"),
    ("emit_itt", "__enter__"),
)


class ScriptProfiler:
    """Told where each step ends. A profiler that only warms up is at work too: it is at CUPTI already."""

    def __init__(self, begins: Callable[[], None] = lambda: None) -> None:
        self._begins = begins  # called where one does; it must not fail
        self.record: ScriptProfilerRecord | None = None
        self._began = False
        self.at_work = False  # where the last step ended
        self.disturbed = False  # the step that ended last: one was at work in it, or in the one before
        self._within = False
        self._prepared = False
        self._is_enabled: Callable[[], bool] | None = None  # torch's own answer, once it is loaded
        self._where: str | None = None
        self._undo: list[Callable[[], Any]] = []

    def watch(self, guard: Guard) -> None:
        """Hear of torch's profilers, from when the program loads them."""
        when_loaded({_MODULE: self._install}, guard, self._undo)

    def close(self) -> None:
        """Hear no more."""
        for undo in self._undo:
            if contained(undo) is None:
                contained(undo)  # what failed in the middle

    def step_ended(self, step: int, *, ours: bool) -> bool:
        """Whether one was at work in this step. ours: the capture's own profiler records, so that no other does."""
        now = not ours and (self._prepared or self._enabled())
        within = not ours and (self._began or self.at_work or now)
        self._began, self.at_work = False, now
        self.disturbed = within or self._within
        self._within = within
        if within:
            before = self.record or {"first": step, "last": step, "steps": 0, "where": self._where}
            self.record = {**before, "last": step, "steps": before["steps"] + 1}
        return within

    @property
    def last(self) -> int:
        """The last step in which one was at work; -1 without."""
        return -1 if self.record is None else self.record["last"]

    @property
    def quiet(self) -> bool:
        """Whether none was at work lately: the next step has none either, unless one begins."""
        return not (self._began or self.at_work or self._within or self._prepared)

    def _enabled(self) -> bool:
        if self._is_enabled is None:
            torch = sys.modules.get("torch")
            self._is_enabled = getattr(
                getattr(getattr(torch, "_C", None), "_autograd", None), "_profiler_enabled", None
            )
        return self._is_enabled is not None and self._is_enabled()

    def _install(self, module: Any) -> None:
        for owner, name in _BEGINNINGS:
            kind = getattr(module, owner, None)
            if (original := getattr(kind, name, None)) is not None:
                method = self._heard(original, prepares=name == _PREPARES)
                self._undo.append(functools.partial(_restore, kind, name, method, original))
                setattr(kind, name, method)

    def _heard(self, original: Callable[..., Any], *, prepares: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(session: Any, *args: Any, **kwargs: Any) -> Any:
            # No call that could fail: torch is half-way in its own work.
            self._begins()
            self._began, self._prepared = True, False
            self._where = self._where or contained(_caller)
            result = original(session, *args, **kwargs)
            self._prepared = prepares
            return result

        return method


def _caller() -> str | None:
    """File and line of who has torch's profiler begin, outside of torch and of the standard library."""
    theirs = str(Path(str(sys.modules["torch"].__file__)).parent)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, theirs)) and not file.endswith(_BETWEEN):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _restore(owner: Any, name: str, method: Any, original: Any) -> bool:
    if getattr(owner, name) is method:
        setattr(owner, name, original)
    return True
