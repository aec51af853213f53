"""Where the host of one rank spends its time, from samples of its stacks: by function and line of the program's own."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from traceops.core.compiled_code import is_compiled_code
from traceops.measure.host_purposes import stack_purposes
from traceops.traces.observed import Observed, SampledFrame

_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STANDARD = re.compile(r"/lib/python3\.\d+/(?!site-packages|dist-packages)|^<frozen ")
_OURS = re.compile(r"/traceops/capture/")
_WAITS_IN_TEXT = re.compile(
    r"\.item\(|\.cpu\(|\.tolist\(|\.numpy\(|synchronize\(|empty_cache\(|\.wait\(|barrier\(|all_reduce|all_gather|broadcast\("
)
_ANY = re.compile("")
Unit = tuple[str, str, int]  # see `CodePlace.unit`
_Key = tuple[Unit, bool]  # and whether it waits there
_MODULE = "<module>"  # how Python calls the code of a file that is in no function
# A comprehension runs as a part of the function that it stands in; before Python 3.11 its name does not say which.
_COMPREHENSION = re.compile(r"(?:(?:^|\.<locals>\.)<(?:gen|list|set|dict)(?:expr|comp)>)+$")
_WAITING = (
    (re.compile(r"/torch/distributed/"), _ANY),
    (re.compile(r"/torch/autograd/graph\.py$"), re.compile("_engine_run_backward")),
    (re.compile(r"/torch/cuda/(__init__|streams)\.py$"), re.compile("synchronize|wait")),
    (re.compile(r"/torch/cuda/memory\.py$"), re.compile("empty_cache")),
)


@dataclass(frozen=True, order=True)
class CodePlace:
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
        return f"{short} ({where})" if short != _MODULE else where

    @property
    def unit(self) -> Unit:
        """What time is added up by: the function. Code in none is a line of its file, as `said` names it."""
        return self.function, self.file, self.line if self.function == _MODULE else 0


@dataclass(frozen=True)
class FunctionTime:
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
    function = _COMPREHENSION.sub("", frame.function) or _MODULE
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
