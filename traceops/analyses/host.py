"""What the host did inside the steps that keeps a device from work: blocking calls and data loading."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from traceops.analyses.activity import blocking_rows, input_rows, op_rows, step_rows, top_level
from traceops.analyses.steps import StepBounds
from traceops.intervals import union
from traceops.model import Events, Int

MOST_REGIONS = 60


@dataclass(frozen=True)
class BlockingCall:
    """A call that waits for the device, and the operator it was made from ('' outside any)."""

    call: str
    operator: str
    count: int
    total_ms: float


@dataclass(frozen=True)
class HostTime:
    """Per rank, over all its steps: blocking calls, most time first, data loading, and what the host was in.

    `regions` are annotations and outermost operators by name with their total in ms, most time first.
    """

    blocking: tuple[BlockingCall, ...]
    input_ms: float
    input_names: tuple[str, ...]
    regions: tuple[tuple[str, float], ...]


def measure_host(events: Events, steps: StepBounds) -> HostTime:
    """Blocking calls and data loading whose call began inside a step, on any thread."""
    blocking = _inside_steps(events, blocking_rows(events), steps)
    calls: Counter[tuple[str, str]] = Counter()
    spent: Counter[tuple[str, str]] = Counter()
    for row, operator in zip(blocking, _enclosing_ops(events, blocking), strict=True):
        key = (events.names[events.name[row]], operator)
        calls[key] += 1
        spent[key] += int(events.dur[row])
    loading = _inside_steps(events, input_rows(events), steps)
    return HostTime(
        blocking=tuple(
            BlockingCall(call, operator, calls[call, operator], ns / 1e6)
            for (call, operator), ns in spent.most_common()
        ),
        input_ms=union(events.ts[loading], events.end[loading]).total / 1e6,
        input_names=tuple(sorted({events.names[i] for i in events.name[loading]})),
        regions=_regions(events, steps),
    )


def _regions(events: Events, steps: StepBounds) -> tuple[tuple[str, float], ...]:
    """Total time by name of annotations and of operators inside no other operator, ms."""
    marks, _ = step_rows(events)
    ops = op_rows(events)
    notes = np.setdiff1d(np.flatnonzero(events.in_cats("user_annotation")), marks)
    rows = _inside_steps(events, np.concatenate((notes, ops[top_level(events, ops)])), steps)
    total = np.bincount(events.name[rows], weights=events.dur[rows], minlength=len(events.names))
    most = np.argsort(-total, kind="stable")[:MOST_REGIONS]
    return tuple((events.names[i], float(total[i]) / 1e6) for i in most if total[i] > 0)


def _inside_steps(events: Events, rows: Int, steps: StepBounds) -> Int:
    return rows[union(steps.host_start, steps.host_end).holds(events.ts[rows])]


def _enclosing_ops(events: Events, rows: Int) -> list[str]:
    """Name of the outermost operator around each row on its thread: `aten::item`, as the user wrote it."""
    ops = op_rows(events)
    found = [""] * len(rows)
    for tid in np.unique(events.tid[rows]):
        own = ops[events.tid[ops] == tid]
        own = own[np.lexsort((-events.dur[own], events.ts[own]))]
        start, end = events.ts[own], events.end[own]
        stack: list[int] = []
        position = 0
        for at in sorted(np.flatnonzero(events.tid[rows] == tid), key=lambda i: int(events.ts[rows[i]])):
            moment = int(events.ts[rows[at]])
            while position < len(own) and start[position] <= moment:
                while stack and end[stack[-1]] <= start[position]:
                    stack.pop()
                stack.append(position)
                position += 1
            while stack and end[stack[-1]] <= moment:
                stack.pop()
            if stack:
                found[at] = events.names[events.name[own[stack[0]]]]
    return found
