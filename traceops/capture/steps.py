"""Tells where a training step ends from the optimizers of a script that knows nothing of traceops."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_MODULE = "torch.optim.optimizer"


class StepDetector:
    """Decides which optimizer steps end a training step; several optimizers make one step together.

    Until some optimizer steps a second time, the first one seen stands for the step. Then the last one of
    that first round does (the generator's, after the discriminator's). If another one steps twice without
    it (a new training phase, or a gradient scaler that skips it), that one takes over.
    """

    def __init__(self) -> None:
        self._round: list[int] = []
        self._learned = False
        self._marker: int | None = None

    def stepped(self, optimizer: int) -> bool:
        """Whether the step of the optimizer with this identity ends a training step."""
        if not self._learned:
            if optimizer not in self._round:
                self._round.append(optimizer)
                return len(self._round) == 1
            self._marker = self._round[-1]
            self._learned = True
            self._round = []
        if optimizer == self._marker:
            self._round = []
            return True
        if optimizer in self._round:
            self._marker = optimizer
            self._round = []
            return True
        self._round.append(optimizer)
        return False


class _Boundary:
    """Calls `step` after the outermost optimizer has returned, so that its range ends inside the step."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._detector = StepDetector()
        self._depth = 0
        self._due = False

    def stepped(self, optimizer: Any) -> None:
        """An optimizer's step is complete; within a wrapper's (ZeroRedundancyOptimizer) it does not count."""
        if self._depth > 1 or not self._detector.stepped(id(optimizer)):
            return
        if self._depth == 0:  # compiled: nothing of ours is around the call
            self._step()
        else:
            self._due = True

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step` of an optimizer class, watched for where the outermost call ends."""

        @functools.wraps(step)
        def watched(*args: Any, **kwargs: Any) -> Any:
            from torch.compiler import is_compiling

            if is_compiling():
                return step(*args, **kwargs)
            self._depth += 1
            try:
                result = step(*args, **kwargs)
            finally:
                self._depth -= 1
            if self._due and self._depth == 0:
                self._due = False
                self._step()
            return result

        return watched


class _AfterImport(MetaPathFinder):
    """Runs `then` once torch's optimizers are defined.

    Importing torch ourselves would come before the script sets the variables that torch reads when loaded.
    """

    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def on_training_step(step: Callable[[], None]) -> None:
    """Call `step` whenever a training step ends, from the moment that torch.optim is imported."""
    boundary = _Boundary(step)
    if _MODULE in sys.modules:
        _install(sys.modules[_MODULE], boundary)
    else:
        sys.meta_path.insert(0, _AfterImport(lambda module: _install(module, boundary)))


def _install(module: Any, boundary: _Boundary) -> None:
    from torch._compile import _disable_dynamo

    uncompiled = _disable_dynamo(boundary.stepped)

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        from torch.compiler import is_compiling

        (uncompiled if is_compiling() else boundary.stepped)(optimizer)

    module.register_optimizer_step_post_hook(hook)
    # The public hook runs inside the optimizer's own profiler range. A step that ended there would cut the
    # range in two, so the end is put off until the call has returned, where this torch allows it.
    wrap = getattr(module.Optimizer, "profile_hook_step", None)
    if wrap is not None:
        module.Optimizer.profile_hook_step = staticmethod(lambda step: boundary.around(wrap(step)))
