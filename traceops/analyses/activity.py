"""What ran on the device's lanes, of which class, and what launched it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceops.intervals import Intervals, union
from traceops.model import Events, Int

COMPUTE, COMM, MEMORY = 0, 1, 2

_GPU_KERNEL = ("kernel", "concurrent_kernel", "mtia_ccp_events")
_GPU_MEMORY = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
_GPU_CATS = (*_GPU_KERNEL, *_GPU_MEMORY)
_LAUNCH_CATS = (
    "cuda_runtime",
    "cuda_driver",
    "runtime",
    "driver",
    "hip_runtime",
    "mtia_runtime",
    "xpu_runtime",
)
_CPU_OP_CATS = ("cpu_op", "operator")
_ANNOTATION_CATS = ("user_annotation",)

# Collective kernels by name: NCCL old and new, RCCL, MSCCL, NVSHMEM, symmetric memory, vLLM's and TensorRT-LLM's own.
_COMM_KERNEL = re.compile(
    r"^(void )?(nccl|rccl|msccl|nvshmem|deep_ep|onccl|hccl)|ncclDevKernel|ncclKernel|rccl_main_kernel"
    r"|nvshmem|multimem_|symm_mem|(one|two)_shot_all_?reduce|cross_device_reduce|all_?reduce.*(one|two)_?shot"
    r"|allreduce_fusion|quickreduce|custom_all_?reduce",
    re.IGNORECASE,
)
_CPU_COMM = re.compile(r"^(gloo|mpi|ucc):")
_CPU_COMM_FALLBACK = re.compile(r"^record_param_comms$")
_NOT_CPU_COMPUTE = re.compile(
    r"^(c10d::|_?c10d_functional|record_param_comms|(gloo|mpi|ucc|nccl):|ProfilerStep)"
)
# Autograd's own frames around operators: a hook that waits for communication waits inside them.
_CPU_WRAPPER = re.compile(r"^(autograd::|torch::autograd|torch::jit)|^[^:]*$")
_INPUT = re.compile(
    r"enumerate\(DataLoader\)|data_?-?load|load_?-?(data|batch)|(get|next|fetch|read)_?-?batch"
    r"|batch_?-?(get|next|fetch|load|wait)|input_?-?pipeline|data_?-?(iter|fetch|wait|time|prepar)",
    re.IGNORECASE,
)
_BLOCKING = re.compile(
    r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy(2D|3D|DtoH)?$|^cuMemcpyDtoH"
)

_QUEUES = re.compile(
    r"Launch|^(cuda|hip)?Mem(cpy|set).*Async|^cuMem(cpy|set).*Async|^(cuda|hip|cu)EventRecord"
)


@dataclass(frozen=True)
class Activity:
    """Intervals on device lanes, in the trace's order: GPU streams, or threads where there is no GPU.

    `launch` is the row of the host call that launched it, -1 where the trace holds none.
    """

    on_gpu: bool
    row: Int
    start: Int
    end: Int
    kind: NDArray[np.int8]
    launch: Int

    def union_of(self, *kinds: int) -> Intervals:
        """Time in which an activity of one of these classes runs on any lane."""
        mask = np.isin(self.kind, kinds)
        return union(self.start[mask], self.end[mask])


def find_activity(events: Events) -> Activity:
    """Device activity of one trace; CPU operators stand in for kernels where the trace has no GPU."""
    gpu = np.flatnonzero(events.in_cats(*_GPU_CATS))
    return _gpu_activity(events, gpu) if len(gpu) else _cpu_activity(events)


def matching_names(events: Events, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Mask of the rows whose name the pattern finds."""
    hits = np.array([bool(pattern.search(name)) for name in events.names], dtype=bool)
    return hits[events.name] if len(hits) else np.zeros(len(events), dtype=bool)


def input_rows(events: Events) -> Int:
    """Rows of annotations that say the thread is waiting for the next batch."""
    return np.flatnonzero(events.in_cats(*_ANNOTATION_CATS, *_CPU_OP_CATS) & matching_names(events, _INPUT))


def blocking_rows(events: Events) -> Int:
    """Rows of host calls that return only when the device is done."""
    return np.flatnonzero(events.in_cats(*_LAUNCH_CATS) & matching_names(events, _BLOCKING))


def held_up_rows(events: Events, least_ns: int) -> Int:
    """Rows of host calls in which the host waited for the device: blocking ones, and launches this long."""
    queued = matching_names(events, _QUEUES) & (events.dur >= least_ns)
    waits = matching_names(events, _BLOCKING) | queued
    return np.flatnonzero(events.in_cats(*_LAUNCH_CATS) & waits)


def op_rows(events: Events) -> Int:
    """Rows of framework operators on the host."""
    steps, _ = step_rows(events)  # older torch marked steps as operators
    operators = events.in_cats(*_CPU_OP_CATS)
    operators[steps] = False
    return np.flatnonzero(operators)


def step_rows(events: Events) -> tuple[Int, Int]:
    """Rows of the profiler's step annotations on the host and the step numbers, in time order."""
    numbers = np.array([_step_number(name) for name in events.names], dtype=np.int64)
    if not len(numbers):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    rows = np.flatnonzero((numbers[events.name] >= 0) & ~events.in_cats("gpu_user_annotation", *_GPU_CATS))
    rows = rows[np.argsort(events.ts[rows], kind="stable")]
    return rows, numbers[events.name[rows]]


def _step_number(name: str) -> int:
    match = re.match(r"ProfilerStep\s*#\s*(\d{1,18})(?!\d)", name)
    return int(match.group(1)) if match else -1


def _gpu_activity(events: Events, rows: Int) -> Activity:
    kind = np.full(len(rows), COMPUTE, dtype=np.int8)
    kind[matching_names(events, _COMM_KERNEL)[rows]] = COMM
    if events.comm:
        kind[np.isin(rows, np.fromiter(events.comm, dtype=np.int64))] = COMM
    kind[events.in_cats(*_GPU_MEMORY)[rows]] = MEMORY
    launches = np.flatnonzero(events.in_cats(*_LAUNCH_CATS) & (events.correlation >= 0))
    return Activity(True, rows, events.ts[rows], events.end[rows], kind, _launch_of(events, rows, launches))


def _launch_of(events: Events, rows: Int, launches: Int) -> Int:
    if not len(launches):
        return np.full(len(rows), -1, dtype=np.int64)
    ids = events.correlation[launches]
    order = np.lexsort((events.ts[launches], ids))  # of several calls with one id the first launched it
    ids, launches = ids[order], launches[order]
    at = np.searchsorted(ids, events.correlation[rows])
    found = (at < len(ids)) & (events.correlation[rows] >= 0)
    at = np.minimum(at, len(ids) - 1)
    found &= ids[at] == events.correlation[rows]
    return np.where(found, launches[at], -1)


def _cpu_activity(events: Events) -> Activity:
    annotations = events.in_cats(*_ANNOTATION_CATS)
    comm = np.flatnonzero(annotations & matching_names(events, _CPU_COMM))
    if not len(comm):
        comm = np.flatnonzero(matching_names(events, _CPU_COMM_FALLBACK))
    ops = np.flatnonzero(events.in_cats(*_CPU_OP_CATS) & ~matching_names(events, _NOT_CPU_COMPUTE))
    wrapper = matching_names(events, _CPU_WRAPPER)[ops]
    ops = ops[~wrapper] if not wrapper.all() else ops  # very old torch wrote operators without a namespace
    # Work inside data loading (collating without workers) is input, and on a communication thread no compute.
    ops = ops[~_inside(events, ops, input_rows(events)) & ~_inside(events, ops, comm)]
    ops = ops[top_level(events, ops)]
    rows = np.concatenate((ops, comm))
    kind = np.repeat(np.array([COMPUTE, COMM], dtype=np.int8), (len(ops), len(comm)))
    return Activity(False, rows, events.ts[rows], events.end[rows], kind, rows)


def _inside(events: Events, rows: Int, parents: Int) -> NDArray[np.bool_]:
    """Which rows start inside one of the parents on the same thread."""
    inside = np.zeros(len(rows), dtype=bool)
    for tid in np.unique(events.tid[parents]):
        own = parents[events.tid[parents] == tid]
        held = union(events.ts[own], events.end[own]).holds(events.ts[rows])
        inside |= held & (events.tid[rows] == tid)
    return inside


def top_level(events: Events, rows: Int) -> NDArray[np.bool_]:
    """Which of the rows no other row on the same thread contains."""
    top = np.zeros(len(rows), dtype=bool)
    order = np.lexsort((-events.dur[rows], events.ts[rows], events.tid[rows]))
    tids, ends = events.tid[rows][order], events.end[rows][order]
    starts = events.ts[rows][order]
    for tid in np.unique(tids):
        own = tids == tid
        reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends[own])[:-1]))
        top[order[own]] = starts[own] >= reach
    return top
