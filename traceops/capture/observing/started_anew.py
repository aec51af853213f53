"""Tells a data loader's worker that is spawned, or that a fork server starts, what a forked one inherits.

Such a process starts anew. multiprocessing sends it its work as a pickle, and the pickle of a loader's worker brings
a line along that is run where it is read. All other pickles stay as they are. So does the worker where that line
fails: nothing is then known of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from traceops.capture.after_import import when_loaded
from traceops.capture.guard import Guard, contained

_KINDS = ("Process", "SpawnProcess", "ForkServerProcess")
_LINES = """
try:
    from traceops.capture.observing.loader_workers import told
    told({folder!r})
except Exception:
    pass
"""


class StartedAnew:
    """folder: where a worker that is started now is to write, None where it is to know nothing.

    is_loaders: whether a process of multiprocessing's is a loader's worker.
    """

    def __init__(self, folder: Callable[[], Path | None], is_loaders: Callable[[Any], bool]) -> None:
        self._folder = folder
        self._is_loaders = is_loaders
        self._undo: list[Callable[[], Any]] = []
        quiet = Guard(lambda operation, error: None)
        contained(when_loaded, {"multiprocessing.context": self._install}, quiet, self._undo)

    def close(self) -> None:
        """Have multiprocessing pickle its processes as ever."""
        while self._undo:
            contained(self._undo.pop())

    def _install(self, context: Any) -> None:
        reducers = context.reduction.ForkingPickler._extra_reducers
        for kind in (getattr(context, name, None) for name in _KINDS):
            if kind is not None and (kind not in reducers or _is_ours(reducers[kind])):
                reducers[kind] = self._reduced
                self._undo.append(partial(_remove, reducers, kind, self._reduced))

    def _reduced(self, process: Any) -> Any:
        found = contained(self._with_lines, process)
        return process.__reduce_ex__(4) if found is None else found

    def _with_lines(self, process: Any) -> Any:
        folder = self._folder()
        if folder is None or not self._is_loaders(process):
            return None
        make, arguments, state = process.__reduce_ex__(4)[:3]
        # The name comes last, when all that the worker needs is loaded.
        rest = {key: value for key, value in state.items() if key != "_name"}
        return make, arguments, {**rest, "_name": _Name(state["_name"], folder)}


class _Name:
    """The name of a process, which runs our lines where it is read, and is a plain string there."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        lines = _LINES.format(folder=self._folder)
        return eval, (f"exec({lines!r}) or {self._name!r}", {"__name__": __name__})


def _is_ours(reducer: Any) -> bool:
    """An observer that could not end leaves its own behind."""
    return isinstance(getattr(reducer, "__self__", None), StartedAnew)


def _remove(reducers: dict[Any, Any], kind: Any, ours: Any) -> None:
    if reducers.get(kind) == ours:
        del reducers[kind]
