"""Runs a script on fake GPUs, in a process of its own (`worker.py`).

It ends within the last step's optimizer, so that nothing of what a script does after its training happens."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from traceops.capture.run_as_main import run_as_main
from traceops.capture.step_detector import StepDetector
from traceops.core.files import write_whole
from traceops.memory.allocator import Category, expandable_segments, summarize
from traceops.memory.fake_cuda import Device, faked_gpus
from traceops.memory.fake_surroundings import NoNetworkError, Surroundings, faked_ranks, followed_threads
from traceops.memory.fake_tensors import GpuMode, hidden_from_cpp
from traceops.memory.fakes import faked
from traceops.memory.model import ScriptAnswer, ScriptProblem, ScriptRequest, Trouble
from traceops.memory.redirect import Redirect, faked_autocast
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
        if id(module) not in self._names:
            self._roots.add(id(module))
            for path, part in module.named_modules():
                self._names[id(part)] = ".".join(word for word in path.split(".") if word not in _WRAPPERS)
        if not self._depth and id(module) in self._roots:
            self._seen(module)
            self._roots.discard(id(module))
        self._depth += 1
        self._tracker.enter_module(self._names[id(module)])

    def _leave(self, module: nn.Module, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)
        self._tracker.leave_module(self._names.get(id(module), ""))


_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
_LIBRARIES = tuple(
    str(Path(path).resolve()) for path in (*map(sysconfig.get_path, _INSTALLED), str(Path(torch.__file__).parent))
)
_OURS = str(Path(__file__).resolve().parents[1])


class Rehearsal:
    """One rank of a script, until enough of its training steps are over."""

    def __init__(self, request: ScriptRequest) -> None:
        self._request = request
        self._detector = StepDetector()
        self._tracker = Tracker(request.workspaces, "cuda", Category.BEFORE_STEPS)
        self._mode = GpuMode()
        self._surroundings = Surroundings()
        self._steps = 0
        self._parameters: dict[int, int] = {}
        self._on_gpu: bool | None = None  # whether a model has anything there; none was called yet
        self._failed: list[BaseException] = []  # what ended a thread of the script

    def run(self) -> NoReturn:
        """Write the answer and leave the process."""
        request, tracker = self._request, self._tracker
        local = request.rank % request.gpus
        device = Device(min(request.gpus, request.world_size), local, request.memory, tracker)
        names = ModuleNames(tracker, self._seen)
        with (
            faked_gpus(device), hidden_from_cpp(), faked_autocast(), faked(tracker, self._mode, self._stepped),
            faked_ranks(request), self._surroundings, names, followed_threads(self._modes, self._failed.append),
            self._modes(),
        ):  # fmt: skip
            try:
                run_as_main(request.words)
            except SystemExit as leaving:
                self._ended("left" if leaving.code else "no_step", leaving)
            except KeyboardInterrupt:
                os._exit(130)
            except BaseException as error:  # of the script, or of torch on fake tensors
                self._ended(_trouble(error), error)
            self._ended("no_step", None)

    @contextmanager
    def _modes(self) -> Iterator[None]:
        """What a thread needs to work on fake tensors."""
        with self._mode, self._tracker, Redirect(self._tracker, self._mode):
            yield

    def _seen(self, root: nn.Module) -> None:
        """The outermost module is called for the first time: its parameters are there, and the first step begins."""
        whole = [*root.parameters(), *root.buffers()]
        self._on_gpu = bool(self._on_gpu) or any(one.device.type == "cuda" for one in whole)
        self._tracker.label(whole, Category.PARAMETERS)
        self._parameters.update({id(one): one.numel() for one in root.parameters()})
        if not self._tracker.step:
            self._tracker.begin_steps()

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._detector.stepped(optimizer):
            return
        self._steps += 1
        if self._steps >= self._request.steps:
            self._answered()
        self._tracker.end_step()

    def _ended(self, trouble: Trouble, error: BaseException | None) -> NoReturn:
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error)
        if self._steps and (error is None or isinstance(error, SystemExit)):
            self._surroundings.note("ended_early")
            self._answered()
        if error is None and self._failed:
            error = self._failed[0]
            trouble = _trouble(error)
        if trouble == "no_step" and not self._tracker.events:
            trouble = "no_gpu"
        if trouble == "raised" and self._on_gpu is False:  # its losses were taken for ones on a GPU
            trouble = "no_gpu"
        place, source = _place(error)
        said = ""
        if error is not None:
            first = (str(error).strip().splitlines() or [""])[0]
            said = f"{type(error).__name__}: {first}" if first else type(error).__name__
        self._answer(ScriptProblem(trouble, place, source, said))

    def _answered(self) -> NoReturn:
        """Steps were made. Of a training on the CPU nobody may say that it fits a GPU."""
        self._answer(None if self._tracker.events else ScriptProblem("no_gpu"))

    def _answer(self, problem: ScriptProblem | None) -> NoReturn:
        found = ScriptAnswer(problem=problem, steps=self._steps)
        if problem is None:
            found.rank = summarize(self._request.rank, self._tracker.events, expandable_segments())
            found.parameters = sum(self._parameters.values())
            found.values_read = self._tracker.values_read
            found.notes = self._surroundings.notes
        write_whole(Path(self._request.answer), msgspec.json.encode(found))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # nothing of what the script would do at its end


def _trouble(error: BaseException) -> Trouble:
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, DynamicOutputShapeException):
            return "shape"
        if isinstance(chain, UnsupportedOperatorException):
            return "operator"
        if isinstance(chain, NoNetworkError):
            return "network"
        if isinstance(chain, DataDependentOutputException) or "data_ptr" in str(chain):
            return "data"
        chain = chain.__cause__ or chain.__context__
    return "not_loaded" if isinstance(error, (SyntaxError, ImportError)) else "raised"


def _place(error: BaseException | None) -> tuple[str, str]:
    """FILE:LINE of the innermost frame that is the user's own, and that line."""
    found = ("", "")
    for frame in traceback.extract_tb(error.__traceback__) if error is not None else ():
        name = str(Path(frame.filename).resolve()) if not frame.filename.startswith("<") else ""
        if name and not name.startswith((*_LIBRARIES, _OURS)) and frame.lineno:
            line = linecache.getline(frame.filename, frame.lineno).strip()
            found = (f"{frame.filename}:{frame.lineno}", line)
    return found
