"""What the host did inside the steps that keeps a device from work: blocking calls and data loading."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.core.intervals import union
from traceops.measure.grouping import groups
from traceops.measure.host_rows import BACKWARD_NAME, OPTIMIZER_NAME, HostRows, rows_named
from traceops.measure.recording import recording_at_most
from traceops.measure.steps import StepBounds
from traceops.measure.typical import typical_steps
from traceops.traces.model import Events, TraceMeta

MOST_REGIONS = 60
_WAITS = re.compile(r"^_c10d_functional(_autograd)?::wait_tensor$")
MOST_EXTRA = 12  # regions kept of a step that is unlike the others


@dataclass(frozen=True)
class BlockingCall:
    """A call that waits for the device, and the operator it was made from ('' outside any).

    usual: how often it comes in one of the rank's typical steps.
    """

    call: str
    operator: str
    count: int
    total_ms: float
    usual: float


@dataclass(frozen=True)
class ExtraRegion:
    """What the host was in longer, in a step that takes far longer than the rank's others.

    `ms` is its time in that step beyond what it takes in a typical one, `first_use_ms` what of that step's time in it
    goes to calls that load kernels, or create what later calls use.
    """

    step: int
    name: str
    ms: float
    first_use_ms: float = 0.0


@dataclass(frozen=True)
class HostTime:
    """Per rank, over all its steps: blocking calls, most time first, data loading, and what the host was in.

    `regions` are annotations and outermost operators by name with their total in ms, most time first.
    `extra` has what grew in each step that is unlike the others, most first. `allocating` has calls that take memory
    from the device's driver or give it back, as `blocking`. `recording` has the most that recording takes of each step,
    ns; empty where the trace has no event of a host.
    `closure`: an optimizer's step holds a backward pass, so it calls a closure, and its time is not its own.
    """

    blocking: tuple[BlockingCall, ...]
    input_ms: float
    input_names: tuple[str, ...]
    regions: tuple[tuple[str, float], ...]
    extra: tuple[ExtraRegion, ...] = ()
    allocating: tuple[BlockingCall, ...] = ()
    recording: tuple[int, ...] = ()
    closure: bool = False


def measure_host(host: HostRows, steps: StepBounds, meta: TraceMeta) -> HostTime:
    """Blocking calls and data loading whose call began inside a step, on any thread."""
    events = host.events
    loading = _inside_steps(events, host.inputs, steps)
    return HostTime(
        blocking=_blocking(host, _inside_steps(events, host.blocking, steps), steps),
        input_ms=union(events.ts[loading], events.ts[loading] + events.dur[loading]).total / 1e6,
        input_names=tuple(sorted({events.names[i] for i in events.name[loading]})),
        regions=_regions(host, steps),
        extra=_extra_regions(host, steps),
        allocating=_blocking(host, _inside_steps(events, host.allocations, steps), steps),
        recording=recording_at_most(host, steps, meta),
        closure=_calls_closure(events),
    )


def _blocking(host: HostRows, rows: Int, steps: StepBounds) -> tuple[BlockingCall, ...]:
    """The calls by name and by the outermost operator around them: `aten::item`, as the user wrote it."""
    if not len(rows):
        return ()
    events = host.events
    around = host.nesting.outermost_around(rows)
    operator = np.full(len(rows), -1)
    operator[around >= 0] = events.name[host.nesting.rows[around[around >= 0]]]
    if "" in events.names:
        operator[operator == events.names.index("")] = -1
    values, group = groups(events.name[rows], operator)
    count = np.bincount(group)
    spent = np.zeros(len(values), dtype=np.int64)
    np.add.at(spent, group, events.dur[rows])
    first = np.full(len(values), len(rows))
    np.minimum.at(first, group, np.arange(len(rows)))
    typical = typical_steps(np.diff(steps.edges))
    usual = np.bincount(group[typical[_step_of(events, rows, steps)]], minlength=len(values))
    return tuple(
        BlockingCall(
            events.names[values[i, 0]],
            events.names[values[i, 1]] if values[i, 1] >= 0 else "",
            int(count[i]),
            int(spent[i]) / 1e6,
            int(usual[i]) / max(int(typical.sum()), 1),
        )
        for i in np.lexsort((first, -spent))
    )


def _regions(host: HostRows, steps: StepBounds) -> tuple[tuple[str, float], ...]:
    """Total time by name of annotations and of operators inside no other operator, ms.

    Without what an operator waits inside for a collective: DTensor's `aten::add` does so where its operand is partial.
    """
    events, rows = host.events, _inside_steps(host.events, _region_rows(host), steps)
    total = np.bincount(events.name[rows], weights=events.dur[rows], minlength=len(events.names))
    waits = _inside_steps(events, rows_named(events, _WAITS), steps)
    around = host.nesting.outermost_around(waits)
    waits, around = waits[around >= 0], host.nesting.rows[around[around >= 0]]
    np.subtract.at(total, events.name[around], events.dur[waits])
    most = np.argsort(-total, kind="stable")[:MOST_REGIONS]
    return tuple((events.names[i], float(total[i]) / 1e6) for i in most if total[i] > 0)


def _calls_closure(events: Events) -> bool:
    """Whether backward passes run within steps of an optimizer, as of LBFGS, or in Lightning."""
    steps, backward = rows_named(events, OPTIMIZER_NAME), rows_named(events, BACKWARD_NAME)
    return bool(union(events.ts[steps], events.end[steps]).holds(events.ts[backward]).any())


def _region_rows(host: HostRows) -> Int:
    """Annotations, and operators inside no other operator."""
    nesting = host.nesting
    return np.concatenate((host.annotations, np.sort(nesting.rows[nesting.outermost])))


def _extra_regions(host: HostRows, steps: StepBounds) -> tuple[ExtraRegion, ...]:
    """The regions that grew in steps unlike the others, by step, most growth first."""
    typical = typical_steps(np.diff(steps.edges))
    if typical.all():
        return ()
    events, rows = host.events, _inside_steps(host.events, _region_rows(host), steps)
    step = _step_of(events, rows, steps)
    uses = _inside_steps(events, host.first_uses, steps)
    used_in = _step_of(events, uses, steps)
    usual = _totals(events, rows[typical[step]]) / max(int(typical.sum()), 1)
    found: list[ExtraRegion] = []
    for odd in np.flatnonzero(~typical).tolist():
        more = _totals(events, rows[step == odd]) - usual
        most = np.argsort(-more, kind="stable")[:MOST_EXTRA]
        number, first = int(steps.number[odd]), _first_use(host, uses[used_in == odd])
        found += [
            ExtraRegion(number, events.names[i], float(more[i]) / 1e6, float(first[i]) / 1e6)
            for i in most
            if more[i] > 0
        ]
    return tuple(found)


def _first_use(host: HostRows, uses: Int) -> NDArray[np.float64]:
    """Time in these calls by the name of the outermost operator around them, ns."""
    events, around = host.events, host.nesting.outermost_around(uses)
    total = np.zeros(len(events.names))
    inside = around >= 0
    np.add.at(total, events.name[host.nesting.rows[around[inside]]], events.dur[uses[inside]])
    return total


def _step_of(events: Events, rows: Int, steps: StepBounds) -> Int:
    """The step in which each of these rows began."""
    step: Int = np.searchsorted(steps.host_start, events.ts[rows], side="right") - 1
    return step


def _totals(events: Events, rows: Int) -> NDArray[np.float64]:
    """Time by name, ns."""
    total = np.bincount(events.name[rows], weights=events.dur[rows], minlength=len(events.names))
    return total.astype(np.float64)


def _inside_steps(events: Events, rows: Int, steps: StepBounds) -> Int:
    return rows[union(steps.host_start, steps.host_end).holds(events.ts[rows])]
