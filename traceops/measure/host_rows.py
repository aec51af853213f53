"""Which rows are operators, launches, blocking calls, step marks and data loading, and which of them is around what."""

from __future__ import annotations

import re
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import FEW_ROWS, Int, alike, grouped, is_in, native, numbered, union, uniques
from traceops.traces.model import Events


def distinct(values: NDArray[Any]) -> tuple[Int, Int]:
    """The different values in rising order and each row's place among them; fast where equal values stand together."""
    if native is not None:
        return numbered(values)
    changes = (values[1:] != values[:-1]).nonzero()[0] + 1
    first = np.concatenate(([0], changes))[: len(values)]
    found = uniques(values[first])
    which = found.searchsorted(values[first])
    return found, which.repeat(np.diff(np.append(first, len(values))))


def groups(*columns: NDArray[Any]) -> tuple[Int, Int]:
    """The different rows of some columns of numbers from -1 on, shape (groups, columns), and each row's group."""
    if len(columns[0]) <= FEW_ROWS:
        first, group = alike(columns)
        return np.array([column[first] for column in columns], dtype=np.int64).T, group
    sizes = [int(column.max(initial=-1)) + 2 for column in columns]
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column, size in zip(columns, sizes, strict=True):
        key *= size
        key += column
        key += 1
    first, group = grouped(key)
    return np.array([column.take(first) for column in columns], dtype=np.int64).T, group


_WIDEST = 1 << 62  # sums of two numbers below it fit an int64


class _ThreadAxis(Struct, frozen=True):
    """The threads' times end to end on one axis, so that one search or running maximum serves all threads. `threads[k]`
    fills [k * span, (k + 1) * span), counting ns from `origin`, or else the different `moments`."""

    threads: Int
    span: int
    origin: int = 0
    moments: Int | None = None

    def passed(self, time: Int) -> Int:
        """How far into its thread's part of the axis each time lies, before the first event below 0."""
        if self.moments is None:
            return time - self.origin
        return self.moments.searchsorted(time, side="right") - 1


class Nesting(Struct, frozen=True, dict=True):
    """Events of the host by thread, then begin, the longest first; `rows` are theirs, positions count in that order.

    Events of a thread nest: they lie inside each other or beside each other. `start` and `end` are on `axis`. Nothing
    lies inside an event of no length; what it lies in began before it, or as it did and stands before it in the file.
    """

    events: Events
    rows: Int
    start: Int
    end: Int
    axis: _ThreadAxis

    @cached_property
    def outermost(self) -> Int:
        """Positions of the events that begin inside no other."""
        return (self.start >= np.concatenate(([-1], self._reach[:-1]))).nonzero()[0]

    @cached_property
    def parent(self) -> NDArray[np.int32]:
        """Position of the innermost event around each, -1 where there is none."""
        if self._nested is not None:
            return self._nested[1]
        depth = self.depth
        order = depth.argsort(kind="stable").astype(np.int32)
        deeper = np.concatenate(([False], depth[1:] > depth[:-1]))
        # On a level, each is the first inside the event just before it, or a sibling of the last on the level;
        # those on the first level follow event 0, which would be inside event -1.
        eldest = np.where(deeper.take(order), np.arange(len(order), dtype=np.int32), 0)
        parent = np.empty_like(order)
        parent[order] = order.take(np.maximum.accumulate(eldest)) - 1
        return parent

    @cached_property
    def _nested(self) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """`depth` and `parent` in one pass; None without compiled code."""
        if native is None:
            return None
        depth, parent = np.empty((2, len(self.start)), dtype=np.int32)
        return None if native.nest(self.start, self.end, self._ends, depth, parent) is None else (depth, parent)

    @cached_property
    def own_time(self) -> Int:
        """Duration of each event less that of the events directly inside it, ns, never below 0."""
        duration = self.events.dur.take(self.rows)
        inside = np.zeros(len(duration) + 1, dtype=np.int64)  # the last takes what is inside none
        np.add.at(inside, self.parent, duration)
        left: Int = np.maximum(duration - inside[:-1], 0)
        return left

    def innermost_around(self, rows: Int) -> Int:
        """Position of the innermost event in which each of `rows` begins on its thread, -1 outside all.

        None of `rows` may be one of the events themselves, whose `parent` is known.
        """
        if not len(rows) or not len(self.start):
            return np.full(len(rows), -1, dtype=np.int64)
        if self._axis is not None and self._nested is not None:
            found = np.empty(len(rows), dtype=np.int64)
            events, nested = self.events, (self.start, self._ends, *self._nested)
            if native.innermost(rows, events.tid, events.ts, self.axis.threads, self._axis, *nested, found) is not None:
                return found
        at = self._place(rows)
        begun = self.start.searchsorted(at, side="right")
        level = begun - self._ends.searchsorted(at, side="right") - 1
        found = np.where(level >= 0, begun - 1, -1)
        inside = (level >= 0).nonzero()[0]
        above = self.depth[found[inside]] - level[inside]
        while len(inside := inside[above > 0]):
            above = above[above > 0] - 1
            found[inside] = self.parent[found[inside]]
        return found

    def outermost_around(self, rows: Int) -> Int:
        """Position of the outermost event in which each of `rows` begins on its thread, -1 outside all."""
        if not len(rows) or not len(self.start):
            return np.full(len(rows), -1, dtype=np.int64)
        found: Int
        if self._axis is not None:
            found = np.empty(len(rows), dtype=np.int64)
            events, nested = self.events, (self.start, self._reach, self.outermost)
            if native.outermost(rows, events.tid, events.ts, self.axis.threads, self._axis, *nested, found) is not None:
                return found
        at = self._place(rows)
        begun = self.start[self.outermost].searchsorted(at, side="right")
        # What is inside the last one begun may outlast it where events only overlap.
        over = np.concatenate(([-1], self._reach[self.outermost[1:] - 1], self._reach[-1:]))
        found = np.concatenate((self.outermost, [-1]))[np.where(over[begun] > at, begun - 1, -1)]
        return found

    @cached_property
    def _axis(self) -> Int | None:
        """Where the axis begins and a thread's part of it, for compiled code; None without it, or of odd times."""
        axis = self.axis
        return None if native is None or axis.moments is not None else np.array((axis.origin, axis.span))

    @cached_property
    def _reach(self) -> Int:
        """The latest end of each event and all before it."""
        return np.maximum.accumulate(self.end)

    @cached_property
    def _ends(self) -> Int:
        return np.sort(self.end, kind="stable")  # nearly in order: events are written as they end or begin

    @cached_property
    def depth(self) -> NDArray[Any]:
        """How many events are around each: those begun before, less those of them that ended by then."""
        if self._nested is not None:
            return self._nested[0]
        depth = np.arange(len(self.start))
        depth -= self._ends.searchsorted(self.start, side="right")
        ending = self.end == self.start
        if np.count_nonzero(
            ending
        ):  # of no length: it and those behind it at the same moment ended by then, but began no earlier
            ended = np.concatenate(([0], ending.cumsum()))
            depth += ended[self.start.searchsorted(self.start, side="right")] - ended[:-1]
        np.maximum(depth, 0, out=depth)
        return depth.astype(np.min_scalar_type(int(depth.max(initial=0))))  # few bytes sort fast

    def _place(self, rows: Int) -> Int:
        """Where each row begins on the axis; before all of it on a thread that has none of the events."""
        tid, threads = self.events.tid[rows], self.axis.threads
        if not len(threads):
            return np.full(len(rows), -1, dtype=np.int64)
        which = np.minimum(threads.searchsorted(tid), len(threads) - 1)
        passed = np.minimum(np.maximum(self.axis.passed(self.events.ts[rows]), -1), self.axis.span - 1)
        return np.where(threads[which] == tid, which * self.axis.span + passed, -1)


def find_nesting(events: Events, rows: Int) -> Nesting:
    """How these rows, given in file order, lie in each other."""
    threads, which = distinct(events.tid.take(rows))
    start, end = events.ts.take(rows), events.dur.take(rows)
    end += start
    axis = _axis(threads, start, end)
    which *= axis.span
    start, end = axis.passed(start) + which, axis.passed(end) + which
    if np.count_nonzero(start[1:] < start[:-1]):
        order = start.argsort(kind="stable")
        rows, start, end = rows.take(order), start.take(order), end.take(order)
    same = start[1:] == start[:-1]
    if np.count_nonzero(same):
        tied = (np.concatenate((same, [False])) | np.concatenate(([False], same))).nonzero()[0]
        lasts = (end[tied] > start[tied]).cumsum()
        first = start[tied].searchsorted(start[tied])  # of those that begin as it does
        none_before: NDArray[np.bool_] = lasts == lasts[first] - (end[tied] > start[tied])[first]
        longest_first = tied[np.lexsort((-end[tied], ~none_before, start[tied]))]
        rows = rows.copy()
        rows[tied], end[tied] = rows[longest_first], end[longest_first]
    return Nesting(events, rows, start, end, axis)


def _axis(threads: Int, start: Int, end: Int) -> _ThreadAxis:
    if not len(start):
        return _ThreadAxis(threads, 1)
    origin = int(start.min())
    span = int(end.max()) - origin + 1
    if span * len(threads) < _WIDEST:
        return _ThreadAxis(threads, span, origin)
    moments = uniques(np.concatenate((start, end)))  # times of a damaged file may lie years apart
    return _ThreadAxis(threads, len(moments), moments=moments)


def begin_inside(events: Events, rows: Int, parents: Int) -> NDArray[np.bool_]:
    """Which rows start inside one of the parents on the same thread."""
    inside = np.zeros(len(rows), dtype=bool)
    if not len(rows) or not len(parents):
        return inside
    for tid in uniques(events.tid.take(parents)):
        own = parents[events.tid.take(parents) == tid]
        mine = (events.tid.take(rows) == tid).nonzero()[0]
        inside[mine] = union(events.ts.take(own), events.ts.take(own) + events.dur.take(own)).holds(
            events.ts.take(rows.take(mine))
        )
    return inside


DEVICE_KERNEL_CATS = ("kernel", "concurrent_kernel", "mtia_ccp_events")
DEVICE_MEMORY_CATS = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
DEVICE_CATS = (*DEVICE_KERNEL_CATS, *DEVICE_MEMORY_CATS)
LAUNCH_CATS = ("cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "mtia_runtime", "xpu_runtime")
OPERATOR_CATS = ("cpu_op", "operator")
ANNOTATION_CATS = ("user_annotation",)
HOST_CATS = (*LAUNCH_CATS, *OPERATOR_CATS, *ANNOTATION_CATS, "python_function")

BACKWARD_NAME = re.compile(r"^autograd::engine::evaluate_function")
OPTIMIZER_NAME = re.compile(r"^Optimizer\.step#")
COMPILES = re.compile(r"\(dynamo_timed\)$")
_INPUT = re.compile(
    r"enumerate\(DataLoader\)|data_?-?load|load_?-?(data|batch)|(get|next|fetch|read)_?-?batch"
    r"|batch_?-?(get|next|fetch|load|wait)|input_?-?pipeline|data_?-?(iter|fetch|wait|time|prepar)",
    re.IGNORECASE,
)
_INPUT_WORDS = ("data", "batch", "pipeline")
_BLOCKING = re.compile(
    r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy(2D|3D|DtoH|WithStream)?$|^cuMemcpyDtoH"
)
_COPIES = re.compile(r"^(cuda|hip)Memcpy|^cuMemcpy")
_TO_PAGEABLE = re.compile(r"^Memcpy DtoH \(\w+ -> Pageable\)")
_OF_TORCH = re.compile(r"^aten::")
_EXCHANGED = re.compile(r"^(gloo|mpi|ucc):")
ONE_WAY = re.compile(rf"{_EXCHANGED.pattern}i?(send|recv)")  # lasts until it is waited for
ALLOCATES = re.compile(r"^(cuda|hip)(Malloc|Free)$|^(cu|hip)Mem(Create|Map|Unmap|Release)$")
_FREES = re.compile(r"^(cuda|hip)Free$|^(cu|hip)Mem(Unmap|Release)$")
_FIRST_USE = re.compile(
    r"^(cuda|hip|cu)(FuncGetAttributes|ModuleLoad|ModuleGet|LibraryLoad|LibraryGet|StreamCreate|MemPoolCreate)"
)
_LAUNCHES = re.compile(r"^(cuda|hip|cu)(Launch(Kernel|CooperativeKernel)|GraphLaunch|ModuleLaunch)|^hipExtModuleLaunch")
_CAPTURE = re.compile(r"^(cuda|hip|cu)Stream(Begin|End)Capture")
_MOSTLY = 0.5
_QUEUES = re.compile(r"Launch|^(cuda|hip)?Mem(cpy|set).*Async|^cuMem(cpy|set).*Async|^(cuda|hip|cu)EventRecord")
_QUEUES_WORDS = ("launch", "mem", "eventrecord")
_LONG_NAME = 2_000  # characters: names beyond it are not remembered
_MOST_NAMES = 1 << 14  # of which a pattern's results are
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})(?!\d)")


class HostRows(Struct, frozen=True, dict=True):
    """Rows of one trace's host events by what they are, in file order, each kind found when first asked for."""

    events: Events

    @cached_property
    def launches(self) -> Int:
        """Calls of the device's runtime or driver."""
        return self.events.in_cats(*LAUNCH_CATS).nonzero()[0]

    @cached_property
    def kernel_launches(self) -> Int:
        """Calls that launch a kernel or a graph of kernels."""
        return self._of_name(self.launches, named(self.events, _LAUNCHES))

    @property
    def captures_graphs(self) -> bool:
        """Whether most kernels were launched into a graph that was being captured: they did not run then."""
        calls = self._of_name(self.launches, named(self.events, _CAPTURE, ("capture",)))
        launched = self.kernel_launches
        if not len(calls) or not len(launched):
            return False
        begins = np.array(["BeginCapture" in self.events.names[name] for name in self.events.name[calls]])
        start, end = np.sort(self.events.ts[calls[begins]]), np.sort(self.events.ts[calls[~begins]])
        captured = sum(
            int(((self.events.ts[launched] >= begin) & (self.events.ts[launched] < over)).sum())
            for begin, over in zip(start.tolist(), end.tolist(), strict=False)
        )
        return captured > _MOSTLY * len(launched)

    @cached_property
    def exchanged(self) -> Int:
        """Notes of collectives that a backend runs on threads of its own; torch 1.11 has them as operators."""
        rows = rows_named(self.events, _EXCHANGED)
        return rows[self.events.in_cats(*ANNOTATION_CATS, *OPERATOR_CATS)[rows]]

    @property
    def blocking(self) -> Int:
        """Calls that return only when the device is done, but for those of a backend's own threads."""
        return self._blocking[0]

    @cached_property
    def copies_to_pageable(self) -> Int:
        """Calls that copy from the device into pageable memory: they return when that is done, whatever their name."""
        copies = rows_named(self.events, _TO_PAGEABLE)
        copies = self.events.correlation[copies[self.events.in_cats(*DEVICE_MEMORY_CATS)[copies]]]
        rows = self._of_name(self.launches, named(self.events, _COPIES))
        rows = rows[is_in(self.events.correlation[rows], copies[copies >= 0])]
        rows = rows[~begin_inside(self.events, rows, self.exchanged)]
        blocks = np.zeros(len(self.events), dtype=bool)
        blocks[self.blocking] = True
        return rows[~blocks[rows]]

    @cached_property
    def waiting(self) -> Int:
        """Calls that return only when the device is done: blocking ones, and copies into pageable memory."""
        return _together(self.blocking, self.copies_to_pageable)

    @property
    def waits_of_exchanges(self) -> Int:
        """Those of a backend's own threads: they wait for what goes round, and no work of the step waits for them."""
        return self._blocking[1]

    @cached_property
    def _blocking(self) -> tuple[Int, Int]:
        rows = self._of_name(self.launches, named(self.events, _BLOCKING))
        inside = begin_inside(self.events, rows, self.exchanged)
        return rows[~inside], rows[inside]

    @cached_property
    def allocations(self) -> Int:
        """Calls that take memory of the device from its driver, or give it back."""
        return self._of_name(self.launches, named(self.events, ALLOCATES))

    @cached_property
    def allocator_stretches(self) -> tuple[Int, Int, Int]:
        """When each such call begins and ends, with its thread; one that failed goes on to the last free behind it.

        torch waits in between for the events of freed blocks, which older versions of CUPTI do not record.
        """
        if not len(self.allocations):
            return self.allocations, self.allocations, self.allocations
        rows = self.launches[np.lexsort((self.events.ts[self.launches], self.events.tid[self.launches]))]
        tid, around = self.events.tid[rows], self.operator_around[rows]
        allocates, frees = is_in(rows, self.allocations), named(self.events, _FREES).take(self.events.name[rows])
        goes_on = (allocates & frees)[1:] & allocates[:-1] & (tid[1:] == tid[:-1])
        goes_on &= (around[1:] == around[:-1]) & (around[1:] >= 0)
        first, last = np.concatenate(([True], ~goes_on)) & allocates, np.concatenate((~goes_on, [True])) & allocates
        return self.events.ts[rows[first]], self.events.end[rows[last]], tid[first]

    @cached_property
    def first_uses(self) -> Int:
        """Calls that load kernels, or create what later calls use: they take long once in a process."""
        return self._of_name(self.launches, named(self.events, _FIRST_USE))

    @cached_property
    def may_wait(self) -> Int:
        """Blocking calls, and calls that copy: these return late where the memory is pageable, whatever their name."""
        return _together(self.blocking, self._of_name(self.launches, named(self.events, _COPIES)))

    def held_up(self, least_ns: int) -> Int:
        """Calls in which the host waited for the device: those that do, and launches this long."""
        if least_ns not in self._held_up:
            long = self.launches[self.events.dur.take(self.launches) >= least_ns]
            long = long[~begin_inside(self.events, long, self.exchanged)]
            queued = self._of_name(long, named(self.events, _QUEUES, _QUEUES_WORDS))
            self._held_up[least_ns] = _together(self.waiting, queued)
        return self._held_up[least_ns]

    @cached_property
    def _held_up(self) -> dict[int, Int]:
        """What was asked of `held_up` before."""
        return {}

    @cached_property
    def operators(self) -> Int:
        """Framework operators; older torch marked steps as operators, they are left out."""
        rows = self.events.in_cats(*OPERATOR_CATS).nonzero()[0]
        return self._of_name(rows, self._step_of_name < 0)

    @cached_property
    def nesting(self) -> Nesting:
        """How the operators lie in each other."""
        return find_nesting(self.events, self.operators)

    @cached_property
    def operator_around(self) -> Int:
        """By row the position in `nesting` of the innermost operator around a call of the runtime, or an operator; -1
        outside all, for other rows, and behind the last of them, where a launch that is not known is looked up."""
        found = np.full(len(self.events) + 1, -1, dtype=np.int64)
        found[self.nesting.rows] = self.nesting.parent
        found[self.launches] = self.nesting.innermost_around(self.launches)
        return found

    def readers(self, calls: Int) -> Int:
        """The rows of torch's operators right around these calls, of which all is waiting; the call where none is."""
        rows = np.append(self.nesting.rows, -1)[self.operator_around.take(calls)]
        of_torch = named(self.events, _OF_TORCH, ("aten::",)).take(self.events.name.take(rows))
        return np.where((rows >= 0) & of_torch, rows, calls)

    @cached_property
    def annotations(self) -> Int:
        """What the user and the framework named with `record_function`, the steps left out."""
        rows = self.events.in_cats(*ANNOTATION_CATS).nonzero()[0]
        return self._of_name(rows, self._step_of_name < 0)

    @property
    def compilations(self) -> Int:
        """What torch.compile names of its own work."""
        return self._of_name(self.annotations, named(self.events, COMPILES, ("dynamo_timed",)))

    @cached_property
    def inputs(self) -> Int:
        """Annotations and operators that say the thread is waiting for the next batch."""
        rows = rows_named(self.events, _INPUT, _INPUT_WORDS)
        return rows[self.events.in_cats(*ANNOTATION_CATS, *OPERATOR_CATS)[rows]]

    @cached_property
    def steps(self) -> tuple[Int, Int]:
        """Rows of the profiler's step annotations on the host and the step numbers, in time order."""
        numbers = self._step_of_name
        if not np.count_nonzero(numbers >= 0):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        rows = (numbers >= 0).take(self.events.name).nonzero()[0]
        rows = rows[~self.events.in_cats("gpu_user_annotation", *DEVICE_CATS)[rows]]
        rows = rows[self.events.ts[rows].argsort(kind="stable")]
        return rows, numbers[self.events.name[rows]]

    @cached_property
    def main_thread(self) -> int:
        """The thread the steps are marked on, or else the one with most operators."""
        marks = self.steps[0]
        values, counts = np.unique(self.events.tid[marks if len(marks) else self.operators], return_counts=True)
        return int(values[np.argmax(counts)]) if len(values) else -1

    @cached_property
    def _step_of_name(self) -> Int:
        """The number of the step that each name marks, -1 where it marks none."""
        return _steps_marked(self.events.names)

    def _of_name(self, rows: Int, wanted: NDArray[np.bool_]) -> Int:
        return rows[wanted.take(self.events.name.take(rows))]


def _together(some: Int, others: Int) -> Int:
    """Rows of either, in file order as both are."""
    return uniques(some, others) if len(some) and len(others) else others if len(others) else some


@lru_cache(maxsize=16)
def _steps_marked(names: tuple[str, ...]) -> Int:
    """The number of the step that each of these names marks, -1 where it marks none."""
    marks = (_STEP.match(name) for name in names)
    return np.array([int(mark.group(1)) if mark else -1 for mark in marks], dtype=np.int64)


def named(events: Events, pattern: re.Pattern[str], words: tuple[str, ...] = ()) -> NDArray[np.bool_]:
    """Which of the names the pattern finds; with `words`, every name that it can find has one of these, in any case.
    Names of kernels are long, and to look for a word first takes a tenth of the time. Ranks of a run have the same
    names, and most of them are asked for again."""
    return _found_in(events.names, pattern, words)


@lru_cache(maxsize=256)
def _found_in(names: tuple[str, ...], pattern: re.Pattern[str], words: tuple[str, ...]) -> NDArray[np.bool_]:
    if words and not any(map(_in_small(names).__contains__, words)):
        found = np.zeros(len(names), dtype=bool)
    elif len(names) > _MOST_NAMES:  # they are not all remembered, and no other rank has them
        found = np.array([pattern.search(name) is not None for name in names], dtype=bool)
    else:
        found = np.array(list(map(_finder(pattern, words).__getitem__, names)), dtype=bool)
    found.flags.writeable = False
    return found


@lru_cache(maxsize=4)
def _in_small(names: tuple[str, ...]) -> str:
    return "\n".join(names).lower()


class _Found(dict[str, bool]):
    """Whether the pattern finds a name; it remembers those that are not long."""

    def __init__(self, pattern: re.Pattern[str], words: tuple[str, ...]) -> None:
        self._pattern, self._words = pattern, words

    def __missing__(self, name: str) -> bool:
        lower = name.lower()
        found = (not self._words or any(word in lower for word in self._words)) and bool(self._pattern.search(name))
        if len(name) < _LONG_NAME:
            if len(self) >= _MOST_NAMES:
                self.clear()
            self[name] = found
        return found


_finder = cache(_Found)


def rows_named(events: Events, pattern: re.Pattern[str], words: tuple[str, ...] = ()) -> Int:
    """The rows whose name the pattern finds, in file order."""
    if (rows := events.rows_found.get(pattern)) is None:
        found = named(events, pattern, words)
        rows = found.take(events.name).nonzero()[0] if np.count_nonzero(found) else np.empty(0, dtype=np.int64)
        rows.flags.writeable = False
        events.rows_found[pattern] = rows
    return rows
