"""Whether gradients are synchronised while backward runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traceops.core.arrays import Int
from traceops.measure.activity import COMM, COMPUTE, Activity
from traceops.measure.host_rows import ANNOTATION_CATS, BACKWARD_NAME, OPERATOR_CATS, OPTIMIZER_NAME, rows_named
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

NO_BACKWARD = np.iinfo(np.int64).min
# Wrappers whose very purpose is to synchronise inside backward.
_PROMISES = re.compile(r"^(DistributedDataParallel\.forward|FullyShardedDataParallel\.forward|FSDP::)")


_DDP = re.compile(r"^DistributedDataParallel\.forward")
# The call that gives a collective to gloo's threads, which begin it when they have a core: maybe after backward.
_GIVEN = re.compile(r"^c10d::_?(allreduce|reduce_scatter|reduce_|alltoall)")


@dataclass(frozen=True)
class BackwardSync:
    """Steps with a backward pass, and those of them that launched a collective inside it.

    `promised_by` is the wrapper seen in the trace that promises to, '' where there is none.
    `passes` is how often a wrapped model ran forward in the median step, and `reduced` after how many of these as much
    was reduced in backward as after any other; 0 where a step has not one step of an optimizer.
    `device_end[k]` is when the last computation that step k's backward launched was over, ns; NO_BACKWARD
    where the step has none. `launches_known` is False where no launch of any collective is recorded.
    """

    steps_with_backward: int
    steps_synchronised: int
    promised_by: str
    device_end: Int
    launches_known: bool
    passes: int = 0
    reduced: int = 0

    @property
    def by_ddp(self) -> bool:
        """Whether DDP reduces the gradients, each inside of backward."""
        return self.promised_by.startswith("DistributedDataParallel")


def measure_backward_sync(events: Events, activity: Activity, steps: StepBounds) -> BackwardSync:
    """Count the steps in which a collective was launched between backward's first and last function."""
    backward = rows_named(events, BACKWARD_NAME)
    backward = backward[np.argsort(events.ts[backward], kind="stable")]
    begun, over = events.ts[backward], events.ts[backward] + events.dur[backward]
    order = activity.by_launch[activity.launch[activity.by_launch] >= 0]
    comm = order[activity.kind[order] == COMM]
    compute = order[activity.kind[order] == COMPUTE]
    comm_launched = asked = activity.launched[comm]
    if not activity.on_gpu:
        asked = np.sort(events.ts[rows_named(events, _GIVEN)])
        comm_launched = np.sort(np.concatenate((comm_launched, asked)))
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
    passes, reduced = _passes(events, steps, begun, over, asked)
    return BackwardSync(with_backward, synchronised, promise, device_end, known, passes, reduced)


def _passes(events: Events, steps: StepBounds, backward: Int, over: Int, asked: Int) -> tuple[int, int]:
    """How often DDP's model ran forward in the median step, and after how many of these backward reduced as much."""
    forward = np.sort(events.ts[rows_named(events, _DDP)])
    rows = rows_named(events, OPTIMIZER_NAME)
    updates = np.sort(events.ts[rows[events.in_cats(*ANNOTATION_CATS, *OPERATOR_CATS)[rows]]])
    found = []
    for start, end in zip(steps.host_start.tolist(), steps.host_end.tolist(), strict=True):
        own = _between(forward, start, end)
        update = updates[_between(updates, start, end)]
        if len(update) != 1 or own.start == own.stop:
            continue
        edges = [*forward[own].tolist(), int(update[0])]
        counts = []
        for pair in pairwise(edges):
            part = _between(backward, *pair)
            if part.start == part.stop:
                counts.append(0)
                continue
            inside = _between(asked, backward[part.start], over[part].max())
            counts.append(inside.stop - inside.start)
        found.append((len(counts), sum(count == max(counts) > 0 for count in counts)))
    passes, reduced = np.median(found, axis=0).tolist() if found else (0, 0)
    return int(passes), int(reduced)


def _between(moments: Int, first: int, last: int) -> slice:
    """Where in sorted moments those from `first` to `last` stand, both included."""
    return slice(int(np.searchsorted(moments, first)), int(np.searchsorted(moments, last, side="right")))
