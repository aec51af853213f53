"""What the judgement of a rank's kernels finds, small enough to keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from traceops.compute.attainable import Roofs, Source
from traceops.compute.work import Kind
from traceops.traces.windows import unpack_part

Cause = Literal[
    "float32_products", "float32_training", "float64", "unfused_attention", "masked_attention", "misaligned_shape",
    "channels_first_layout", "layout_copies", "unfused_elementwise", "optimizer_loop", "many_small_kernels",
    "slice_gradients", "one_hot_product", "recompute_with_free_memory", "redundant_casts", "repeated_kv",
    "scatter_or_sort", "dense_embedding_gradient", "concat_growth", "large_float_logits", "too_small_batch",
    "low_occupancy", "bandwidth_bound_at_limit", "below_attainable",
]  # fmt: skip
OF_HOST = frozenset({"many_small_kernels", "too_small_batch"})  # causes only where the host limits the step
Bound = Literal["device", "host", "unclear"]  # of the step without a profiler, as far as the trace decides


class Loss(Struct, frozen=True):
    """One reason why kernels take longer than their work needs; times per step.

    device_ns: what the fix saves of the device's time. more_ns: what it may save besides, which the trace does not
    decide. ns: the time of the kernels in question. launches: of kernels that the fix removes. sizes: of the shape in
    question, by the cause: see `causes`. operators: by their time. place: its module and line, where the trace
    has them.
    """

    cause: Cause
    device_ns: float
    ns: float
    launches: float
    operators: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    more_ns: float = 0.0
    place: str = ""
    step_after_ns: tuple[float, float] = (0.0, 0.0)
    paced_ns: tuple[tuple[float, ...], ...] = ()  # replayed after the fix, at its best and at its least


Phase = Literal["forward", "backward", "optimizer"]


class KernelTime(Struct, frozen=True, gc=False):
    """A kernel that an operator launches, per step."""

    name: str
    launches: float
    ns: float


class OperatorTime(Struct, frozen=True, gc=False):
    """An operator's calls per step. flops, bytes, attainable_ns: per step; negative where they are not known. name:
    empty for all that is not listed by itself; known_ns is then the time of those whose work is known. place: as
    `uses.Place` has it. kernels: those that take most of its time."""

    name: str
    kind: Kind
    shape: str
    calls: float
    ns: float
    flops: float
    bytes: float
    attainable_ns: float
    cause: Cause | None
    known_ns: float = 0.0
    phase: Phase = "forward"
    module: str = ""
    line: str = ""
    kernels: tuple[KernelTime, ...] = ()


class KernelWork(Struct, frozen=True, gc=False):
    """A kernel's share of the work of the operators that launch it, per step, by its share of their time. operator: the
    one that it spends most time for. known_ns: its time in operators whose work is known."""

    name: str
    operator: str
    ns: float
    known_ns: float
    flops: float
    bytes: float
    attainable_ns: float
    cause: Cause | None


class Impossible(Struct, frozen=True):
    """An operator whose recorded time is too short for its work: so many times the data sheet's peak."""

    name: str
    times: float
    moves: bool  # memory's peak; else that of the units that compute


class KernelTables(Struct, frozen=True):
    """A rank's operators and kernels, those that take most time first."""

    operators: tuple[OperatorTime, ...] = ()
    kernels: tuple[KernelWork, ...] = ()


class RankCompute(Struct, frozen=True):
    """One rank's kernels per step. known_ns: the time of those whose work the trace tells, of which `attainable_ns`."""

    busy_ns: float
    known_ns: float
    attainable_ns: float
    device_ns: float  # in which the device runs anything, collectives too
    host_ns: float
    launches: float
    bound: Bound
    rates: Source
    losses: tuple[Loss, ...] = ()
    tables: bytes = b""  # `KernelTables`, packed: only those of the rank that stands for all are shown
    roofs: Roofs | None = None
    has_shapes: bool = True
    gpu: str = ""  # its name, "" where neither the trace nor the user tells
    impossible: tuple[Impossible, ...] = ()  # the farthest beyond the data sheet first
    paced_ns: tuple[float, ...] = ()  # the replayed step at the paces of `measure.paced_hosts`
    replayed: bool = False  # most of it by CUDA graphs, whose kernels have no operators and no shapes

    def unpacked(self) -> KernelTables:
        """Its operators and kernels; none where a file of somebody else's holds what we never write."""
        try:
            return unpack_part(self.tables, KernelTables) if self.tables else KernelTables()
        except ValueError:
            return KernelTables()

    @property
    def efficiency(self) -> float | None:
        """The share of what is attainable; None where too little of the work is known."""
        return self.attainable_ns / self.known_ns if self.known_ns > 0.5 * self.busy_ns > 0 else None


_ALIKE = 0.9  # of the busiest rank's time: ranks with about the same work


def judged_rank(ranks: Mapping[int, RankCompute]) -> int:
    """Whose kernels stand for all: of the ranks with the most work, the one whose collectives wait least."""
    most = max(one.busy_ns for one in ranks.values())
    busy = {rank: one for rank, one in ranks.items() if one.busy_ns >= _ALIKE * most}
    return min(busy, key=lambda rank: (busy[rank].device_ns - busy[rank].busy_ns, rank))
