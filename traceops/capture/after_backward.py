"""Puts off until a backward pass has returned, or a CUDA graph is captured, what came due within it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from traceops.capture.timing import captures_graph

_PASSES = "_engine_run_backward"  # in torch.autograd: what `backward` and `grad` call


class AfterBackward:
    """Some programs step optimizers in hooks of backward, so that gradients need no memory. Steps end there too.

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
