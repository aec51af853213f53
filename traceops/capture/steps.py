"""Tells where a training step ends from the optimizers of a script that knows nothing of traceops."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from traceops.capture.guard import Guard
from traceops.core.capture_failure import Operation

_MODULE = "torch.optim.optimizer"
_SCALER = "torch.amp.grad_scaler"  # torch loads it before its optimizers


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

    def __init__(
        self, step: Callable[[], None], guard: Guard, skipped: Callable[[], None] = lambda: None
    ) -> None:
        self._step = step
        self._skipped = skipped
        self._guard = guard
        self._detector = StepDetector()
        self._undo: list[Callable[[], Any]] = []
        self.off = False
        self._depth = 0
        self._due = False
        self._any = False  # optimizer has stepped since the gradient scaler's last update

    def stepped(self, optimizer: Any) -> None:
        """An optimizer's step is complete."""
        if not self.off:
            self._guard.run(Operation.HOOK, self._stepped, optimizer)

    def _stepped(self, optimizer: Any) -> None:
        """Decide what it means; within a wrapper's (ZeroRedundancyOptimizer) it does not count."""
        self._any = True
        if self._depth > 1 or not self._detector.stepped(id(optimizer)):
            return
        if self._depth == 0:  # compiled: nothing of ours is around the call
            self._step()
        else:
            self._due = True

    def _updated(self) -> None:
        """A gradient scaler ends the iteration: one whose optimizers it skipped is a step all the same."""
        skipped, self._any = not self._any, False
        if skipped:
            self._skipped()
            self._step()

    def around_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """`update` of the gradient scalers, watched for iterations without a step of an optimizer."""

        @functools.wraps(update)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = update(*args, **kwargs)
            if not self.off:
                self._guard.run(Operation.HOOK, self._updated)
            return result

        return watched

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step` of an optimizer class, watched for where the outermost call ends."""

        @functools.wraps(step)
        def watched(*args: Any, **kwargs: Any) -> Any:
            from torch.compiler import is_compiling

            if self.off or is_compiling():
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

    def install(self, module: Any) -> None:
        """Watch the optimizers of torch's module of that name."""
        from torch._compile import _disable_dynamo

        uncompiled = _disable_dynamo(self.stepped)

        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            from torch.compiler import is_compiling

            (uncompiled if is_compiling() else self.stepped)(optimizer)

        handles: list[Any] = []
        self._undo.append(lambda: handles and handles.pop().remove())
        handles[:] = [module.register_optimizer_step_post_hook(hook)]
        # The public hook runs inside the optimizer's own profiler range. A step that ended there would cut the
        # range in two, so the end is put off until the call has returned, where this torch allows it.
        wrap = getattr(module.Optimizer, "profile_hook_step", None)
        if wrap is not None:
            before = vars(module.Optimizer)["profile_hook_step"]
            self._undo.append(lambda: setattr(module.Optimizer, "profile_hook_step", before))
            module.Optimizer.profile_hook_step = staticmethod(lambda step: self.around(wrap(step)))
        scaler = getattr(sys.modules.get(_SCALER), "GradScaler", None)
        if scaler is not None:
            update = scaler.update
            self._undo.append(lambda: setattr(scaler, "update", update))
            scaler.update = self.around_update(update)

    def remove(self) -> None:
        """Watch nothing any more; an optimizer whose class is wrapped already costs one look at a flag a step."""
        self.off = True
        while self._undo:
            self._undo.pop()()

    def when_imported(self) -> None:
        """Be installed once torch's optimizers are there."""
        if _MODULE in sys.modules:
            self.install(sys.modules[_MODULE])
            return
        finder = _AfterImport(self.install, self._guard)
        sys.meta_path.insert(0, finder)
        self._undo.append(finder.remove)


class _AfterImport(MetaPathFinder):
    """Runs `then` once torch's optimizers are defined.

    Importing torch ourselves would come before the script sets the variables that torch reads when loaded.
    """

    def __init__(self, then: Callable[[Any], None], guard: Guard) -> None:
        self._then = then
        self._guard = guard

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        return self._guard.run(Operation.HOOK, self._spec, name, path, target)

    def remove(self) -> None:
        """Look no more; does nothing where that is so already."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _spec(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        self.remove()
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            self._guard.run(Operation.HOOK, self._then, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def on_training_step(
    step: Callable[[], None], guard: Guard, skipped: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Call `step` whenever a training step ends, from the moment that torch.optim is imported.

    guard: for what runs here before `step`. skipped: called before it where a gradient scaler left the optimizer out.
    Returns what ends it.
    """
    boundary = _Boundary(step, guard, skipped)
    boundary.when_imported()
    return boundary.remove
