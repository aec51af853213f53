"""Whether gradients are synchronised while backward runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traceops.core.arrays import Int
from traceops.measure.activity import COMM, COMPUTE, Activity
from traceops.measure.host_rows import BACKWARD_NAME, rows_named
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

NO_BACKWARD = np.iinfo(np.int64).min
# Wrappers whose very purpose is to synchronise inside backward.
_PROMISES = re.compile(r"^(DistributedDataParallel\.forward|FullyShardedDataParallel\.forward|FSDP::)")


# The call that gives a collective to gloo's threads, which begin it when they have a core: maybe after backward.
_GIVEN = re.compile(r"^c10d::_?(allreduce|reduce_scatter|reduce_|alltoall)")


@dataclass(frozen=True)
class BackwardSync:
    """Steps with a backward pass, and those of them that launched a collective inside it.

    `promised_by` is the wrapper seen in the trace that promises to, '' where there is none.
    `device_end[k]` is when the last computation that step k's backward launched was over, ns; NO_BACKWARD
    where the step has none. `launches_known` is False where no launch of any collective is recorded.
    """

    steps_with_backward: int
    steps_synchronised: int
    promised_by: str
    device_end: Int
    launches_known: bool


def measure_backward_sync(events: Events, activity: Activity, steps: StepBounds) -> BackwardSync:
    """Count the steps in which a collective was launched between backward's first and last function."""
    backward = rows_named(events, BACKWARD_NAME)
    backward = backward[np.argsort(events.ts[backward], kind="stable")]
    begun, over = events.ts[backward], events.ts[backward] + events.dur[backward]
    order = activity.by_launch[activity.launch[activity.by_launch] >= 0]
    comm = order[activity.kind[order] == COMM]
    compute = order[activity.kind[order] == COMPUTE]
    comm_launched = activity.launched[comm]
    if not activity.on_gpu:
        comm_launched = np.sort(np.concatenate((comm_launched, events.ts[rows_named(events, _GIVEN)])))
    compute_launched, compute_end = activity.launched[compute], activity.end[compute]
    with_backward = synchronised = 0
    device_end = np.full(len(steps), NO_BACKWARD)
    for step, (start, end) in enumerate(zip(steps.host_start, steps.host_end, strict=True)):
        own, stop = np.searchsorted(begun, (start, end))
        if own < stop:
            with_backward += 1
            first, last = begun[own], over[own:stop].max()
            at = _between(comm_launched, first, last)
            synchronised += at.start < at.stop
            computed = compute_end[_between(compute_launched, first, last)]
            device_end[step] = computed.max(initial=NO_BACKWARD)
    known = len(comm) > 0 or not (activity.kind == COMM).any()
    if not activity.on_gpu and any(name.startswith("nccl:") for name in events.names):
        known = False  # what NCCL ran is on the GPU, of which the trace holds nothing
    promise = next((name for name in events.names if _PROMISES.match(name)), "")
    return BackwardSync(with_backward, synchronised, promise, device_end, known)


def _between(moments: Int, first: int, last: int) -> slice:
    """Where in sorted moments those from `first` to `last` stand, both included."""
    return slice(int(np.searchsorted(moments, first)), int(np.searchsorted(moments, last, side="right")))
