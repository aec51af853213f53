"""What the host is about, as a sampled stack shows it: by the names on it, and where a model runs without gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from traceops.traces.observed import Observed, SampledFrame

_ANY = re.compile("")
# What a frame's file and function say that its program does; the outermost that matches counts.
_DOES: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = (
    ("recompilation", re.compile(r"/torch/(_dynamo/(convert_frame|symbolic_convert)|_inductor/compile_fx)"), _ANY),
    ("checkpoint", re.compile(r"/torch/serialization\.py$"), re.compile(r"(^|[._])(save|load)$")),
    ("checkpoint", re.compile(r"/torch/distributed/checkpoint/|/safetensors/"), re.compile(r"save|write")),
    (
        "checkpoint",
        _ANY,
        re.compile(r"(?i)(^|[._])_?(save_?(state|checkpoint|model|pretrained)|(write|dump)_?checkpoint)"),
    ),
    (
        "evaluation",
        re.compile(r"^(?!.*/torch/(?!.*/(?:site|dist)-packages/))"),  # torch may be a folder of its virtual environment
        # A function that also trains, logs or saves (_maybe_log_save_evaluate) says nothing: those that it calls do.
        re.compile(
            r"(?i)(?:^|\.)(?!(?:[^.]*_)?(?:train|fit|log|save|checkpoint)(?:_|\.|$))(?:[^.]*_)?"
            r"(eval|evaluate|evaluation|validate|validation|val_step|val_loop|test_loop)(_|\.|$)"
            r"|(?:^|\.)_*(?:run_|do_)?(?:test|val|valid)(?:_(?:model|epoch|one_epoch|loss))?$"
            r"|(?:^|\.)_?(?:eval|evaluation|val|validation|test)(?:epoch)?loop(?:\.|$)"  # classes: _EvaluationLoop
        ),
    ),
    ("allocator", re.compile(r"/torch/cuda/memory\.py$"), re.compile(r"empty_cache$")),
    ("logging", re.compile(r"/(wandb|tensorboardX?|mlflow|comet_ml|neptune)/|/logging/__init__"), _ANY),
    ("input", re.compile(r"/torch/utils/data/"), _ANY),
)  # fmt: skip
# no_grad, inference_mode and enable_grad as decorators:
_DECORATED = re.compile(r"/torch/utils/_contextlib\.py$")
_MODULE, _CALL = re.compile(r"/torch/nn/modules/module\.py$"), "_call_impl"
_BACKWARD = "_engine_run_backward"
_OPTIMIZER = re.compile(r"/torch/optim/")
_STEP = re.compile(r"(^|\.)step$")  # of an optimizer: it has no gradients of its own, the closure that it calls has


@dataclass(frozen=True)
class Purpose:
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
