"""Where the host of one rank spends its time, from the Python frames of a trace that was recorded with stacks."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import PurePosixPath

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.core.arrays import Int, Intervals, intersect, median, subtract, union
from traceops.core.code_places import LIBRARIES
from traceops.measure.host_places import CodePlace, does, is_own, is_waiting
from traceops.measure.host_rows import HostRows
from traceops.measure.ledger import Lane
from traceops.measure.steps import StepBounds
from traceops.traces.frames import Frames
from traceops.traces.observed import SampledFrame

IDLE = ("idle_host", "idle_input", "idle_sync")
_MOST = 24  # functions of a rank
LEAST_PCT = 1.0  # of all its steps
_FRAME = re.compile(r"(?P<file>.+?)\((?P<line>\d{1,9})\): (?P<function>.+)", re.DOTALL)
_NO_FILE = "<built-in>"
_PARTS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"}  # of the function that they stand in
_LOADER = "/torch/utils/data/"
_OURS = "/site-packages/traceops/capture/"
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

    `place.line` is where the function begins, 0 for one that ran before the first step: where that begins is not told.
    `host_ns` is by step, without calls that wait for the device. `idle_ns` is by IDLE and step: the device's idle time
    meanwhile. waits, does: as of FunctionTime. in_loader: a data loader called it. call_ns: what the median of its
    recorded calls takes.
    """

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
        around = None if frame.file.startswith(_OURS) else self.place
        return _Label(around, waiting, what, self.in_loader, loading)


def stack_times(frames: Frames, host: HostRows, held_up: Int, lane: Lane, steps: StepBounds) -> tuple[StackTime, ...]:
    """The program's functions that its main thread is in for long, most first; none of a trace without stacks.

    held_up: rows of calls in which the host waits for the device.
    """
    events, thread = host.events, _main_thread(host) if len(frames) else -1
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


def _main_thread(host: HostRows) -> int:
    """The thread the steps are marked on, or else the one with most operators."""
    marks = host.steps[0]
    values, counts = np.unique(host.events.tid[marks if len(marks) else host.operators], return_counts=True)
    return int(values[np.argmax(counts)]) if len(values) else -1


def _by_label(frames: Frames, rows: Int, begun: int) -> tuple[dict[_Label, Intervals], dict[CodePlace, list[int]]]:
    """When the innermost frame has which label, and how long calls take; a frame ends with the one that it is in."""
    rows = rows[np.lexsort((-frames.dur[rows], frames.ts[rows]))]
    read = [frame_of(name) for name in frames.names]
    labels: dict[tuple[_Label, int, bool], _Label] = {}
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
        key = (around, name, start < begun)
        if key not in labels:
            frame = replace(read[name], line=0) if start < begun else read[name]
            labels[key] = around.inside(frame)
        place = labels[key].place
        if place is not None and place != around.place:
            calls[place].append(took)
        open_.append((end, labels[key]))
        since = start
    close(np.iinfo(np.int64).max)
    return {label: _union(own) for label, own in parts.items()}, calls


def _union(pairs: list[tuple[int, int]]) -> Intervals:
    start, end = np.array(pairs, dtype=np.int64).T
    return union(start, end)


def frame_of(name: str) -> SampledFrame:
    """A frame as the samples of hosts have them: files of libraries lie in a folder of packages."""
    read = _FRAME.fullmatch(name)
    if read is None:
        return SampledFrame(name, _NO_FILE, 0, 0, None)
    file, line = read["file"].replace("\\", "/"), int(read["line"])
    if file.partition("/")[0].removesuffix(".py") in _LIBRARIES:
        file = f"/site-packages/{file}"
    return SampledFrame(read["function"], file, line, line, None)
