"""Which module runs, by its path in the outermost one, for every module that a script calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from traceops.memory.tracker import Tracker

# What wrappers put between a module and its name.
_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_forward_module", "module")


class ModuleNames:
    """While it is open, `tracker` knows the module; `seen` gets each outermost module before its first call."""

    def __init__(self, tracker: Tracker, seen: Callable[[nn.Module], None]) -> None:
        self._tracker, self._seen = tracker, seen
        self._names: dict[int, str] = {}
        self._roots: set[int] = set()
        self._depth = 0
        self._handles: list[Any] = []

    def __enter__(self) -> ModuleNames:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _enter(self, module: nn.Module, _: Any) -> None:
        name = self._names.get(id(module))
        if name is None:
            name = self._learn(module)
        if not self._depth and id(module) in self._roots:
            self._seen(module)
            self._roots.discard(id(module))
        self._depth += 1
        self._tracker.enter_module(name)

    def _leave(self, module: nn.Module, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)
        self._tracker.leave_module(self._names.get(id(module), ""))

    def _learn(self, root: nn.Module) -> str:
        self._roots.add(id(root))
        for path, module in root.named_modules():
            parts = [part for part in path.split(".") if part not in _WRAPPERS]
            self._names[id(module)] = ".".join(parts)
        return self._names[id(root)]
