"""Where the host of one rank spends its time, from samples of its stacks: by function and line of the program's own."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import PurePosixPath

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.code_places import is_compiled_code
from traceops.core.text import pattern
from traceops.traces.observed import Observed, SampledFrame

# What the host is about, as a sampled stack shows it: by the names on it, and where a model runs without gradients.


_ANY = pattern("")
# What a frame's file and function say that its program does; the outermost that matches counts.
_DOES: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = (
    ("recompilation", pattern(r"/torch/(_dynamo/(convert_frame|symbolic_convert)|_inductor/compile_fx)"), _ANY),
    ("checkpoint", pattern(r"/torch/serialization\.py$"), pattern(r"(^|[._])(save|load)$")),
    ("checkpoint", pattern(r"/torch/distributed/checkpoint/|/safetensors/"), pattern(r"save|write")),
    (
        "checkpoint",
        _ANY,
        pattern(r"(?i)(^|[._])_?(save_?(state|checkpoint|model|pretrained)|(write|dump)_?checkpoint)"),
    ),
    (
        "evaluation",
        pattern(r"^(?!.*/torch/(?!.*/(?:site|dist)-packages/))"),  # torch may be a folder of its virtual environment
        # A function that also trains, logs or saves (_maybe_log_save_evaluate) says nothing: those that it calls do.
        pattern(
            r"(?i)(?:^|\.)(?!(?:[^.]*_)?(?:train|fit|log|save|checkpoint)(?:_|\.|$))(?:[^.]*_)?"
            r"(eval|evaluate|evaluation|validate|validation|val_step|val_loop|test_loop)(_|\.|$)"
            r"|(?:^|\.)_*(?:run_|do_)?(?:test|val|valid)(?:_(?:model|epoch|one_epoch|loss))?$"
            r"|(?:^|\.)_?(?:eval|evaluation|val|validation|test)(?:epoch)?loop(?:\.|$)"  # classes: _EvaluationLoop
        ),
    ),
    ("allocator", pattern(r"/torch/cuda/memory\.py$"), pattern(r"empty_cache$")),
    ("logging", pattern(r"/(wandb|tensorboardX?|mlflow|comet_ml|neptune)/|/logging/__init__"), _ANY),
    ("input", pattern(r"/torch/utils/data/"), _ANY),
)  # fmt: skip
# no_grad, inference_mode and enable_grad as decorators:
_DECORATED = pattern(r"/torch/utils/_contextlib\.py$")
_MODULE, _CALL = pattern(r"/torch/nn/modules/module\.py$"), "_call_impl"
_BACKWARD = "_engine_run_backward"
_OPTIMIZER = pattern(r"/torch/optim/")
_STEP = pattern(r"(^|\.)step$")  # of an optimizer: it has no gradients of its own, the closure that it calls has


class Purpose(Struct, frozen=True):
    """What the host is about, as one of the causes of TO-W001, and the number of the frame that says so."""

    what: str | None = None
    frame: int | None = None


def stack_purposes(observed: Observed) -> list[Purpose]:
    """Of each stack. A function in which backward runs anywhere has gradients, whatever decorates it."""
    frames, stacks = observed.frames, observed.stacks
    trained = {
        _key(frames[stack[at]])
        for stack in stacks
        if any(frames[number].function.endswith(_BACKWARD) for number in stack)
        for at in _decorated(frames, stack)
    }
    return [_by_name(frames, stack) or _without_gradients(frames, stack, trained) for stack in stacks]


def with_waits(observed: Observed, purposes: Sequence[Purpose], waiting: Sequence[bool]) -> list[Purpose]:
    """The purposes, in which a wait for the device is of the model that was called without gradients before it.

    Such a function reads what its model computed (`loss.item()`), and most of its time is in that. waiting: by stack.
    """
    frames = observed.frames
    called = {_key(frames[one.frame]) for one in purposes if one.what == "inference" and one.frame is not None}

    def of(number: int) -> Purpose:
        stack = observed.stacks[number]
        places = [*_blocks(frames, stack), *_decorated(frames, stack)] if waiting[number] else []
        at = next((at for at in places if _key(frames[stack[at]]) in called), None)
        return purposes[number] if at is None else Purpose("inference", stack[at])

    return [one if one.what is not None else of(number) for number, one in enumerate(purposes)]


def trains(observed: Observed) -> bool:
    """Whether the host was seen in a backward pass."""
    seen = {number for stack in set(observed.samples[:, 1].tolist()) for number in observed.stacks[stack]}
    return any(observed.frames[number].function.endswith(_BACKWARD) for number in seen)


def _by_name(frames: Sequence[SampledFrame], stack: Sequence[int]) -> Purpose | None:
    for number in stack:
        cause = does(frames[number].file, frames[number].function)
        if cause is not None:
            return Purpose(cause, number)
    return None


@lru_cache(maxsize=1 << 14)  # stacks share most of their frames
def does(file: str, function: str) -> str | None:
    """What the names of a frame say that its program does, as one of the causes of TO-W001."""
    return next((cause for cause, of, named in _DOES if of.search(file) and named.search(function)), None)


def _without_gradients(frames: Sequence[SampledFrame], stack: Sequence[int], trained: set[tuple[str, str]]) -> Purpose:
    """Whether a function that is decorated so, and trains nowhere, has a module called, or a line in such a block."""
    for at in _blocks(frames, stack):
        calls = any(_is_call(frames[number]) for number in stack[at + 1 :])
        if calls and not any(_optimizes(frames[number]) for number in stack[: at + 1]):
            return Purpose("inference", stack[at])
    for at in _decorated(frames, stack):
        calls = any(_is_call(frames[number]) for number in stack[at + 1 :])
        optimizes = any(_optimizes(frames[number]) for number in stack[: at + 1])
        if calls and not optimizes and _key(frames[stack[at]]) not in trained:
            return Purpose("inference", stack[at])
    return Purpose()


def _decorated(frames: Sequence[SampledFrame], stack: Sequence[int]) -> Iterator[int]:
    """Where on a stack functions are that torch's context decorators call."""
    return (at + 1 for at in range(len(stack) - 1) if _DECORATED.search(frames[stack[at]].file))


def _blocks(frames: Sequence[SampledFrame], stack: Sequence[int]) -> Iterator[int]:
    """Where on a stack lines of the program are that stand in `with torch.no_grad():`, of no installed package."""
    return (at for at, number in enumerate(stack) if frames[number].no_grad)


def _is_call(frame: SampledFrame) -> bool:
    return frame.function.endswith(_CALL) and bool(_MODULE.search(frame.file))


def _optimizes(frame: SampledFrame) -> bool:
    return bool(_STEP.search(frame.function) or _OPTIMIZER.search(frame.file))


def _key(frame: SampledFrame) -> tuple[str, str]:
    return frame.function, frame.file


_PACKAGE = pattern(r"/(?:site|dist)-packages/([^/]+)")
_STANDARD = pattern(r"/lib/python3\.\d+/(?!site-packages|dist-packages)|^<frozen ")
_OURS = pattern(r"/traceops/capture/")
_WAITS_IN_TEXT = pattern(
    r"\.item\(|\.cpu\(|\.tolist\(|\.numpy\(|synchronize\(|empty_cache\(|\.wait\(|barrier\(|all_reduce|all_gather|broadcast\("
)
_ANY_PLACE = pattern("")
Unit = tuple[str, str, int]  # see `CodePlace.unit`
_Key = tuple[Unit, bool]  # and whether it waits there
_MODULE_FRAME = "<module>"  # how Python calls the code of a file that is in no function
# A comprehension runs as a part of the function that it stands in; before Python 3.11 its name does not say which.
_COMPREHENSION = pattern(r"(?:(?:^|\.<locals>\.)<(?:gen|list|set|dict)(?:expr|comp)>)+$")
_WAITING = (
    (pattern(r"/torch/distributed/"), _ANY_PLACE),
    (pattern(r"/torch/autograd/graph\.py$"), pattern("_engine_run_backward")),
    (pattern(r"/torch/cuda/(__init__|streams)\.py$"), pattern("synchronize|wait")),
    (pattern(r"/torch/cuda/memory\.py$"), pattern("empty_cache")),
)


class CodePlace(Struct, frozen=True, order=True):
    """A function of the program's own; line: where in it most of the time goes, text: what stands there."""

    function: str
    file: str
    line: int
    text: str | None = None

    @property
    def said(self) -> str:
        """As in 'collate_fn (data.py:88)'."""
        where = f"{PurePosixPath(self.file).name}:{self.line}"
        short = self.function.rpartition("<locals>.")[2]
        return f"{short} ({where})" if short != _MODULE_FRAME else where

    @property
    def unit(self) -> Unit:
        """What time is added up by: the function. Code in none is a line of its file, as `said` names it."""
        return self.function, self.file, self.line if self.function == _MODULE_FRAME else 0


class FunctionTime(Struct, frozen=True):
    """Of one function of the program's own, or of one line outside of any.

    ms: a step, in it and in the libraries that it calls, but not in other functions of the program's. looks: samples.
    waits: it waits for other ranks or the device there. does: see `Purpose`. lines: of the function, ms each.
    """

    place: CodePlace
    ms: float
    looks: int
    waits: bool
    does: str | None
    lines: tuple[tuple[CodePlace, float], ...] = ()

    @property
    def key(self) -> Unit:
        """What is the same function on every rank."""
        return self.place.unit


def is_own(frame: SampledFrame) -> bool:
    """Whether a frame belongs to the program, and neither to an installed package nor to what torch.compile wrote."""
    file = frame.file
    installed = _PACKAGE.search(file) or _STANDARD.search(file) or _OURS.search(file) or file.startswith("<")
    return not (installed or is_compiled_code(file))


def own_place(observed: Observed, stack: int) -> CodePlace | None:
    """The innermost line of the program's own on a stack."""
    places = (place_of(observed, number) for number in reversed(observed.stacks[stack]))
    return next((place for place in places if place is not None), None)


def place_of(observed: Observed, number: int) -> CodePlace | None:
    """Where a frame is; None where it is not the program's own."""
    frame = observed.frames[number]
    if not is_own(frame):
        return None
    function = _COMPREHENSION.sub("", frame.function) or _MODULE_FRAME
    return CodePlace(function, frame.file, frame.line, frame.text)


def waits(observed: Observed, stack: int) -> bool:
    """Whether the host waits there: in a collective, in autograd's engine, for the device.

    What a line of the program's own says counts only where no function of Python runs below it: `model(x).item()` also
    runs the model.
    """
    numbers = observed.stacks[stack]
    if not numbers:
        return False
    innermost = observed.frames[numbers[-1]]
    if is_own(innermost):
        return bool(innermost.text and _WAITS_IN_TEXT.search(innermost.text))
    for number in reversed(numbers):
        frame = observed.frames[number]
        if is_own(frame):
            return False
        if is_waiting(frame):
            return True
    return False


def is_waiting(frame: SampledFrame) -> bool:
    """Whether a function of a library waits for other ranks or the device."""
    return any(file.search(frame.file) and function.search(frame.function) for file, function in _WAITING)


def own_overhead(observed: Observed, stack: int) -> bool:
    """Whether the host was in the capture itself."""
    numbers = observed.stacks[stack]
    return bool(numbers) and bool(_OURS.search(observed.frames[numbers[-1]].file))


def host_times(observed: Observed, steps: NDArray[np.bool_], step_ms: float) -> list[FunctionTime]:
    """Host time by function of the program's own in these steps (a mask over `observed.steps`), most first.

    step_ms: of the mean of these steps, which the shares of the samples are of.
    """
    chosen = observed.samples[_in_steps(observed, steps)]
    total = int(chosen[:, 2].sum())
    if not total or not step_ms:
        return []
    weight = np.bincount(chosen[:, 1], chosen[:, 2], len(observed.stacks))
    looks = np.bincount(chosen[:, 1], minlength=len(observed.stacks))
    lines: dict[_Key, dict[CodePlace, float]] = defaultdict(lambda: defaultdict(float))
    counted: dict[_Key, int] = defaultdict(int)
    does: dict[_Key, dict[str | None, float]] = defaultdict(lambda: defaultdict(float))
    purposes = stack_purposes(observed)
    for stack in np.flatnonzero(weight).tolist():
        place = own_place(observed, stack)
        if place is None or own_overhead(observed, stack):
            continue
        key = (place.unit, waits(observed, stack))
        lines[key][place] += float(weight[stack])
        counted[key] += int(looks[stack])
        does[key][purposes[stack].what] += float(weight[stack])
    found = [
        FunctionTime(
            max(own, key=lambda place: own[place]), sum(own.values()) / total * step_ms, counted[key], key[1],
            max(does[key], key=lambda what: does[key][what]),
            tuple(sorted(((place, us / total * step_ms) for place, us in own.items()), key=lambda one: -one[1])),
        )
        for key, own in lines.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.ms, one.place))


def _in_steps(observed: Observed, steps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    number = observed.samples[:, 0] - observed.first
    inside = (number >= 0) & (number < len(steps))
    chosen = np.zeros(len(number), dtype=bool)
    chosen[inside] = steps[number[inside]]
    return chosen
