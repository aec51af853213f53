"""Tells where a training step ends in a script that knows nothing of traceops."""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from traceops.capture.after_backward import AfterBackward, in_backward
from traceops.capture.after_import import when_loaded
from traceops.capture.engines import ENGINES, Engine
from traceops.capture.guard import Guard
from traceops.capture.step_detector import StepDetector
from traceops.capture.step_ends import StepEnds
from traceops.capture.training_thread import ThreadState, Trainer
from traceops.core.capture_failure import CaptureOperation

_OPTIMIZERS = "torch.optim.optimizer"
_MODULES = "torch.nn.modules.module"
_SCALER = "torch.amp.grad_scaler"  # torch loads it before its optimizers


class _Boundary:
    """Calls `step` after the outermost optimizer has returned, so that its range ends inside the step."""

    def __init__(
        self,
        step: Callable[[], None],
        guard: Guard,
        skipped: Callable[[], None] = lambda: None,
        passed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._step = step
        self._passed = passed
        self._skipped = skipped
        self._guard = guard
        self._detector = StepDetector()
        self._undo: list[Callable[[], Any]] = []
        self.off = False
        self._in = ThreadState()
        self._trainer = Trainer(self._learn_anew)
        self._any = False  # optimizer has stepped since the gradient scaler's last update
        self._ends: Counter[str] = Counter()
        self._within: Counter[str] = Counter()
        self._beside: Counter[str] = Counter()
        self._alone = self._detector.alone  # how often that has stepped since, and its label
        self._again = 0
        self._label = ""
        self._thread = threading.get_ident()
        self._after_backward = AfterBackward()
        self._undo.append(self._after_backward.remove)

    def _learn_anew(self) -> None:
        self._detector = StepDetector()

    def ends(self) -> StepEnds:
        """What was taken for the end of a step so far."""
        again = Counter({self._label: self._again} if self._again else {})
        return StepEnds(dict(self._ends + again), dict(self._within), dict(self._beside))

    def _is_end(self, what: object, label: str) -> bool:
        if self._again:
            self._ends[self._label] += self._again
            self._again = 0
        ends = self._detector.stepped(what)
        (self._ends if ends else self._within)[label] += 1
        self._alone, self._label = self._detector.alone, label
        return ends

    def stepped(self, optimizer: Any) -> None:
        """An optimizer's step is complete."""
        if not self.off:
            self._guard.run(CaptureOperation.HOOK, self._stepped, optimizer)

    def _stepped(self, optimizer: Any) -> None:
        """Decide what it means; within a wrapper's (ZeroRedundancyOptimizer) or an engine's it does not count."""
        label, nested = f"{type(optimizer).__name__}.step", self._in
        if nested.engines or nested.depth > 1:
            self._any = True
            return
        if self._trainer.is_other(self._detector.knows(optimizer), self._again + self._ends.total()):
            self._beside[label] += 1
            return
        self._any = True
        if not self._is_end(optimizer, label):
            return
        if nested.depth == 0:  # compiled: nothing of ours is around the call
            self._end()
        else:
            nested.due = True

    def _updated(self) -> None:
        """A gradient scaler ends the iteration: one whose optimizers it skipped is a step all the same."""
        skipped, self._any = not self._any, False
        if skipped:
            self._skipped()
            self._ends["GradScaler.update"] += 1
            self._end()

    def _called(self, what: object, label: str) -> None:
        """A method of a training engine, or a module, has returned to the script."""
        if self._is_end(what, label):
            self._end()

    def _end(self) -> None:
        """A step ended: tell so, first of one that could not be told of then."""
        self._after_backward.take()
        self._after_backward.do(self._step)

    def around_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """`update` of the gradient scalers, watched for iterations without a step of an optimizer."""

        @functools.wraps(update)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = update(*args, **kwargs)
            if not self.off:
                self._guard.run(CaptureOperation.HOOK, self._updated)
            return result

        return watched

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step` of an optimizer class, watched for where the outermost call ends."""
        torch = sys.modules["torch"]

        @functools.wraps(step)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.off or torch.compiler.is_compiling():
                return step(*args, **kwargs)
            nested = self._in
            nested.depth += 1
            try:
                result = step(*args, **kwargs)
            finally:
                nested.depth -= 1
                if nested.due and nested.depth == 0:
                    # Also where a hook of the program's behind ours has raised.
                    nested.due = False
                    # The short way may pass within backward too, until a step that takes the long one is seen there.
                    if self._after_backward.watching or not self._passed():
                        self._end()
            return result

        return watched

    def around_engine(self, label: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method` of a training engine, which ends a step where the outermost call of it ends."""

        @functools.wraps(method)
        def watched(engine: Any, *args: Any, **kwargs: Any) -> Any:
            if self.off:
                return method(engine, *args, **kwargs)
            nested = self._in
            nested.engines += 1
            try:
                result = method(engine, *args, **kwargs)
            finally:
                nested.engines -= 1
            if not nested.engines and not self.off:
                self._guard.run(CaptureOperation.HOOK, self._called, engine, label)
            return result

        return watched

    def around_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call of modules, which ends a step where the outermost one of the main thread ends."""

        @functools.wraps(call)
        def watched(module: Any, *args: Any, **kwargs: Any) -> Any:
            compiler = sys.modules.get("torch.compiler")
            compiling = compiler is not None and compiler.is_compiling()
            # In backward it is activation checkpointing that calls them again.
            if self.off or compiling or threading.get_ident() != self._thread or in_backward():
                return call(module, *args, **kwargs)
            nested = self._in
            nested.depth += 1
            try:
                result = call(module, *args, **kwargs)
            finally:
                nested.depth -= 1
            if not nested.depth and not self.off:
                self._guard.run(CaptureOperation.HOOK, self._called, module, f"{type(module).__name__}.forward")
            return result

        return watched

    def install(self, module: Any) -> None:
        """Watch the optimizers of torch's module of that name."""
        from torch._compile import _disable_dynamo

        uncompiled = _disable_dynamo(self.stepped)
        torch = sys.modules["torch"]  # half loaded; an import in the hook would take longer than all else there

        def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling():
                uncompiled(optimizer)
            elif optimizer is self._alone() and self._in.depth == 1 and not self._in.engines:
                # What `stepped` would do. Nothing here can fail.
                self._again += 1
                self._any = self._in.due = True
            else:
                self.stepped(optimizer)

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
            self._replace(scaler, "update", self.around_update)

    def _replace(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        before = getattr(owner, name)
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, around(before))

    def _install_engine(self, engine: Engine, module: Any) -> None:
        owner = getattr(module, engine.owner, None)
        if owner is not None and hasattr(owner, engine.method):
            self._replace(owner, engine.method, partial(self.around_engine, engine.label))

    def _install_forward(self, module: Any) -> None:
        self._replace(module.Module, "__call__", self.around_call)

    def remove(self) -> None:
        """Watch nothing any more; an optimizer whose class is wrapped already costs one look at a flag a step."""
        self.off = True
        while self._undo:
            self._undo.pop()()

    def when_imported(self, step_on: str) -> None:
        """Be installed once what ends the steps is there."""
        if step_on == "forward":
            changes: dict[str, Callable[[Any], None]] = {_MODULES: self._install_forward}
        else:
            engines = {engine.module: partial(self._install_engine, engine) for engine in ENGINES}
            changes = {_OPTIMIZERS: self.install, **engines}
        when_loaded(changes, self._guard, self._undo)


def on_training_step(
    step: Callable[[], None],
    guard: Guard,
    skipped: Callable[[], None] = lambda: None,
    step_on: str = "optimizer",
    passed: Callable[[], bool] = lambda: False,
) -> _Boundary:
    """Call `step` whenever a training step ends, from the moment that torch.optim is imported.

    guard: for what runs here before `step`. skipped: called before it where a gradient scaler left the optimizer out.
    step_on: see `CaptureSettings`. passed: asked first where an optimizer ends a step; True: `step` need not be called.
    The result's `remove` ends it.
    """
    boundary = _Boundary(step, guard, skipped, passed)
    boundary.when_imported(step_on)
    return boundary
