"""Where the host of one rank and the workers of its data loaders spend their time, by the program's own code.

From samples of stacks, or from the Python frames of a trace that was recorded with them.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import PurePosixPath

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.arrays import Int, Intervals, intersect, median, subtract, union
from traceops.core.text import LIBRARIES, is_compiled_code, pattern
from traceops.measure.host_rows import HostRows
from traceops.measure.ledger import Lane
from traceops.measure.steps import StepBounds, step_ends_ns
from traceops.traces.model import Frames
from traceops.traces.observed import Observed, SampledFrame

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
    """The purposes, in which a wait for the device is of the model that was called without gradients before it. Such a
    function reads what its model computed (`loss.item()`), and most of its time is in that. waiting: by stack."""
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
        if (cause := does(frames[number].file, frames[number].function)) is not None:
            return Purpose(cause, number)
    return None


@lru_cache(maxsize=1 << 14)  # stacks share most of their frames
def does(file: str, function: str) -> str | None:
    """What the names of a frame say that its program does, as one of the causes of TO-W001."""
    return next((cause for cause, of, named in _DOES if of.search(file) and named.search(function)), None)


def _without_gradients(frames: Sequence[SampledFrame], stack: Sequence[int], trained: set[tuple[str, str]]) -> Purpose:
    """Whether a function that is decorated so, and trains nowhere, has a module called, or a line in such a block."""
    decorated = (at for at in _decorated(frames, stack) if _key(frames[stack[at]]) not in trained)
    for at in chain(_blocks(frames, stack), decorated):
        calls = any(_is_call(frames[number]) for number in stack[at + 1 :])
        if calls and not any(_optimizes(frames[number]) for number in stack[: at + 1]):
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
    """Of one function of the program's own, or of one line outside of any. ms: a step, in it and in the libraries that
    it calls, but not in other functions of the program's. looks: samples. waits: it waits for other ranks or the device
    there. does: see `Purpose`. lines: of the function, ms each."""

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
    """Whether the host waits there: in a collective, in autograd's engine, for the device. What a line of the program's
    own says counts only where no function of Python runs below it: `model(x).item()` also runs the model."""
    if not (numbers := observed.stacks[stack]):
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
    """Host time by function of the program's own in these steps (a mask over `observed.steps`), most first. step_ms: of
    the mean of these steps, which the shares of the samples are of."""
    number = observed.samples[:, 0] - observed.first
    inside = (number >= 0) & (number < len(steps))
    inside[inside] = steps[number[inside]]
    chosen = observed.samples[inside]
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
        if (place := own_place(observed, stack)) is None or own_overhead(observed, stack):
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


IDLE = ("idle_host", "idle_input", "idle_sync")
_MOST = 24  # functions of a rank
LEAST_PCT = 1.0  # of all its steps
_FRAME = re.compile(r"(?P<file>.+?)\((?P<line>\d{1,9})\): (?P<function>.+)", re.DOTALL)
_NO_FILE = "<built-in>"
_PARTS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"}  # of the function that they stand in
_LOADER = "/torch/utils/data/"
_CAPTURE = "/site-packages/traceops/capture/"
_TOUCHES_NS = 1_000  # a frame that begins this shortly before another ends follows it
# Of relative paths, which is how torch writes those below a folder of sys.path: what begins them is a library.
_LIBRARIES = LIBRARIES | sys.stdlib_module_names | {
    "torchaudio", "torchtitan", "functorch", "lightning_utilities", "megatron", "fairscale", "apex", "xformers",
    "flash_attn", "bitsandbytes", "timm", "pandas", "scipy", "sklearn", "PIL", "cv2", "tqdm", "tensorboard",
    "tensorboardX", "mlflow", "comet_ml", "neptune", "tokenizers", "sentencepiece", "diffusers", "einops", "fsspec",
    "pyarrow",
}  # fmt: skip


class StackTime(Struct, frozen=True):
    """Of one function of the program's own: when the main thread is in it, in nothing of the program's that it calls.
    `place.line` is where the function begins, 0 for one that only began before the first step: that is not told then.
    `host_ns` is by step, without calls that wait for the device. `idle_ns` is by IDLE and step: the device's idle time
    meanwhile. waits, does: as of FunctionTime. in_loader: a data loader called it. call_ns: what the median of its
    recorded calls takes."""

    place: CodePlace
    waits: bool
    does: str | None
    in_loader: bool
    host_ns: Int
    idle_ns: Int
    call_ns: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What is the same function on every rank."""
        return self.place.function, self.place.file, self.place.line

    @property
    def said(self) -> str:
        """As in 'collate_fn (data.py:88)'."""
        if self.place.line:
            return self.place.said
        file = PurePosixPath(self.place.file).name
        return f"{self.place.function} ({file})" if self.place.function != "<module>" else file


class _Label(Struct, frozen=True):
    """What time in a frame counts for: what StackTime has of it. loading: a frame of a data loader is around."""

    place: CodePlace | None = None
    waits: bool = False
    does: str | None = None
    in_loader: bool = False
    loading: bool = False

    def inside(self, frame: SampledFrame) -> _Label:
        """The label of a frame that this one's calls."""
        what = self.does or does(frame.file, frame.function)
        if is_own(frame):
            own = CodePlace(frame.function, frame.file, frame.line)
            if self.place is not None and self.place.file == frame.file and frame.function in _PARTS:
                own = self.place
            return _Label(own, False, what, self.loading, self.loading)
        waiting, loading = self.waits or is_waiting(frame), self.loading or _LOADER in frame.file
        around = None if frame.file.startswith(_CAPTURE) else self.place
        return _Label(around, waiting, what, self.in_loader, loading)


def stack_times(frames: Frames, host: HostRows, held_up: Int, lane: Lane, steps: StepBounds) -> tuple[StackTime, ...]:
    """The program's functions that its main thread is in for long, most first; none of a trace without stacks. held_up:
    rows of calls in which the host waits for the device."""
    events, thread = host.events, host.main_thread if len(frames) else -1
    rows = np.flatnonzero(frames.tid == thread)
    if not len(rows) or not len(steps):
        return ()
    held = held_up[events.tid[held_up] == thread]
    waiting = union(events.ts[held], events.end[held])
    first, last = steps.edges[:-1], steps.edges[1:]
    least = LEAST_PCT / 100 * int((steps.host_end - steps.host_start).sum())
    found = []
    parts, calls = _by_label(frames, rows, int(steps.host_start[0]))
    for label, inside in parts.items():
        if label.place is None or inside.total < least:
            continue
        spent = subtract(inside, waiting).within(steps.host_start, steps.host_end)
        idle = np.array([intersect(inside, lane.own[bucket]).within(first, last) for bucket in IDLE])
        if max(spent.sum(), idle.sum()) >= least:
            call = int(median(calls[label.place]))
            found.append(StackTime(label.place, label.waits, label.does, label.in_loader, spent, idle, call))
    return tuple(sorted(found, key=lambda one: (-int(one.host_ns.sum()), one.place))[:_MOST])


def _by_label(frames: Frames, rows: Int, begun: int) -> tuple[dict[_Label, Intervals], dict[CodePlace, list[int]]]:
    """When the innermost frame has which label, and how long calls take; a frame ends with the one that it is in."""
    rows = rows[np.lexsort((-frames.dur[rows], frames.ts[rows]))]
    read, again = [frame_of(name) for name in frames.names], set(frames.name[rows[frames.ts[rows] >= begun]].tolist())
    labels: dict[tuple[_Label, int], _Label] = {}
    parts: dict[_Label, list[tuple[int, int]]] = defaultdict(list)
    calls: dict[CodePlace, list[int]] = defaultdict(list)
    open_: list[tuple[int, _Label]] = []
    since = 0

    def close(until: int) -> None:
        nonlocal since
        while open_ and open_[-1][0] <= until:
            end, label = open_.pop()
            parts[label].append((since, end))
            since = max(since, end)

    columns = (frames.name[rows].tolist(), frames.ts[rows].tolist(), frames.dur[rows].tolist())
    for name, start, took in zip(*columns, strict=True):
        close(start + _TOUCHES_NS)
        around, end = _Label(), start + took
        if open_:
            around, end = open_[-1][1], min(end, open_[-1][0])
            parts[around].append((since, start))
        key = (around, name)
        if key not in labels:
            labels[key] = around.inside(read[name] if name in again else replace(read[name], line=0))
        if (place := labels[key].place) is not None and place != around.place:
            calls[place].append(took)
        open_.append((end, labels[key]))
        since = start
    close(np.iinfo(np.int64).max)
    return {label: union(*np.array(own, dtype=np.int64).T) for label, own in parts.items()}, calls


def frame_of(name: str) -> SampledFrame:
    """A frame as the samples of hosts have them: files of libraries lie in a folder of packages."""
    if (read := _FRAME.fullmatch(name)) is None:
        return SampledFrame(name, _NO_FILE, 0, 0, None)
    file, line = read["file"].replace("\\", "/"), int(read["line"])
    if file.partition("/")[0].removesuffix(".py") in _LIBRARIES:
        file = f"/site-packages/{file}"
    return SampledFrame(read["function"], file, line, line, None)


BUSY_PCT = 50.0  # of the time of workers: below it they are not what a rank waits for
_LEAST_LOOKS = 20
# Where a worker is that has nothing to do: it waits for the numbers of the next batch.
_IDLE = pattern(r"/multiprocessing/(queues|connection|popen_fork|synchronize)\.py$|/(selectors|queue)\.py$")
_FETCHES = pattern(r"/torch/utils/data/_utils/fetch\.py$")
_FROM_WORKERS = pattern(r"(^|\.)_(try_)?get_data$")  # of torch's own loader


class LoaderWork(Struct, frozen=True):
    """Of one rank's workers together, those that were looked at. processes: of them. busy_pct: of their time in which
    they do not wait for work. busiest_pct: of the time of the one that waits least, among those that were looked at
    often enough: batches come in order, so one may hold up all, and workers of another loader have nothing to do
    meanwhile. place: the program's own function in which most of that time goes, with its line, None where it is all in
    libraries; place_pct: of the busy time."""

    processes: int
    busy_pct: float
    busiest_pct: float
    place: CodePlace | None
    place_pct: float

    @property
    def one_busy(self) -> bool:
        """Whether one worker is busy while all together mostly wait for work."""
        return self.processes > 1 and self.busy_pct < BUSY_PCT <= self.busiest_pct


def loads_itself(rank: Observed) -> bool:
    """Whether this rank's own process was seen to load its batches, and never to wait for a worker."""
    stacks = (rank.stacks[number] for number in set(rank.samples[:, 1].tolist()))
    seen = [rank.frames[number] for number in {number for stack in stacks for number in stack}]
    fetches = any(_FETCHES.search(frame.file) for frame in seen)
    return fetches and not any(_FROM_WORKERS.search(frame.function) for frame in seen)


def loader_work(rank: Observed, typical: NDArray[np.bool_] | None = None) -> LoaderWork | None:
    """Of a rank that was observed; None where its loaders have no workers, or were looked at too seldom. typical: the
    steps that count, where that is known. While a program starts, compiles or evaluates, the workers of its training
    rest."""
    loaders = rank.loaders
    if typical is not None and typical.any() and all(one.began_ns for one in loaders):
        within = tuple(_loader_in_steps(one, step_ends_ns(rank), typical) for one in loaders)
        loaders = within if sum(len(one.samples) for one in within) >= _LEAST_LOOKS else loaders
    if sum(len(one.samples) for one in loaders) < _LEAST_LOOKS:
        return None
    lines: dict[Unit, dict[CodePlace, float]] = defaultdict(lambda: defaultdict(float))
    total = busy = busiest_pct = 0.0
    for one in loaders:
        total_before, busy_before = total, busy
        weight = np.bincount(one.samples[:, 1], one.samples[:, 2], len(one.stacks))
        for stack in np.flatnonzero(weight).tolist():
            total += weight[stack]
            if _is_idle(one, stack):
                continue
            busy += weight[stack]
            place = own_place(one, stack)
            # A program's own frames around the loop are those that started the training, not the loading.
            if place is not None and _below_the_loop(one, stack, place):
                lines[place.unit][place] += weight[stack]
        if len(one.samples) >= _LEAST_LOOKS and total > total_before:
            busiest_pct = max(busiest_pct, 100 * (busy - busy_before) / (total - total_before))
    if not total:
        return None
    most = max(lines.values(), key=lambda own: sum(own.values()), default=None)
    processes = sum(1 for one in loaders if len(one.samples))
    busy_pct = 100 * busy / total
    busiest_pct = max(busiest_pct, busy_pct)
    if most is None or not busy:
        return LoaderWork(processes, busy_pct, busiest_pct, None, 0.0)
    place = max(most, key=lambda one: most[one])
    return LoaderWork(processes, busy_pct, busiest_pct, place, 100 * sum(most.values()) / busy)


def _loader_in_steps(one: Observed, ends_ns: NDArray[np.float64], steps: NDArray[np.bool_]) -> Observed:
    """The looks that stand for time in these steps. ends_ns: of all steps."""
    spans = 1e3 * one.samples[:, 2]
    middle = one.began_ns + np.cumsum(spans) - spans / 2
    at = np.searchsorted(ends_ns, middle)
    chosen = (at > 0) & (at < len(ends_ns))  # the first step holds the program's start
    chosen[chosen] = steps[at[chosen]]
    return replace(one, samples=one.samples[chosen])


def _is_idle(one: Observed, stack: int) -> bool:
    numbers = one.stacks[stack]
    return not numbers or bool(_IDLE.search(one.frames[numbers[-1]].file))


def _below_the_loop(one: Observed, stack: int, place: CodePlace) -> bool:
    """Whether this line is called by the worker's loop."""
    frames = [one.frames[number] for number in one.stacks[stack]]
    loop = next((at for at, frame in enumerate(frames) if frame.function == "_worker_loop"), None)
    if loop is None:
        return False
    return any((frame.function, frame.file) == (place.function, place.file) for frame in frames[loop:])
