"""Passes: in which of its step each communication was launched, and those of an inference server.

Of a step they are forward, backward, after both, and after the update.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, median, union
from traceops.measure import host_rows
from traceops.measure.activity import COMM, COMPUTE, Activity, calls_of
from traceops.measure.exchanges import BACKWARD, FORWARD, NOTHING
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events

_WRAPPED = re.compile(r"^(DistributedDataParallel|FullyShardedDataParallel)\.forward")
AFTER = 2  # the last backward function of its step had begun: the optimizer's part
UPDATED = 3  # the optimizer's last step behind backward had ended: what goes round is no gradient


def find_phases(events: Events, activity: Activity, steps: StepBounds, comm: Int) -> NDArray[np.int8]:
    """FORWARD, BACKWARD, AFTER or UPDATED of the communications at positions `comm` of `activity`, else NOTHING. What
    was launched inside one of autograd's functions is backward. Of the rest, what comes before another of them in its
    step is forward, as between micro-batches. Where hosts run them a backend's own thread begins them some time later:
    there all that was called between the first and the last of autograd's functions is backward. Steps without a
    backward pass tell nothing."""
    phases = np.full(len(comm), NOTHING, dtype=np.int8)
    rows = host_rows.rows_named(events, host_rows.BACKWARD_NAME)
    rows = rows[events.in_cats(*host_rows.OPERATOR_CATS).take(rows)]
    if not len(rows) or not len(comm) or not len(steps):
        return phases
    begun = np.sort(events.ts.take(rows), kind="stable")
    step = steps.of_activity[comm]
    calls = np.maximum(activity.launch[comm], 0) if activity.on_gpu else _called(events, activity.row[comm])
    launched = activity.launched[comm] if activity.on_gpu else events.ts[calls]
    known = (step >= 0) & (step < len(steps))
    at = np.where(known, step, 0)
    first = begun.searchsorted(steps.host_start[at])
    stop = begun.searchsorted(steps.host_end[at])
    now = begun.searchsorted(launched, side="right")
    inside = (now > first) & (now < stop)
    if activity.comm_on_gpu:
        known &= activity.launch[comm] >= 0
        inside = host_rows.begin_inside(events, calls, rows)
    elif not activity.on_gpu:
        inside |= host_rows.begin_inside(events, calls, rows)  # the last function of all gives the last bucket
    phases[known] = FORWARD
    phases[known & (now >= stop)] = AFTER
    behind = begun[np.minimum(np.maximum(stop - 1, 0), len(begun) - 1)]
    phases[(phases == AFTER) & _updated(events, launched, behind, steps.host_end[at])] = UPDATED
    begins = (phases == FORWARD) & _before_forward(events, launched, steps.host_start[at], begun)
    phases[begins] = UPDATED
    phases[known & inside] = BACKWARD
    phases[known & (first >= stop)] = NOTHING
    return phases


def _called(events: Events, rows: Int) -> Int:
    """The call of each collective that a backend's thread runs, or its own row where that is not known."""
    order = events.ts[rows].argsort(kind="stable")
    called = np.empty(len(rows), dtype=np.int64)
    called[order] = calls_of(events, rows[order])
    return called


def _before_forward(events: Events, launched: Int, start: Int, backward: Int) -> NDArray[np.bool_]:
    """Whether a wrapped model's forward has not begun in the step, and an optimizer's step was later than backward. A
    step that ends where the optimizer's returns begins with what the program does behind it. backward: when each of
    autograd's functions began."""
    forward = np.sort(events.ts[host_rows.rows_named(events, _WRAPPED)])
    rows = host_rows.rows_named(events, host_rows.OPTIMIZER_NAME)
    ended = np.sort(events.ts[rows] + events.dur[rows], kind="stable")
    if not len(forward) or not len(ended):
        return np.zeros(len(launched), dtype=bool)
    updated = ended.searchsorted(launched, side="right") - 1
    passed = backward.searchsorted(launched) - 1
    none_begun = forward.searchsorted(start) == forward.searchsorted(launched)
    later = (passed < 0) | (ended[np.maximum(updated, 0)] > backward[np.maximum(passed, 0)])
    found: NDArray[np.bool_] = none_begun & (updated >= 0) & later
    return found


def _updated(events: Events, launched: Int, backward: Int, over: Int) -> NDArray[np.bool_]:
    """Whether an optimizer's step ended between `backward` and each launch, and none begins before the step is `over`.

    One that synchronises gradients itself does so before the step that it wraps; one that averages parameters, after.
    """
    rows = host_rows.rows_named(events, host_rows.OPTIMIZER_NAME)
    rows = rows[events.in_cats(*host_rows.ANNOTATION_CATS, *host_rows.OPERATOR_CATS)[rows]]
    if not len(rows):
        return np.zeros(len(launched), dtype=bool)
    begun, ended = np.sort(events.ts[rows], kind="stable"), np.sort(events.ts[rows] + events.dur[rows], kind="stable")
    before = ended.searchsorted(launched, side="right") - 1
    follows = begun.searchsorted(launched)
    more = (follows < len(begun)) & (begun[np.minimum(follows, len(begun) - 1)] < over)
    updated: NDArray[np.bool_] = (before >= 0) & (ended[np.maximum(before, 0)] > backward) & ~more
    return updated


NO_BACKWARD = np.iinfo(np.int64).min
# Wrappers whose very purpose is to synchronise inside backward.
_PROMISES = re.compile(r"^(DistributedDataParallel\.forward|FullyShardedDataParallel\.forward|FSDP::)")

_DDP = re.compile(r"^DistributedDataParallel\.forward")
# The call that gives a collective to gloo's threads, which begin it when they have a core: maybe after backward.
_GIVEN = re.compile(r"^c10d::_?(allreduce|reduce_scatter|reduce_|alltoall)")


class BackwardSync(Struct, frozen=True):
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
    backward = host_rows.rows_named(events, host_rows.BACKWARD_NAME)
    backward = backward.take(events.ts.take(backward).argsort(kind="stable"))
    begun, over = events.ts.take(backward), events.ts.take(backward) + events.dur.take(backward)
    order = activity.by_launch[activity.launch.take(activity.by_launch) >= 0]
    comm = order[activity.kind.take(order) == COMM]
    compute = order[activity.kind.take(order) == COMPUTE]
    given = np.sort(events.ts[host_rows.rows_named(events, _GIVEN)])  # also of what no kernel is known to be
    comm_launched = np.sort(np.concatenate((activity.launched[comm], given)))
    asked = activity.launched[comm] if activity.on_gpu else given
    compute_launched, compute_end = activity.launched.take(compute), activity.end.take(compute)
    with_backward = synchronised = 0
    device_end = np.full(len(steps), NO_BACKWARD)
    firsts, stops = begun.searchsorted(steps.host_start).tolist(), begun.searchsorted(steps.host_end).tolist()
    for step, (own, stop) in enumerate(zip(firsts, stops, strict=True)):
        if own < stop:
            with_backward += 1
            first, last = begun[own], over[own:stop].max()
            at = _between(comm_launched, first, last)
            synchronised += at.start < at.stop
            computed = compute_end[_between(compute_launched, first, last)]
            device_end[step] = computed.max(initial=NO_BACKWARD)
    # What gloo's threads begin behind backward may have been given to them inside it: only the calls tell.
    known = len(comm if activity.on_gpu else asked) > 0 or not np.count_nonzero(activity.kind == COMM)
    if not activity.on_gpu and any(name.startswith("nccl:") for name in events.names):
        known = False  # what NCCL ran is on the GPU, of which the trace holds nothing
    promise = next((name for name in events.names if _PROMISES.match(name)), "")
    passes, reduced = _passes(events, steps, begun, over, asked)
    return BackwardSync(with_backward, synchronised, promise, device_end, known, passes, reduced)


def _passes(events: Events, steps: StepBounds, backward: Int, over: Int, asked: Int) -> tuple[int, int]:
    """How often DDP's model ran forward in the median step, and after how many of these backward reduced as much."""
    forward = np.sort(events.ts[host_rows.rows_named(events, _DDP)])
    rows = host_rows.rows_named(events, host_rows.OPTIMIZER_NAME)
    updates = np.sort(events.ts[rows[events.in_cats(*host_rows.ANNOTATION_CATS, *host_rows.OPERATOR_CATS)[rows]]])
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
    passes, reduced = median(found, axis=0).tolist() if found else (0, 0)
    return int(passes), int(reduced)


def _between(moments: Int, first: int, last: int) -> slice:
    """Where in sorted moments those from `first` to `last` stand, both included."""
    return slice(int(moments.searchsorted(first)), int(moments.searchsorted(last, "right")))


PassKind = Literal["prefill", "decode", "mixed"]

# vLLM's execute_8192_context_9(sq8155…)_generation_37(…) and execute_context_0(0)_generation_8(8), its older
# execute_new_2_cached_5, SGLang's step[EXTEND bs=15 toks=15360]; or a plain prefill or decode, with a number.
_PASS = re.compile(
    r"^execute_(?:(?P<all>\d{1,9})_)?context_(?P<context>\d{1,9})(?:\((?:sq)?(?P<prompt>\d{1,9})[^)]*\))?"
    r"_generation_(?P<generation>\d{1,9})"
    r"|^execute_new_(?P<new>\d{1,9})_cached_(?P<cached>\d{1,9})"
    r"|^step\[(?P<mode>\w+)(?: bs=(?P<batch>\d{1,9}))?(?: toks=(?P<tokens>\d{1,9}))?"
    r"|^(?:run[_ ]|model[_ ]|execute_model\[)?(?P<plain>prefill|decode)(?:[_ ]?(?:step|batch|pass))?[\s#:_\d\]]*$",
    re.IGNORECASE,
)
_WORDS = ("execute_", "step[", "prefill", "decode")
_MODES: Mapping[str, PassKind] = {
    "extend": "prefill", "prefill": "prefill", "decode": "decode", "mixed": "mixed", "target_verify": "decode",
    "draft_extend": "decode",
}  # fmt: skip
_GRAPHS = re.compile(r"^(cuda|hip|cu)GraphLaunch")


class InferencePass(Struct, frozen=True):
    """One pass of a rank; ns. `requests` and `tokens` as its annotation says, None where it does not. `device_start` to
    `device_end` is from its first kernel's begin to its last one's end, `busy` how much of it the device ran something.
    `graphs`: launches of CUDA graphs. `idle_before`: the device ran nothing since the pass before, -1 for a first."""

    kind: PassKind
    requests: int | None
    tokens: int | None
    host_start: int
    host_end: int
    device_start: int
    device_end: int
    busy: int
    graphs: int
    idle_before: int


def find_passes(events: Events, activity: Activity) -> tuple[InferencePass, ...]:
    """The passes of one rank in time order, of the thread that has most; those without a kernel are left out."""
    rows = host_rows.rows_named(events, _PASS, _WORDS)
    rows = rows[events.in_cats(*host_rows.ANNOTATION_CATS)[rows]]
    if not len(rows) or not activity.on_gpu:
        return ()
    tids, counts = np.unique(events.tid[rows], return_counts=True)
    rows = rows[events.tid[rows] == tids[np.argmax(counts)]]
    rows = rows[np.lexsort((-events.dur[rows], events.ts[rows]))]
    over = np.maximum.accumulate(events.ts[rows] + events.dur[rows])
    rows = rows[np.concatenate(([True], events.ts[rows][1:] >= over[:-1]))]  # none inside another
    known = activity.by_launch[activity.launch[activity.by_launch] >= 0]
    launched = activity.launched[known]
    graphs = np.sort(events.ts[host_rows.rows_named(events, _GRAPHS)])
    runs = union(activity.start, activity.end)
    found: list[InferencePass] = []
    for row in rows.tolist():
        start, end = int(events.ts[row]), int(events.ts[row] + events.dur[row])
        first, last = launched.searchsorted((start, end))
        own = known[first:last]
        told = _told(events.names[events.name[row]])
        if not len(own) or told is None:
            continue
        at = graphs.searchsorted((start, end))
        begins = int(activity.start[own].min())
        ended = min(found[-1].device_end, begins) if found else begins
        idle = begins - ended - int(runs.within(np.array([ended]), np.array([begins]))[0])
        found.append(
            InferencePass(
                *told,
                host_start=start,
                host_end=end,
                device_start=begins,
                device_end=int(activity.end[own].max()),
                busy=union(activity.start[own], activity.end[own]).total,
                graphs=int(at[1] - at[0]),
                idle_before=idle if found else -1,
            )
        )
    return tuple(found)


def _told(name: str) -> tuple[PassKind, int | None, int | None] | None:
    """Kind, requests and tokens of a pass by its annotation; None for one that is no pass."""
    if (found := _PASS.match(name)) is None:
        return None
    if found["context"] is not None or found["new"] is not None:
        fresh, going = int(found["context"] or found["new"]), int(found["generation"] or found["cached"] or 0)
        kind: PassKind = "mixed" if fresh and going else "prefill" if fresh else "decode"
        tokens = int(found["all"]) if found["all"] else None
        if tokens is None and found["prompt"] is not None:
            tokens = int(found["prompt"]) + going
        return kind, fresh + going, tokens
    if found["plain"] is not None:
        return ("prefill" if found["plain"].lower() == "prefill" else "decode"), None, None
    if (mode := _MODES.get(found["mode"].lower())) is None:
        return None
    batch = None if found["batch"] is None else int(found["batch"])
    tokens = None if found["tokens"] is None else int(found["tokens"])
    return mode, batch, tokens if tokens is not None else batch if mode == "decode" else None
