"""What ran on the device's lanes, of which class, and what launched it."""

from __future__ import annotations

import functools
import re
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.arrays import Int, Intervals, is_in, union, uniques
from traceops.measure import host_rows
from traceops.traces.model import Events

# What stands in front of a library's or a namespace's kernels, wherever it stands in the name.
_LIBRARIES = (
    r"(?<![a-z0-9_])(nccl|rccl|msccl|mscclpp|hccl|onccl|oneccl|uccl|xccl|ccl)(?=[_:]|dev|kernel|generic|all|reduce|broadcast|send)",
    r"nccldevkernel|ncclkernel|rccl_main_kernel",
    r"nvshmem|symm_mem|multimem_|userbuffers|deep_ep|dpsk::ep::|\bmori::|cross_device_reduce|quick_?reduce",
    r"(inter|intra)node(_ll)?::",
)
# What a collective is called. One that is part of a product (all-gather and GEMM in one kernel) computes too, and what
# threads of a block do among each other is none.
_VERBS = r"all_?reduce|all_?gather|reduce_?scatter|all_?(to|2)_?all"
_NOT = r"gemm|matmul|_mm_|(block|warp|thread|cta|group)_?(all_?reduce|all_?gather|reduce_?scatter|all_?(to|2)_?all)"
_LIBRARY, _VERB, _NONE = (re.compile(text) for text in ("|".join(_LIBRARIES), _VERBS, _NOT))  # of names in lower case
_WORDS = (
    "ccl", "nvshmem", "deep_ep", "multimem_", "symm_mem", "reduce", "all", "scatter", "dpsk::ep::", "node::",
    "node_ll::", "userbuffers", "mori::",
)  # fmt: skip


@functools.lru_cache(maxsize=65536)
def communicates(name: str) -> bool:
    """Whether a kernel of this name moves data between ranks: by its library, or by the collective in its name."""
    lower = name.lower()
    if not any(word in lower for word in _WORDS):
        return False
    return _LIBRARY.search(lower) is not None or (_VERB.search(lower) is not None and _NONE.search(lower) is None)


@functools.lru_cache(maxsize=64)
def own_pattern(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    """One pattern of a user's own, None for none. Raises ValueError naming the one that is no regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None


# Collectives that hosts run for what lies on their GPUs, as gloo does: copied to the host, exchanged, copied back.

_CALL = re.compile(r"^c10d::(?!.*wait)")
_TO_DEVICE = re.compile(r"HtoD|Host(ToDevice| -> Device)", re.IGNORECASE)


class HostCollectives(Struct, frozen=True):
    """Per collective the row of the backend's note, and when the ranks exchanged data, ns. `launch` is the call that
    asked for it, or the note itself where that is not known; `launched` when it had."""

    row: Int
    start: Int
    end: Int
    launch: Int
    launched: Int


def find_host_collectives(events: Events, host: host_rows.HostRows) -> HostCollectives | None:
    """The collectives of a rank with a GPU that its host runs; None where nothing tells when each was. The backend's
    thread first waits for the device, which may still compute what goes round: its note lasts longer than the exchange.
    That begins when the last such wait is over and ends with the first copy back to the device. A send or receive lasts
    until it is waited for: where there are such, nothing is known."""
    rows = host.exchanged
    if not len(rows) or np.count_nonzero(host_rows.named(events, host_rows.ONE_WAY).take(events.name[rows])):
        return None
    rows = rows[events.ts[rows].argsort(kind="stable")]
    # Each exchange begins after the thread's waits for the device and ends before it copies back.
    start, end = events.ts[rows].copy(), events.ts[rows] + events.dur[rows]
    copies = events.in_cats(*host_rows.DEVICE_MEMORY_CATS).nonzero()[0]
    back = events.correlation[copies[host_rows.named(events, _TO_DEVICE).take(events.name[copies])]]
    calls = host.launches[is_in(events.correlation[host.launches], back[back >= 0])]
    waits = host.waits_of_exchanges
    for tid in uniques(events.tid[rows]):
        own = (events.tid[rows] == tid).nonzero()[0]
        # Return the first of sorted moments at or after each of `since`; the end of time where there is none.
        moments = np.sort(events.ts[calls[events.tid[calls] == tid]])
        padded: Int = np.append(moments, np.iinfo(np.int64).max)
        first: Int = padded[moments.searchsorted(start[own])]
        end[own] = np.minimum(end[own], first)
        over = waits[events.tid[waits] == tid]
        over = np.sort(events.ts[over] + events.dur[over])
        last = over.searchsorted(end[own], side="right") - 1
        found = last >= 0
        start[own[found]] = np.maximum(start[own[found]], over[last[found]])
    launch = calls_of(events, rows)
    launched = np.where(launch == rows, events.ts[rows], events.ts[launch] + events.dur[launch])
    return HostCollectives(rows, start, end, launch, np.minimum(launched, start))


def calls_of(events: Events, rows: Int) -> Int:
    """The call of each collective, in the order of `rows`: its own row where they do not fit. A backend runs its
    collectives in the order in which they were called."""
    calls = host_rows.rows_named(events, _CALL)
    calls = calls[events.in_cats(*host_rows.OPERATOR_CATS)[calls]]
    calls = calls[events.ts[calls].argsort(kind="stable")]
    calls = calls[events.ts[calls] <= events.ts[rows[-1]]]
    most = min(len(rows), len(calls))
    found: Int = rows.copy()
    if most and (events.ts[calls[-most:]] <= events.ts[rows[-most:]]).all():
        found[-most:] = calls[-most:]
    return found


COMPUTE, COMM, MEMORY = 0, 1, 2

_CPU_COMM_FALLBACK = re.compile(r"^record_param_comms$")
_NOT_CPU_COMPUTE = re.compile(r"^(c10d::|_?c10d_functional|record_param_comms|(gloo|mpi|ucc|nccl):|ProfilerStep)")
# Autograd's own frames around operators: a hook that waits for communication waits inside them.
_CPU_WRAPPER = re.compile(r"^(autograd::|torch::autograd|torch::jit)|^[^:]*$")

# Operators that run on a GPU only: a trace without launches holds them where it recorded nothing but the CPU.
_ONLY_ON_GPU = re.compile(r"^(?:aten::)?_?(?:cudnn|miopen|mps)_(?!is_acceptable)")
# The first allocation on a GPU waits until its context is there; one on a CPU takes microseconds.
_ALLOCATION, _CONTEXT_NS = re.compile(r"^(?:aten::)?empty(?:_strided)?$"), 500_000_000
# Apple's GPU has this one, and of CPUs only nested tensors.
_ON_MPS, _NESTED = re.compile(r"^aten::linear_backward$"), re.compile("nested")
# What the host notes of collectives that run on GPUs only.
_NOTED = re.compile(r"^(?:nccl|rccl):")

_CELLS_A_CALL = 16  # ids spread wider than this are numbered anew before they index a table


class Activity(Struct, frozen=True, dict=True):
    """Intervals on device lanes, in the trace's order: GPU streams, or threads where there is no GPU. `launch` is the
    row of the host call that launched it, -1 where the trace holds none; `launched` when that call began, or else the
    activity itself. `host` has the rows of the host's events. `lost` says that the host launched kernels, or called
    operators that do, of which the trace holds none. `through_host`: the host runs the collectives of what is on its
    GPU (gloo); the row of one is the backend's note, which lasts longer, and it is launched when its call is over."""

    on_gpu: bool
    row: Int
    start: Int
    end: Int
    kind: NDArray[np.int8]
    launch: Int
    launched: Int
    host: host_rows.HostRows
    lost: bool = False
    through_host: bool = False

    @property
    def comm_on_gpu(self) -> bool:
        """Whether collectives run on the device, as kernels."""
        return self.on_gpu and not self.through_host

    def lane_of(self, events: Events, which: Int) -> Int:
        """The stream of each of these, or the thread of what runs on the host."""
        rows = self.row.take(which)
        if self.comm_on_gpu:
            return events.stream.take(rows)
        on_host = (self.kind[which] == COMM) | (not self.on_gpu)
        lane: Int = np.where(on_host, events.tid[rows], events.stream[rows])
        return lane

    def union_of(self, *kinds: int) -> Intervals:
        """Time in which an activity of one of these classes runs on any lane."""
        wanted = np.zeros(3, dtype=bool)
        wanted[list(kinds)] = True
        rows = self.by_start[wanted.take(self.kind.take(self.by_start))]
        return union(self.start.take(rows), self.end.take(rows))

    @cached_property
    def by_start(self) -> Int:
        """Positions in the order in which they began."""
        return self.start.argsort(kind="stable")

    @cached_property
    def by_launch(self) -> Int:
        """Positions in the order in which they were launched."""
        return self.launched.argsort(kind="stable")


def find_activity(events: Events, own_kernels: tuple[str, ...] = (), backend: str | None = None) -> Activity:
    """Device activity of one trace; CPU operators stand in for kernels where the trace has no GPU. `own_kernels` are
    patterns of kernels that communicate, beside those that are known. `backend`: the ranks'."""
    host = host_rows.HostRows(events)
    gpu = events.in_cats(*host_rows.DEVICE_CATS).nonzero()[0]
    lost = len(host.kernel_launches) > 0 and not np.count_nonzero(events.in_cats(*host_rows.DEVICE_KERNEL_CATS))
    if lost or not len(gpu):
        lost = lost or _runs_on_gpu(events)
        lost = lost or len(host_rows.rows_named(events, _NOTED)) > 0
        lost = lost or (backend == "nccl" and len(host_rows.rows_named(events, _CPU_COMM_FALLBACK)) > 0)
        return _cpu_activity(events, host, lost)
    start = events.ts.take(gpu)
    launch = _launch_of(events, gpu, host.launches)
    launched = np.where(launch >= 0, events.ts.take(launch), start)
    kind = np.full(len(gpu), COMPUTE, dtype=np.int8)
    own = own_pattern(own_kernels)
    known = [communicates(name) or (own is not None and own.search(name) is not None) for name in events.names]
    kind[np.array(known, dtype=bool).take(events.name.take(gpu))] = COMM
    if events.comm:
        said = np.zeros(len(events), dtype=bool)
        said[list(events.comm)] = True
        kind[said.take(gpu)] = COMM
    kind[events.in_cats(*host_rows.DEVICE_MEMORY_CATS).take(gpu)] = MEMORY
    found = Activity(True, gpu, start, start + events.dur.take(gpu), kind, launch, launched, host)
    if np.count_nonzero(kind == COMM) or (ran := find_host_collectives(events, host)) is None:
        return found
    return replace(
        found,
        row=np.concatenate((gpu, ran.row)),
        start=np.concatenate((start, ran.start)),
        end=np.concatenate((found.end, ran.end)),
        kind=np.concatenate((kind, np.full(len(ran.row), COMM, dtype=np.int8))),
        launch=np.concatenate((launch, ran.launch)),
        launched=np.concatenate((launched, ran.launched)),
        through_host=True,
    )


def _runs_on_gpu(events: Events) -> bool:
    """Whether the host calls operators that run on a GPU only, or waits for a GPU's context."""
    operators, allocations = events.in_cats(*host_rows.OPERATOR_CATS), host_rows.rows_named(events, _ALLOCATION)
    context = operators[allocations] & (events.dur[allocations] > _CONTEXT_NS)
    on_mps = operators[host_rows.rows_named(events, _ON_MPS)].any() and not len(host_rows.rows_named(events, _NESTED))
    return bool(operators[host_rows.rows_named(events, _ONLY_ON_GPU)].any() or context.any() or on_mps)


def _launch_of(events: Events, rows: Int, calls: Int) -> Int:
    """For each of the device's rows the call with its correlation id, -1 without one; of several the first."""
    calls = calls[events.correlation.take(calls) >= 0]
    if not len(calls):
        return np.full(len(rows), -1, dtype=np.int64)
    calls = calls.take(events.ts.take(calls).argsort(kind="stable"))
    ids, sought = events.correlation.take(calls), events.correlation.take(rows)
    least, span = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if span <= _CELLS_A_CALL * len(calls):
        ids, sought = ids - least, sought - least
    else:
        values, ids = np.unique(ids, return_inverse=True)
        place = values.searchsorted(sought)
        span = len(values)
        sought = np.where(values.take(np.minimum(place, span - 1)) == sought, place, -1)
    launch = np.full(span + 1, -1, dtype=np.int64)  # the last for what nobody launched
    launch[ids[::-1]] = calls[::-1]
    return launch.take(np.where((sought >= 0) & (sought < span), sought, span))


def _cpu_activity(events: Events, host: host_rows.HostRows, lost: bool) -> Activity:
    comm = host.exchanged
    if not len(comm):
        comm = host_rows.rows_named(events, _CPU_COMM_FALLBACK)
    if lost:  # the calls of a backend whose kernels are missing only launch them
        comm = comm[:0]
    ops = events.in_cats(*host_rows.OPERATOR_CATS).nonzero()[0]
    other = host_rows.named(events, _NOT_CPU_COMPUTE).take(events.name[ops])
    ops, calls = ops[~other], ops[other]
    wrapper = host_rows.named(events, _CPU_WRAPPER).take(events.name[ops])
    ops = ops[~wrapper] if not wrapper.all() else ops  # very old torch wrote operators without a namespace
    # An operator that calls a collective or waits for one (wait_tensor in DTensor's aten::addmm) does so inside.
    # Mark the rows in which one of `inner` begins on their thread.
    held = np.zeros(len(ops), dtype=bool)
    for tid in uniques(events.tid[calls]):
        mine = (events.tid[ops] == tid).nonzero()[0]
        begins = np.sort(events.ts[calls[events.tid[calls] == tid]])
        start, end = events.ts[ops[mine]], events.ts[ops[mine]] + events.dur[ops[mine]]
        held[mine] = begins.searchsorted(end) > begins.searchsorted(start)
    ops = ops[~held]
    # Work inside data loading (collating without workers) is input, and on a communication thread no compute.
    # A send or receive lasts until it is waited for, with work of its thread meanwhile.
    whole = comm[~host_rows.named(events, host_rows.ONE_WAY).take(events.name[comm])]
    ops = ops[~host_rows.begin_inside(events, ops, host.inputs) & ~host_rows.begin_inside(events, ops, whole)]
    lying = host_rows.find_nesting(events, ops)
    ops = np.sort(lying.rows[lying.outermost], kind="stable")
    rows = np.concatenate((ops, comm))
    kind = np.array([COMPUTE, COMM], dtype=np.int8).repeat((len(ops), len(comm)))
    start = events.ts[rows]
    return Activity(False, rows, start, start + events.dur[rows], kind, rows, start, host, lost)
