"""Whether gradients are synchronised while backward runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traceops.analyses.activity import COMM, COMPUTE, Activity, matching_names
from traceops.analyses.steps import StepBounds
from traceops.model import Events, Int

NO_BACKWARD = np.iinfo(np.int64).min
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function")
# Wrappers whose very purpose is to synchronise inside backward.
_PROMISES = re.compile(r"^(DistributedDataParallel\.forward|FullyShardedDataParallel\.forward|FSDP::)")


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
    backward = np.flatnonzero(matching_names(events, _BACKWARD))
    comm = (activity.kind == COMM) & (activity.launch >= 0)
    launched = events.ts[activity.launch[comm]]
    with_backward = synchronised = 0
    compute = (activity.kind == COMPUTE) & (activity.launch >= 0)
    compute_launched, compute_end = events.ts[activity.launch[compute]], activity.end[compute]
    device_end = np.full(len(steps), NO_BACKWARD)
    for step, (start, end) in enumerate(zip(steps.host_start, steps.host_end, strict=True)):
        own = backward[(events.ts[backward] >= start) & (events.ts[backward] < end)]
        if len(own):
            with_backward += 1
            first, last = events.ts[own].min(), events.end[own].max()
            synchronised += bool(((launched >= first) & (launched <= last)).any())
            computed = compute_end[(compute_launched >= first) & (compute_launched <= last)]
            device_end[step] = computed.max() if len(computed) else NO_BACKWARD
    known = bool(comm.any()) or not (activity.kind == COMM).any()
    promise = next((name for name in events.names if _PROMISES.match(name)), "")
    return BackwardSync(with_backward, synchronised, promise, device_end, known)
