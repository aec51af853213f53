"""What each copy between host and device is for, as far as the trace tells."""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.activity import COMPUTE, Activity
from traceops.measure.host_rows import BACKWARD_NAME, rows_named
from traceops.measure.nesting import begin_inside
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

# input: to the device and not back, as batches and other data. output: to the host and not back, as predictions and
# checkpoints. offload: what goes out and comes back, as weights, gradients and activations that are kept on the host.
# values: small, to the host, as .item() reads them. exchange: around a collective that the host runs.
CopyPurpose = Literal["input", "output", "offload", "values", "exchange"]
_INPUT, _OUTPUT, _OFFLOAD, _VALUES, _EXCHANGE = range(5)

SMALL_BYTES = 1 << 16  # to the host: the reader waits for the kernels before, hardly for the copy
_SMALL_NS = 20_000  # where no size is known
_SEVERAL = 4  # tensors a step that go both ways
_OFFLOADS = re.compile(r"^FSDP::|offload|swap_(in|out)", re.IGNORECASE)
_EXCHANGES = re.compile(r"^(c10d::|_?c10d_functional|gloo:|record_param_comms)")


def find_purposes(
    events: Events, activity: Activity, steps: StepBounds, which: Int, to_device: NDArray[np.bool_], size: Int
) -> Int:
    """The place of each copy's purpose in CopyPurpose. `which`: positions in `activity`. size: bytes, -1: not known."""
    took = activity.end[which] - activity.start[which]
    found = np.where(to_device, _INPUT, _OUTPUT)
    small = ~to_device & np.where(size >= 0, size < SMALL_BYTES, took < _SMALL_NS)
    found[_kept_on_host(activity, steps, which, to_device, size) & ~small] = _OFFLOAD
    unsized = (size < 0) & (took >= _SMALL_NS)
    goes, each_way = _out_and_back(activity, steps, which[unsized], to_device[unsized])
    if each_way >= _SEVERAL:
        found[np.flatnonzero(unsized)[goes]] = _OFFLOAD
    found[_launched_in(events, activity, which, _rows_of_offload(events, activity)) & ~small] = _OFFLOAD
    found[small] = _VALUES
    found[_of_exchanges(events, activity, which)] = _EXCHANGE
    return found.astype(np.int64)


def _rows_of_offload(events: Events, activity: Activity) -> Int:
    """Functions of autograd, and ranges that say what they do."""
    backward = rows_named(events, BACKWARD_NAME)
    return np.union1d(backward, activity.host.annotations[_named(events, activity.host.annotations, _OFFLOADS)])


def _named(events: Events, rows: Int, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    known = np.array([bool(pattern.search(name)) for name in events.names], dtype=bool)
    return known[events.name[rows]]


def _launched_in(events: Events, activity: Activity, which: Int, rows: Int) -> NDArray[np.bool_]:
    """Which copies are launched inside one of these rows."""
    launch = activity.launch[which]
    inside: NDArray[np.bool_] = begin_inside(events, np.maximum(launch, 0), rows) & (launch >= 0)
    return inside


def _of_exchanges(events: Events, activity: Activity, which: Int) -> NDArray[np.bool_]:
    """Copies around collectives that the host runs: a backend's own calls, and its own streams of pinned memory."""
    if not activity.through_host:
        return np.zeros(len(which), dtype=bool)
    rows = np.flatnonzero(_named(events, np.arange(len(events)), _EXCHANGES))
    stream = events.stream[activity.row]
    kernels = np.unique(stream[activity.kind == COMPUTE])
    own_stream = ~np.isin(stream[which], kernels)
    pinned: NDArray[np.bool_] = np.array(["Pinned" in name for name in events.names], dtype=bool)[
        events.name[activity.row[which]]
    ]
    found: NDArray[np.bool_] = _launched_in(events, activity, which, rows) | (own_stream & pinned)
    return found


def _kept_on_host(
    activity: Activity, steps: StepBounds, which: Int, to_device: NDArray[np.bool_], size: Int
) -> NDArray[np.bool_]:
    """Copies of sizes that go both ways in a step: several of them, or to the host first.

    One tensor that comes before one of its size goes is an input and its output.
    """
    kept = np.zeros(len(which), dtype=bool)
    known = size >= SMALL_BYTES
    there = Counter(size[known & to_device].tolist())
    back = Counter(size[known & ~to_device].tolist())
    both = np.array(sorted(there.keys() & back.keys()), dtype=np.int64)
    if not len(both):
        return kept
    a_step = sum(min(there[one], back[one]) for one in both.tolist()) / max(len(steps), 1)
    for one in both.tolist():
        own = np.flatnonzero(size == one)
        if a_step >= _SEVERAL or _leaves_first(activity, steps, which[own], to_device[own]):
            kept[own] = True
    return kept


def _out_and_back(
    activity: Activity, steps: StepBounds, which: Int, to_device: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], float]:
    """Copies without sizes that leave in a step and those that come behind them, if most steps have both.

    What comes first in a step is its input, and what leaves last its results. With it how many go each way in the
    median step.
    """
    kept = np.zeros(len(which), dtype=bool)
    step = steps.of_activity[which]
    each_way = []
    numbers = np.unique(step)
    for number in numbers.tolist():
        own = np.flatnonzero(step == number)
        own = own[np.argsort(activity.launched[which[own]], kind="stable")]
        out, back = np.flatnonzero(~to_device[own]), np.flatnonzero(to_device[own])
        if not len(out) or not len(back) or back[-1] < out[0]:
            continue
        part = own[out[0] : back[-1] + 1]
        kept[part] = True
        each_way.append(min(int(to_device[part].sum()), int((~to_device[part]).sum())))
    if 2 * len(each_way) <= len(numbers):
        kept[:] = False
    return kept, float(np.median(each_way)) if each_way else 0.0


def _leaves_first(activity: Activity, steps: StepBounds, which: Int, to_device: NDArray[np.bool_]) -> bool:
    """Whether in most steps the first of these copies goes to the host."""
    step = steps.of_activity[which]
    order = np.lexsort((activity.launched[which], step))
    _, first = np.unique(step[order], return_index=True)
    return float((~to_device[order][first]).mean()) > 0.5
