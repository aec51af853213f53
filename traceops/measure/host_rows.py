"""Which rows of a trace are operators, launches, blocking calls, step marks and data loading."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, cached_property, lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, uniques
from traceops.measure.nesting import Nesting, begin_inside, find_nesting
from traceops.traces.model import Events

DEVICE_KERNEL_CATS = ("kernel", "concurrent_kernel", "mtia_ccp_events")
DEVICE_MEMORY_CATS = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
DEVICE_CATS = (*DEVICE_KERNEL_CATS, *DEVICE_MEMORY_CATS)
LAUNCH_CATS = ("cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "mtia_runtime", "xpu_runtime")
OPERATOR_CATS = ("cpu_op", "operator")
ANNOTATION_CATS = ("user_annotation",)
HOST_CATS = (*LAUNCH_CATS, *OPERATOR_CATS, *ANNOTATION_CATS, "python_function")

BACKWARD_NAME = re.compile(r"^autograd::engine::evaluate_function")
OPTIMIZER_NAME = re.compile(r"^Optimizer\.step#")
_INPUT = re.compile(
    r"enumerate\(DataLoader\)|data_?-?load|load_?-?(data|batch)|(get|next|fetch|read)_?-?batch"
    r"|batch_?-?(get|next|fetch|load|wait)|input_?-?pipeline|data_?-?(iter|fetch|wait|time|prepar)",
    re.IGNORECASE,
)
_INPUT_WORDS = ("data", "batch", "pipeline")
_BLOCKING = re.compile(
    r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy(2D|3D|DtoH)?$|^cuMemcpyDtoH"
)
_COPIES = re.compile(r"^(cuda|hip)Memcpy|^cuMemcpy")
_TO_PAGEABLE = re.compile(r"^Memcpy DtoH \(\w+ -> Pageable\)")
_EXCHANGED = re.compile(r"^(gloo|mpi|ucc):")
ONE_WAY = re.compile(rf"{_EXCHANGED.pattern}i?(send|recv)")  # lasts until it is waited for
_ALLOCATES = re.compile(r"^(cuda|hip)(Malloc|Free)$|^(cu|hip)Mem(Create|Map|Unmap|Release)$")
_FREES = re.compile(r"^(cuda|hip)Free$|^(cu|hip)Mem(Unmap|Release)$")
_FIRST_USE = re.compile(
    r"^(cuda|hip|cu)(FuncGetAttributes|ModuleLoad|ModuleGet|LibraryLoad|LibraryGet|StreamCreate|MemPoolCreate)"
)
_LAUNCHES = re.compile(r"^(cuda|hip|cu)(Launch(Kernel|CooperativeKernel)|GraphLaunch|ModuleLaunch)|^hipExtModuleLaunch")
_CAPTURE = re.compile(r"^(cuda|hip|cu)Stream(?P<which>Begin|End)Capture")
_MOSTLY = 0.5
_QUEUES = re.compile(r"Launch|^(cuda|hip)?Mem(cpy|set).*Async|^cuMem(cpy|set).*Async|^(cuda|hip|cu)EventRecord")
_QUEUES_WORDS = ("launch", "mem", "eventrecord")
_LONG_NAME = 2_000  # characters: names beyond it are not remembered
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})(?!\d)")


class HostRows(Struct, frozen=True, dict=True):
    """Rows of one trace's host events by what they are, in file order, each kind found when first asked for."""

    events: Events

    @cached_property
    def launches(self) -> Int:
        """Calls of the device's runtime or driver."""
        return np.flatnonzero(self.events.in_cats(*LAUNCH_CATS))

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
        begins = np.array([_which(self.events.names[name]) for name in self.events.name[calls]])
        start, end = np.sort(self.events.ts[calls[begins]]), np.sort(self.events.ts[calls[~begins]])
        captured = sum(
            int(((self.events.ts[launched] >= begin) & (self.events.ts[launched] < over)).sum())
            for begin, over in zip(start.tolist(), end.tolist(), strict=False)
        )
        return captured > _MOSTLY * len(launched)

    @cached_property
    def exchanged(self) -> Int:
        """Notes of collectives that a backend runs on the host, on threads of its own."""
        rows = rows_named(self.events, _EXCHANGED)
        return rows[self.events.in_cats(*ANNOTATION_CATS)[rows]]

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
        rows = rows[np.isin(self.events.correlation[rows], copies[copies >= 0])]
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
        return self._of_name(self.launches, named(self.events, _ALLOCATES))

    @cached_property
    def allocator_stretches(self) -> tuple[Int, Int, Int]:
        """When each such call begins and ends, with its thread; one that failed goes on to the last free behind it.

        torch waits in between for the events of freed blocks, which older versions of CUPTI do not record.
        """
        if not len(self.allocations):
            return self.allocations, self.allocations, self.allocations
        rows = self.launches[np.lexsort((self.events.ts[self.launches], self.events.tid[self.launches]))]
        tid, around = self.events.tid[rows], self.nesting.innermost_around(rows)
        allocates, frees = np.isin(rows, self.allocations), named(self.events, _FREES).take(self.events.name[rows])
        goes_on = (allocates & frees)[1:] & allocates[:-1] & (tid[1:] == tid[:-1])
        goes_on &= (around[1:] == around[:-1]) & (around[1:] >= 0)
        first, last = np.append(True, ~goes_on) & allocates, np.append(~goes_on, True) & allocates
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
            long = self.launches[self.events.dur[self.launches] >= least_ns]
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
        rows = np.flatnonzero(self.events.in_cats(*OPERATOR_CATS))
        return self._of_name(rows, self._step_of_name < 0)

    @cached_property
    def nesting(self) -> Nesting:
        """How the operators lie in each other."""
        return find_nesting(self.events, self.operators)

    @cached_property
    def annotations(self) -> Int:
        """What the user and the framework named with `record_function`, the steps left out."""
        rows = np.flatnonzero(self.events.in_cats(*ANNOTATION_CATS))
        return self._of_name(rows, self._step_of_name < 0)

    @cached_property
    def inputs(self) -> Int:
        """Annotations and operators that say the thread is waiting for the next batch."""
        rows = rows_named(self.events, _INPUT, _INPUT_WORDS)
        return rows[self.events.in_cats(*ANNOTATION_CATS, *OPERATOR_CATS)[rows]]

    @cached_property
    def steps(self) -> tuple[Int, Int]:
        """Rows of the profiler's step annotations on the host and the step numbers, in time order."""
        numbers = self._step_of_name
        if not (numbers >= 0).any():
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        rows = np.flatnonzero((numbers >= 0).take(self.events.name))
        rows = rows[~self.events.in_cats("gpu_user_annotation", *DEVICE_CATS)[rows]]
        rows = rows[np.argsort(self.events.ts[rows], kind="stable")]
        return rows, numbers[self.events.name[rows]]

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


def _which(name: str) -> bool:
    """Whether a call begins a capture."""
    found = _CAPTURE.match(name)
    return found is not None and found["which"] == "Begin"


def named(events: Events, pattern: re.Pattern[str], words: tuple[str, ...] = ()) -> NDArray[np.bool_]:
    """Which of the names the pattern finds; with `words`, every name that it can find has one of these, in any case.

    Names of kernels are long, and to look for a word first takes a tenth of the time. Ranks of a run have the same
    names, and most of them are asked for again.
    """
    return _found_in(events.names, pattern, words)


@lru_cache(maxsize=256)
def _found_in(names: tuple[str, ...], pattern: re.Pattern[str], words: tuple[str, ...]) -> NDArray[np.bool_]:
    found = np.array(list(map(_finder(pattern, words), names)), dtype=bool)
    found.flags.writeable = False
    return found


@cache
def _finder(pattern: re.Pattern[str], words: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a name is found; it remembers those that are not long."""

    def find(name: str) -> bool:
        lower = name.lower()
        return (not words or any(word in lower for word in words)) and bool(pattern.search(name))

    known = lru_cache(maxsize=1 << 14)(find)
    return lambda name: known(name) if len(name) < _LONG_NAME else find(name)


def rows_named(events: Events, pattern: re.Pattern[str], words: tuple[str, ...] = ()) -> Int:
    """The rows whose name the pattern finds, in file order."""
    found = named(events, pattern, words)
    return np.flatnonzero(found.take(events.name)) if found.any() else np.empty(0, dtype=np.int64)
