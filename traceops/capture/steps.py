"""Where a training step ends in a script that knows nothing of traceops: hooks of optimizers, engines and modules."""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from traceops.capture.after_import import when_loaded
from traceops.capture.guard import Guard
from traceops.capture.schedule import StepEnds
from traceops.capture.step_detector import StepDetector
from traceops.capture.timing import captures_graph
from traceops.core.capture_failure import CaptureOperation

_SILENT = 100  # steps of other threads without one of the captured training: that has ended


class ThreadState(threading.local):
    """What a thread is in: optimizers and modules, methods of engines, a step that ends where the outermost returns."""

    depth = 0
    engines = 0
    due = False


class Trainer:
    """The thread whose training is captured where several train at once, each with optimizers of its own (Hogwild).

    It is the first one. Another takes over once that has ended, or no longer steps. An optimizer that has stepped in it
    counts wherever it steps: the threads of a parameter server take turns.

    taken: called where another takes over, whose optimizers make steps by themselves.
    """

    def __init__(self, taken: Callable[[], None]) -> None:
        self._taken = taken
        self._thread: int | None = None
        self._steps = 0  # of it, when another last stepped
        self._others = 0  # steps of others since then

    def is_other(self, known: bool, steps: int) -> bool:
        """Whether the optimizer that steps now is another training's. steps: that were counted so far."""
        thread = threading.get_ident()
        if known or thread == self._thread:
            return False
        if in_backward():  # on a GPU in a thread of autograd's, which is nobody's
            if self._thread is None:
                self._thread = thread if _is_there(thread) else threading.main_thread().ident
            return False
        self._others = self._others + 1 if steps == self._steps else 1
        self._steps = steps
        if self._thread is not None:  # which is what a thread that just starts has for its number
            if self._others <= _SILENT and _is_there(self._thread):
                return True
            self._taken()
        self._thread, self._others = thread, 0
        return False


def _is_there(thread: int) -> bool:
    return any(one.ident == thread for one in threading.enumerate())


_PASSES = "_engine_run_backward"  # in torch.autograd: what `backward` and `grad` call


class AfterBackward:
    """Puts off what comes due within a backward pass, or while a CUDA graph is captured.

    Some programs step optimizers in hooks of backward, so that gradients need no memory. Steps end there too.

    Autograd restores its thread's state behind each hook, the profiler's callbacks with it. A profiler that started or
    ended in a hook crashed the program. The function that all backward passes go through is watched from the first such
    step on, as programs may have `backward` under names of their own. What came due in that first pass is done when the
    next one begins.

    In a CUDA graph that is being captured a profiler's start or end would break the graph. What came due there is done
    before the next step ends (`take`).
    """

    def __init__(self) -> None:
        self._due: Callable[[], None] | None = None
        self._undo: Callable[[], None] | None = None

    @property
    def watching(self) -> bool:
        """Whether a step has come due within a backward pass."""
        return self._undo is not None

    def do(self, call: Callable[[], None]) -> None:
        """Now, or once the backward pass that runs in this thread has returned, and no graph is captured here."""
        backward = in_backward()
        if not backward and not captures_graph():
            call()
            return
        self._due = call
        if backward and self._undo is None:
            self._watch()

    def _watch(self) -> None:
        autograd = sys.modules["torch"].autograd
        whole = getattr(autograd, _PASSES)

        @functools.wraps(whole)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.take()
            result = whole(*args, **kwargs)
            self.take()
            return result

        def undo() -> None:
            if getattr(autograd, _PASSES) is watched:
                setattr(autograd, _PASSES, whole)

        self._undo = undo
        setattr(autograd, _PASSES, watched)

    def take(self) -> None:
        """Do what has come due, where it can be done."""
        # One pass may run within another.
        if self._due is not None and not in_backward() and not captures_graph():
            due, self._due = self._due, None
            due()

    def remove(self) -> None:
        """Watch nothing, and do nothing, from now on."""
        self._due = None
        if self._undo is not None:
            self._undo()
            self._undo = None


def in_backward() -> bool:
    """Whether autograd runs in this thread."""
    torch = sys.modules.get("torch")
    task = getattr(torch and torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


@dataclass(frozen=True)
class Engine:
    """A method that is called once a training step; optimizer steps inside it are parts of that. module, owner, method:
    where it is. label: what it is called in run.json."""

    module: str
    owner: str
    method: str
    label: str


ENGINES = (
    # ZeRO 1 and 2 call torch's optimizer once a parameter group, ZeRO-3 once a group of parameters.
    Engine("deepspeed.runtime.engine", "DeepSpeedEngine", "_take_model_step", "DeepSpeedEngine.step"),
    # One optimizer for the dense and one for the experts' parameters; none of them steps where gradients overflow.
    Engine("megatron.core.optimizer.optimizer", "ChainedOptimizer", "step", "ChainedOptimizer.step"),
    # Of torch's RPC: it steps a functional optimizer, or torch's own in another thread or process.
    Engine("torch.distributed.optim.optimizer", "DistributedOptimizer", "step", "DistributedOptimizer.step"),
)

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
        self._step, self._passed, self._skipped, self._guard = step, passed, skipped, guard
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
        if (wrap := getattr(module.Optimizer, "profile_hook_step", None)) is not None:
            before = vars(module.Optimizer)["profile_hook_step"]
            self._undo.append(lambda: setattr(module.Optimizer, "profile_hook_step", before))
            module.Optimizer.profile_hook_step = staticmethod(lambda step: self.around(wrap(step)))
        if (scaler := getattr(sys.modules.get(_SCALER), "GradScaler", None)) is not None:
            self._replace(scaler, "update", self.around_update)

    def _replace(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        before = getattr(owner, name)
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, around(before))

    def _install_engine(self, engine: Engine, module: Any) -> None:
        if (owner := getattr(module, engine.owner, None)) is not None and hasattr(owner, engine.method):
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
