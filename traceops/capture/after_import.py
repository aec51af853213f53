"""Does something to a module of the program's once it is loaded, and loads none itself.

Importing torch ourselves would come before the script sets the variables that torch reads when loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from traceops.capture.guard import Guard
from traceops.core.capture_failure import CaptureOperation


def when_loaded(changes: Mapping[str, Callable[[Any], None]], guard: Guard, undo: list[Callable[[], Any]]) -> None:
    """Call each change with the module of its name: now where that is loaded, else once it is. undo: gets what ends the
    looking, before it begins."""
    waiting = {}
    for name, change in changes.items():
        if name in sys.modules:
            change(sys.modules[name])
        else:
            waiting[name] = change
    if waiting:
        finder = _AfterImport(waiting, guard)
        undo.append(finder.remove)
        sys.meta_path.insert(0, finder)


class _AfterImport(MetaPathFinder):
    """Runs the change of a module once what it defines is there."""

    def __init__(self, changes: dict[str, Callable[[Any], None]], guard: Guard) -> None:
        self._changes, self._guard = changes, guard

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._changes:
            return None
        return self._guard.run(CaptureOperation.HOOK, self._spec, name, path, target)

    def remove(self) -> None:
        """Look no more; does nothing where that is so already."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _spec(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        change = self._changes.pop(name)
        if not self._changes:
            self.remove()
        if (spec := _of_the_others(self, name, path, target)) is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._guard.run(CaptureOperation.HOOK, change, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _of_the_others(own: MetaPathFinder, name: str, path: Any, target: Any) -> ModuleSpec | None:
    """What the import would have found without `own`: the program may have import hooks too."""
    for finder in list(sys.meta_path):
        find = None if finder is own else getattr(finder, "find_spec", None)  # Python too passes one without it over
        spec: ModuleSpec | None = None if find is None else find(name, path, target)
        if spec is not None:
            return spec
    return None
