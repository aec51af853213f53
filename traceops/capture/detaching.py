"""Ends CUPTI behind our last window, which otherwise slows host-bound steps by a fifth (docs/observe.md).

Kineto does so where TEARDOWN_CUPTI is 1 when it stops: a thread of its own waits for the next CUDA call of the process,
and ends CUPTI as that call returns. The variable has to be 1 until then, or Kineto attaches itself again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from traceops.capture.guard import text
from traceops.capture.manifest import DetachRecord

VARIABLE = "TEARDOWN_CUPTI"
OFF = "0"  # the same to Kineto as none; there from the start, as adding one moves what other threads may be reading
# What a capture has put there, beside it: a process that inherits both knows that its own script has set nothing.
MARKER = "TRACEOPS_TEARDOWN_CUPTI"
INJECTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "KINETO_USE_DAEMON")
_OLDEST_CUDA = (12, 6)  # CUDA graphs crashed on it before
_TRIED_CUDA = (13, 0)  # from which on it was tried on GPUs (benchmarks/two_gpus)
_TASKS = Path("/proc/self/task")
_LEAST_S, _MOST_S, _LOOK_S = 0.02, 1.0, 0.002


class Detaching:
    """Of one capture. done: whether CUPTI is gone, None before a window has ended on a GPU; `why_not` says what was in
    the way. asked: also with a CUDA on which nobody has tried it yet. The script's own setting of the variable stands,
    and then nothing is done here."""

    def __init__(self, *, asked: bool = False) -> None:
        self.done: bool | None = None
        self.why_not: str | None = None
        self._before: tuple[bool | None, str | None] | None = None  # a light window that is open began
        self._oldest = _OLDEST_CUDA if asked else _TRIED_CUDA
        if VARIABLE not in os.environ or _is_ours():
            _put(OFF)  # inherited, it may be 1: from a capture whose window was just ending

    @property
    def record(self) -> DetachRecord | None:
        """For the manifest."""
        return None if self.done is None else {"done": self.done, "why_not": self.why_not}

    @contextmanager
    def around_stop(self) -> Iterator[None]:
        """Torch's profiler stops inside the block for the last time."""
        import torch

        if not _has_cuda(torch):
            yield
            return
        if (in_the_way := self.in_the_way()) is not None:
            yield
            self.ended(in_the_way)
            return
        before = _threads()
        _put("1")
        try:
            yield
            own = _name(str(threading.get_native_id()))  # Kineto gives its thread no name, and so it has ours
            self.ended(_end_of_threads(torch, {one for one in _threads() - before if _name(one) == own}))
        finally:
            _put(OFF)

    def ended(self, why_not: str | None) -> None:
        """A window has ended and CUPTI is gone, or why not."""
        self._before = None
        self.done, self.why_not = why_not is None, why_not

    def attached(self) -> None:
        """A light window has begun: CUPTI is in the process until that ends it."""
        before = self.done, self.why_not
        self.ended("the light window did not end it")
        self._before = before

    def none_follow(self) -> None:
        """The light window that has begun ends with the capture: no step behind it is timed, so all is as before it."""
        if self._before is not None:
            self.done, self.why_not = self._before

    def in_the_way(self) -> str | None:
        """Why CUPTI must not be ended now; None where nothing speaks against it."""
        import torch

        if not _has_cuda(torch):
            return text("no_cuda")
        version = tuple(int(part) for part in str(torch.version.cuda).split(".")[:2])
        if version < _OLDEST_CUDA:
            return text("old_cuda", version=torch.version.cuda)
        if version < self._oldest:
            return text("untried_cuda", version=torch.version.cuda)
        if not _TASKS.is_dir():
            return text("no_proc")
        if (other := other_tool()) is not None:
            return other
        if not _is_ours() or os.environ[VARIABLE] != OFF:
            return text("variable_set", variable=VARIABLE)
        if torch.cuda.is_current_stream_capturing():
            return text("cuda_graph")
        return None


def _has_cuda(torch: Any) -> bool:
    return torch.version.hip is None and bool(torch.version.cuda) and bool(torch.cuda.is_initialized())


def other_tool() -> str | None:
    """What says that another tool may be at CUPTI in this process; None where nothing does."""
    name = next((name for name in INJECTED if os.environ.get(name)), None)
    return None if name is None else text("other_tool", variable=name)


def _put(value: str) -> None:
    os.environ[VARIABLE] = os.environ[MARKER] = value


def _is_ours() -> bool:
    """Whether the variable is as a capture has put it, in this process or in one that it was started by."""
    return VARIABLE in os.environ and os.environ.get(MARKER) == os.environ[VARIABLE]


def _threads() -> set[str]:
    return {path.name for path in _TASKS.iterdir()}


def _name(thread: str) -> str | None:
    try:
        return (_TASKS / thread / "comm").read_text(errors="replace")
    except OSError:
        return None  # it has ended


def _end_of_threads(torch: Any, started: set[str]) -> str | None:
    """Wait until Kineto's thread is gone. Each call to CUDA is one at whose return it can do its work. started: while
    the profiler stopped, so it is among them. What Python knows of is none of Kineto's."""
    began = time.monotonic()
    while True:
        torch.cuda.synchronize()
        passed, of_python = time.monotonic() - began, {str(thread.native_id) for thread in threading.enumerate()}
        if passed > _LEAST_S and not (started & _threads()) - of_python:
            return None
        if passed > _MOST_S:
            return text("thread_lasts")
        time.sleep(_LOOK_S)
