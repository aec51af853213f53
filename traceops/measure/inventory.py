"""What one rank runs in a step: kernels, operators, collectives, blocking calls, with counts and time."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.activity import COMM, COMPUTE, MEMORY, Activity
from traceops.measure.exchanges import message_bytes
from traceops.measure.host_rows import Nesting, groups
from traceops.measure.steps import StepBounds
from traceops.traces.model import CommArgs, Events

KernelKind = Literal["compute", "comm", "memory"]

_MOST_BLOCKS = 1 << 40  # of one launch; sums over a trace stay within 64 bits

KIND_NAMES: dict[int, KernelKind] = {COMPUTE: "compute", COMM: "comm", MEMORY: "memory"}


class KernelStats(Struct, frozen=True, gc=False):
    """All launches of one name on one rank inside the steps; durations in µs. `blocks` are the thread blocks of all its
    launches together, -1 where the trace does not say. `grid` is that of its longest launch, an operator's input shapes
    on a CPU; empty where the trace does not say."""

    name: str
    kind: str
    count: int
    total_us: float
    min_us: float
    max_us: float
    blocks: int = -1
    grid: str = ""


_EVER = np.iinfo(np.int64).max


def measure_kernels(events: Events, activity: Activity, steps: StepBounds) -> tuple[KernelStats, ...]:
    """Statistics by name, most time first. Unlike HTA's, kernels beyond the tenth keep their own min and max."""
    inside = (steps.of_activity >= 0) & (steps.of_activity < len(steps))
    rows, kinds = activity.row[inside], activity.kind[inside]
    if not len(rows):
        return ()
    values, group = groups(events.name.take(rows), kinds)
    dur = (activity.end - activity.start)[inside]
    count = np.bincount(group, minlength=len(values))
    total = np.zeros(len(values), dtype=np.int64)
    np.add.at(total, group, dur)
    low = np.full(len(values), _EVER)
    np.minimum.at(low, group, dur)
    high = np.zeros(len(values), dtype=np.int64)
    np.maximum.at(high, group, dur)
    blocks = _blocks(events, rows, group, len(values)) if activity.on_gpu else np.full(len(values), -1)
    longest = np.zeros(len(values), dtype=np.int64)
    at = (dur == high.take(group)).nonzero()[0][::-1]  # of several the first
    longest[group[at]] = np.where(kinds[at] == MEMORY, -1, events.shape[rows[at]])
    order = (-total).argsort(kind="stable")
    shapes = (*events.shapes, "")
    return tuple(
        KernelStats(events.names[name], KIND_NAMES[kind], *known)
        for (name, kind), *known in zip(
            values[order].tolist(),
            count[order].tolist(),
            (total / 1000.0)[order].tolist(),
            (low / 1000.0)[order].tolist(),
            (high / 1000.0)[order].tolist(),
            blocks[order].tolist(),
            [shapes[shape] for shape in longest[order].tolist()],
            strict=True,
        )
    )


def _blocks(events: Events, rows: Int, group: Int, count: int) -> Int:
    """Thread blocks over the launches of each group, -1 where one of them has no grid."""
    of_shape = np.array([_blocks_of(shape) for shape in events.shapes] + [-1], dtype=np.int64)
    own = of_shape.take(events.shape.take(rows))
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, group, own)
    unknown = np.bincount(group[own < 0], minlength=count) > 0
    known: Int = np.where(unknown, -1, total)
    return known


def _blocks_of(grid: str) -> int:
    """Blocks of a grid such as '[8, 16, 1]'; -1 for what is no grid."""
    sizes = grid.strip("[] ").split(",")
    if len(sizes) != 3 or not all(size.strip().isdigit() for size in sizes):
        return -1
    blocks = math.prod(map(int, sizes))
    return blocks if 0 < blocks <= _MOST_BLOCKS else -1


MOST_KERNELS = 500
MOST_OPERATORS = 500


class KernelLaunches(Struct, frozen=True, gc=False):
    """Launches of one kernel from one operator, over the steps of one rank. `operator` is the innermost around the
    launch, '' outside any (on a CPU the operator itself runs). `place` is where in its step it is launched on average:
    0 the first launch, 1 the last."""

    name: str
    kind: KernelKind
    operator: str
    count: int
    device_ns: int
    place: float


class OperatorCalls(Struct, frozen=True, gc=False):
    """Calls of one operator with one set of input shapes ('' where they were not recorded). `host_ns` is the host's
    time inside it and in no operator that it calls; `device_ns` what the kernels took that it launched itself."""

    name: str
    shapes: str
    count: int
    host_ns: int
    device_ns: int


class CollectiveCalls(Struct, frozen=True):
    """Collectives of one kind and size. None where the trace does not say."""

    op: str
    group_size: int | None
    dtype: str | None
    elements: int | None
    bytes: int | None
    count: int
    kernel_ns: int


class RankInventory(Struct, frozen=True):
    """What one rank ran inside its steps, most time first; arrays have one number a step. `step_bytes` is -1 where a
    collective's size is not known. `step_blocking` counts calls that wait for the device."""

    kernels: tuple[KernelLaunches, ...]
    operators: tuple[OperatorCalls, ...]
    collectives: tuple[CollectiveCalls, ...]
    step_kernels: Int
    step_collectives: Int
    step_bytes: Int
    step_blocking: Int


def measure_inventory(events: Events, activity: Activity, steps: StepBounds) -> RankInventory:
    """Count everything that was launched in each step."""
    inside = (steps.of_activity >= 0) & (steps.of_activity < len(steps))
    collectives, step_bytes = _collectives(events, activity, steps, inside)
    work = inside & (activity.kind != COMM)
    nesting = activity.host.nesting
    launcher = np.where(work, activity.host.operator_around.take(activity.launch), -1)
    blocking = steps.on_host(events.ts[activity.host.blocking])
    return RankInventory(
        kernels=_kernels(events, activity, steps, work.nonzero()[0], nesting, launcher),
        operators=_operators(events, activity, steps, nesting, launcher),
        collectives=collectives,
        step_kernels=_per_step(steps.of_activity[work], steps),
        step_collectives=_per_step(steps.of_activity[inside & (activity.kind == COMM)], steps),
        step_bytes=step_bytes,
        step_blocking=_per_step(blocking[blocking >= 0], steps),
    )


def _kernels(
    events: Events, activity: Activity, steps: StepBounds, work: Int, nesting: Nesting, launcher: Int
) -> tuple[KernelLaunches, ...]:
    if not len(work):
        return ()
    rows = activity.row.take(work)
    op_name = np.full(len(work), -1, dtype=np.int64)
    has = launcher.take(work) >= 0
    op_name[has] = events.name.take(nesting.rows.take(launcher.take(work)[has]))
    values, group = groups(events.name.take(rows), activity.kind.take(work), op_name)
    count = np.bincount(group)
    device = np.zeros(len(values), dtype=np.int64)
    np.add.at(device, group, events.dur.take(rows))
    place = np.bincount(group, weights=_places(activity, steps, work)) / count
    most = (-device).argsort(kind="stable")[:MOST_KERNELS]
    return tuple(
        KernelLaunches(
            events.names[name],
            KIND_NAMES[kind],
            events.names[operator] if operator >= 0 else "",
            launches,
            device_ns,
            round(where, 4),
        )
        for (name, kind, operator), launches, device_ns, where in zip(
            values[most].tolist(), count[most].tolist(), device[most].tolist(), place[most].tolist(), strict=True
        )
    )


def _places(activity: Activity, steps: StepBounds, work: Int) -> NDArray[np.float64]:
    """Where in its step each is launched, from 0 to 1."""
    step = steps.of_activity.take(work)
    order = np.lexsort((activity.launched.take(work), step))
    size = np.bincount(step, minlength=len(steps))
    first = np.concatenate(([0], size.cumsum())).take(step.take(order))
    place = np.empty(len(work))
    place[order] = (np.arange(len(work)) - first) / np.maximum(size.take(step.take(order)) - 1, 1)
    return place


def _operators(
    events: Events, activity: Activity, steps: StepBounds, nesting: Nesting, launcher: Int
) -> tuple[OperatorCalls, ...]:
    ops = nesting.rows
    kept = (steps.on_host(events.ts.take(ops)) >= 0).nonzero()[0]
    if not len(kept):
        return ()
    device = np.zeros(len(ops), dtype=np.int64)
    if activity.on_gpu:
        launched = (launcher >= 0).nonzero()[0]
        np.add.at(device, launcher.take(launched), events.dur.take(activity.row.take(launched)))
    values, group = groups(events.name.take(ops.take(kept)), events.shape.take(ops.take(kept)))
    count = np.bincount(group)
    host_ns, device_ns = np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.int64)
    np.add.at(host_ns, group, nesting.own_time.take(kept))
    np.add.at(device_ns, group, device.take(kept))
    most = (-(host_ns + device_ns)).argsort(kind="stable")[:MOST_OPERATORS]
    return tuple(
        OperatorCalls(events.names[name], events.shapes[shape] if shape >= 0 else "", *numbers)
        for (name, shape), *numbers in zip(
            values[most].tolist(), count[most].tolist(), host_ns[most].tolist(), device_ns[most].tolist(), strict=True
        )
    )


def _collectives(
    events: Events, activity: Activity, steps: StepBounds, inside: NDArray[np.bool_]
) -> tuple[tuple[CollectiveCalls, ...], Int]:
    comm = (inside & (activity.kind == COMM)).nonzero()[0]
    uses: dict[tuple[str, int | None, str | None, int | None], tuple[int, int]] = {}
    total = [0] * len(steps)
    took = (activity.end[comm] - activity.start[comm]).tolist()
    rows = activity.row[comm]
    columns = (rows.tolist(), events.name[rows].tolist(), steps.of_activity[comm].tolist(), took)
    for row, name, step, ns in zip(*columns, strict=True):
        key = _kind_of(events.comm.get(row), events.names[name])
        nbytes = message_bytes(key[3], key[2])
        total[step] = -1 if nbytes is None or total[step] < 0 else total[step] + nbytes
        count, spent = uses.get(key, (0, 0))
        uses[key] = (count + 1, spent + ns)
    return (
        tuple(
            CollectiveCalls(*key, message_bytes(key[3], key[2]), count, spent)
            for key, (count, spent) in sorted(uses.items(), key=lambda item: -item[1][1])
        ),
        np.array(total, dtype=np.int64),
    )


def _kind_of(args: CommArgs | None, name: str) -> tuple[str, int | None, str | None, int | None]:
    """Operation, group size, type and elements (the larger of input and output) of one collective."""
    if args is None:
        return name, None, None, None
    given, made = args.elements_in, args.elements_out
    group_size = len(args.group_ranks) if args.group_ranks else args.group_size
    return args.op, group_size, args.dtype, made if given is None else given if made is None else max(given, made)


def _per_step(step: Int, steps: StepBounds) -> Int:
    count: Int = np.bincount(step, minlength=len(steps)).astype(np.int64)
    return count
