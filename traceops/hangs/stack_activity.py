"""Classifies a rank's activity from its main thread's stack."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from traceops.core.text import LIBRARIES, is_compiled_code
from traceops.hangs.evidence import Frame, HangEvidence, ThreadStack

ActivityKind = Literal[
    "collective", "init", "input", "gpu_sync", "checkpoint", "debugger", "subprocess", "network", "compile",
    "profiler", "import", "backward", "sleep", "lock", "library", "user", "unknown",
]  # fmt: skip


@dataclass(frozen=True)
class CodeLine:
    """A line of code as people name it: function without its class, file without its folder."""

    function: str
    file: str
    line: int | None


@dataclass(frozen=True)
class StackActivity:
    """What a thread does. kind: 'library' and 'user' are code that is not known to wait for anything. function: what it
    does that in, where the kind has one. at: the line it is in, of kinds that name a line. called_from: the innermost
    line of the user's own code, or of a third-party package if there is none; None if that is `at`. where: its
    frame."""

    kind: ActivityKind
    function: str | None = None
    at: CodeLine | None = None
    called_from: CodeLine | None = None
    where: Frame | None = field(default=None, compare=False)


# The first kind that a frame above the user's own code has is the answer: a barrier inside
# init_process_group is initialisation, a lock inside the data loader is input.
_ORDER: tuple[ActivityKind, ...] = (
    "debugger", "init", "collective", "input", "gpu_sync", "checkpoint", "compile", "profiler", "subprocess",
    "network", "backward", "sleep", "import", "lock",
)  # fmt: skip
_WITHOUT_FUNCTION: tuple[ActivityKind, ...] = ("debugger", "input", "backward", "sleep", "import")


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: str
    functions: tuple[str, ...]  # all where there are none
    kind: ActivityKind


class _Native(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    has: str
    kind: ActivityKind


class _Stacks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    python: tuple[_Place, ...]
    native: tuple[_Native, ...]


_KNOWN = msgspec.json.decode(Path(__file__).with_name("stacks.json").read_bytes(), type=_Stacks)
_DATA_PARALLEL = ("torch/nn/parallel/data_parallel.py", "torch/nn/parallel/parallel_apply.py")
# Threads start here: no sign of waiting.
_THREAD_START = frozenset({"_bootstrap", "_bootstrap_inner", "run"})
_INSTALLED = ("/site-packages/", "/dist-packages/", "/traceops/capture/", "/traceops/launch/")
_STANDARD = re.compile(r"/lib(?:64)?/python3(?:\.\d{1,3})?t?/(?!site-packages/|dist-packages/)")
# Where Python lies in a folder of any name: modules of it in which threads wait.
_STANDARD_FILES = ("threading.py", "queue.py", "selectors.py", "subprocess.py", "socket.py", "ssl.py", "runpy.py")
# A torch built from source lies in a folder of any name.
_TORCH = re.compile(
    r"(?:^|/)torch/(?:_[a-z_]{1,40}/|(?:accelerator|amp|ao|autograd|cuda|distributed|fx|jit|multiprocessing|nn|optim|"
    r"profiler|utils|xpu)/|(?:_tensor|_tensor_str|functional|hub|serialization|storage)\.py)"
)
# py-spy cuts paths to what is below sys.path: the package's name is all that is left.
_PACKAGES = LIBRARIES | {"urllib3", "requests", "grpc", "filelock", "nvidia", "debugpy"}


def stack_activity(stack: ThreadStack) -> StackActivity:
    """What the thread does, as far as the functions on its stack tell. A C function that is not named on the stack
    (time.sleep or .item() in a stack of faulthandler) counts as its caller."""
    frames = stack.frames
    own = next((place for place, frame in enumerate(frames) if is_own(frame)), len(frames))
    where = frames[own] if own < len(frames) else _package_frame(frames)
    above = frames[:own]
    kinds = [_kind(frame) for frame in above]
    caller = None if where is None else _code_line(where)
    for kind in _ORDER:
        if matching := [frame for frame, its in zip(above, kinds, strict=True) if its == kind]:
            function = None if kind in _WITHOUT_FUNCTION else _short(_telling(matching))
            return StackActivity(kind, function, called_from=caller, where=where)
    if not frames:
        return StackActivity("unknown")
    if "input" in map(_kind, frames[own:]):
        return StackActivity("input", at=caller, where=where)
    if (named := next((frame for frame in above if frame.file), None)) is not None:
        called_from = None if named is where else caller
        return StackActivity("library", at=_code_line(named), called_from=called_from, where=where)
    if where is None:
        return StackActivity("unknown", at=_code_line(frames[0]))
    return StackActivity("user", at=caller, where=where)


def is_own(frame: Frame) -> bool:
    """Whether this is the user's code: not torch, the standard library, an installed package or compiled code."""
    file = frame.file.replace("\\", "/")
    if not file.endswith((".py", ".pyx", ".ipynb")) and not file.startswith(("<stdin>", "<ipython")):
        return False
    if any(part in file for part in _INSTALLED) or _STANDARD.search(file) or _TORCH.search(file):
        return False
    if is_compiled_code(file) or file.rpartition("/")[2] in _STANDARD_FILES:
        return False
    if file.startswith("/"):
        return True
    top = file.partition("/")[0].removesuffix(".py")
    return top not in _PACKAGES and top not in sys.stdlib_module_names


def _telling(frames: Sequence[Frame]) -> Frame:
    """The outermost Python function is what the user called; of compiled code the innermost is what waits."""
    called = [frame for frame in frames if frame.file.endswith(".py") or frame.file.startswith("<")]
    return called[-1] if called else frames[0]


def _package_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of an installed package other than torch."""
    installed = (frame for frame in frames if any(part in frame.file for part in _INSTALLED[:2]))
    own = (frame for frame in installed if frame.file.endswith(".py") and not _TORCH.search(frame.file))
    return next(own, None)


def _kind(frame: Frame) -> ActivityKind | None:
    file, function = frame.file.replace("\\", "/"), _short(frame)
    if file.startswith("<frozen importlib"):
        return "import"
    if not file.endswith(".py"):
        return next((one.kind for one in _KNOWN.native if one.has in frame.function), None)
    if function in _THREAD_START and file.endswith("threading.py"):
        return None
    for place in _KNOWN.python:
        if not place.functions or function in place.functions:
            wanted, path = f"/{place.file}", f"/{file}"
            if wanted in path if wanted.endswith("/") else path.endswith(wanted):
                return place.kind
    return None


def _short(frame: Frame) -> str:
    """The function without its class: py-spy writes Condition.wait where others write wait."""
    if not frame.file.endswith(".py"):
        return frame.function.partition("(")[0]
    return frame.function.rpartition(".")[2] or frame.function


def _code_line(frame: Frame) -> CodeLine:
    file = PurePosixPath(frame.file.replace("\\", "/")).name
    return CodeLine(_short(frame), file, frame.line)


def in_data_parallel(evidence: HangEvidence) -> list[int]:
    """Ranks with a frame of nn.DataParallel on a stack or in a traceback; 0 where no line tells whose it is."""
    frames = [(rank, f) for rank, told in evidence.stacks.items() for thread in told.threads for f in thread.frames]
    frames += [(event.rank or 0, frame) for event in evidence.log for frame in event.frames]
    frames += [(0, frame) for end in evidence.ends for frame in end.frames]
    return sorted({rank for rank, frame in frames if frame.file.replace("\\", "/").endswith(_DATA_PARALLEL)})


Phase = Literal["forward", "backward", "the optimizer"]


def phase_of(frames: Sequence[Frame]) -> Phase | None:
    """The part that the frames, innermost first, are in; None where none of torch's tells."""
    for frame in frames:
        file = frame.file.replace("\\", "/")
        if "torch/optim/" in file or "torch/distributed/optim/" in file:
            return "the optimizer"
        if frame.function == "_engine_run_backward" or (
            file.endswith("torch/_tensor.py") and frame.function == "backward"
        ):
            return "backward"
    inside = any("torch/nn/modules/" in frame.file.replace("\\", "/") for frame in frames)
    return "forward" if inside else None
