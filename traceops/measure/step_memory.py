"""What tensors held over the recorded steps, by the phases in which each allocation was made and freed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.core.words import KINDS_OF_MEMORY
from traceops.measure import host_rows
from traceops.traces.memory_events import MemoryEvents
from traceops.traces.model import Events

(BEFORE, FOR_BACKWARD, PAST_BACKWARD, BACKWARD_KEPT, OPTIMIZER_KEPT, FORWARD_TEMPORARY, BACKWARD_TEMPORARY,
 OPTIMIZER_TEMPORARY, UNKNOWN) = range(len(KINDS_OF_MEMORY))  # fmt: skip
_ONLY_ALLOCATES = re.compile(r"^aten::(new_)?(empty|resize)")
_MOST_OPERATORS = 5


class Maker(Struct, frozen=True):
    """An operator, None where none ran, and what its allocations of one kind held at a peak."""

    operator: str | None
    kind: int
    bytes: int
    blocks: int


class StepPeak(Struct, frozen=True):
    """A step's peak. at: the event after which most was held; held: bytes by kind then. first, stop: the step's events;
    begin: ns."""

    step: int | None
    at: int
    held: tuple[int, ...]
    makers: tuple[Maker, ...]
    first: int
    stop: int
    begin: int


class StepMemory(Struct, frozen=True):
    """Of one GPU in one trace: ts: ns of the events; held: bytes by kind (columns) after each (rows)."""

    device: int
    ts: Int
    held: Int
    steps: tuple[StepPeak, ...]


def measure_step_memory(memory: MemoryEvents, events: Events, recorded: Sequence[int] | None) -> StepMemory | None:
    """None where addresses are handed out twice, where more is freed than was there, or no step has an event. recorded:
    numbers of the steps that count, None: all. A trace without steps is one."""
    if (blocks := _blocks(memory)) is None:
        return None
    made, freed = blocks
    kinds = _kinds(made, freed, memory.ts, *_spans(events))
    delta = np.zeros((len(memory.ts), len(KINDS_OF_MEMORY)), dtype=np.int64)
    begun = made >= 0
    delta[made[begun], kinds[begun]] += memory.size[made[begun]]
    over = freed < len(memory.ts)
    delta[freed[over], kinds[over]] += memory.size[freed[over]]
    held = np.cumsum(delta, axis=0)
    held[:, BEFORE] += memory.held[0] - memory.size[0]
    if (held < 0).any():
        return None
    steps = []
    operators, tid = _Operators(events), memory.tid
    for number, begin, end in _steps(memory, events, recorded):
        first, stop = np.searchsorted(memory.ts, (begin, end)).tolist()
        if first == stop:
            continue
        begun_with = max(first - 1, 0)  # what the step finds may be the most
        at = begun_with + int(memory.held[begun_with:stop].argmax())
        there = np.flatnonzero(begun & (made <= at) & (freed > at))
        around = [operators.around(*one) for one in zip(tid[made[there]], memory.ts[made[there]], strict=True)]
        makers = _makers(memory, around, made[there], kinds[there])
        steps.append(StepPeak(number, at, tuple(held[at].tolist()), makers, first, stop, begin))
    return StepMemory(memory.device, memory.ts, held, tuple(steps)) if steps else None


def _blocks(memory: MemoryEvents) -> tuple[Int, Int] | None:
    """The events that made and freed each block: -1 for before the window, the number of events for not in it."""
    live: dict[int, int] = {}
    made, freed = [], []
    for at, (address, size) in enumerate(zip(memory.address.tolist(), memory.size.tolist(), strict=True)):
        if size > 0:
            if address in live:
                return None
            live[address] = at
        elif size < 0:
            begun = live.pop(address, -1)
            if begun >= 0 and memory.size[begun] != -size:
                return None
            made.append(begun)
            freed.append(at)
    made += live.values()
    freed += [len(memory.ts)] * len(live)
    return np.array(made, dtype=np.int64), np.array(freed, dtype=np.int64)


def _kinds(made: Int, freed: Int, ts: Int, backward: Int, optimizer: Int) -> Int:
    """The kind of each block; backward, optimizer: rows of begin and end, in order."""
    forever = np.iinfo(np.int64).max
    when = ts[np.maximum(made, 0)]
    gone = np.append(ts, forever)[freed]
    in_backward, backward_end = _inside(backward, when)
    in_optimizer, optimizer_end = _inside(optimizer, when)
    following = np.searchsorted(backward[:, 0], when, side="right")
    begin = np.append(backward[:, 0], forever)[following]
    end = np.append(backward[:, 1], forever)[following]
    return np.select(
        [made < 0, in_optimizer & (gone <= optimizer_end), in_optimizer, in_backward & (gone <= backward_end),
         in_backward, (begin == forever) & (gone == forever), gone <= begin, gone <= end],
        [BEFORE, OPTIMIZER_TEMPORARY, OPTIMIZER_KEPT, BACKWARD_TEMPORARY,
         BACKWARD_KEPT, UNKNOWN, FORWARD_TEMPORARY, FOR_BACKWARD],
        PAST_BACKWARD,
    )  # fmt: skip


def _inside(spans: Int, when: Int) -> tuple[NDArray[np.bool_], Int]:
    """Whether each moment lies in one of the spans, and where that ends."""
    if not len(spans):
        return np.zeros(len(when), dtype=bool), np.zeros(len(when), dtype=np.int64)
    at = np.searchsorted(spans[:, 0], when, side="right") - 1
    end = spans[at, 1]
    return (at >= 0) & (when <= end), end


def _spans(events: Events) -> tuple[Int, Int]:
    """When backward ran and when the optimizer's step did: begin and end, ns, rows in order. Backward begins anew where
    the thread that runs the program's operators began another between two of its functions."""
    rows = host_rows.rows_named(events, host_rows.BACKWARD_NAME)
    rows = rows[events.in_cats(*host_rows.OPERATOR_CATS)[rows]]
    functions = _merged(events.ts[rows], events.end[rows])
    own = host_rows.rows_named(events, host_rows.OPTIMIZER_NAME)
    own = own[events.in_cats(*host_rows.ANNOTATION_CATS)[own]]
    optimizer = _merged(events.ts[own], events.end[own])
    if not len(functions):
        return functions, optimizer
    others = np.flatnonzero(events.in_cats(*host_rows.OPERATOR_CATS))
    at = np.searchsorted(functions[:, 0], events.ts[others], side="right") - 1
    others = others[(at < 0) | (events.ts[others] > functions[at, 1])]
    if len(others):
        threads, count = np.unique(events.tid[others], return_counts=True)
        begun = np.sort(events.ts[others[events.tid[others] == threads[count.argmax()]]])
        before, after = (np.searchsorted(begun, functions[:, side]) for side in (0, 1))
        anew = np.append(True, before[1:] > after[:-1])
    else:
        anew = np.arange(len(functions)) == 0
    first = np.flatnonzero(anew)
    last = np.append(first[1:], len(functions)) - 1
    return np.stack([functions[first, 0], functions[last, 1]], axis=1), optimizer


def _merged(start: Int, end: Int) -> Int:
    """Spans without those that overlap: they are one."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1])[: len(start)])
    last = np.append(first[1:], len(start))[: len(first)] - 1
    return np.stack([start[first], reach[last]], axis=1)


def _steps(memory: MemoryEvents, events: Events, recorded: Sequence[int] | None) -> list[tuple[int | None, int, int]]:
    rows, numbers = host_rows.HostRows(events).steps
    if not len(rows):
        return [(None, int(memory.ts[0]), int(memory.ts[-1]) + 1)]
    return [
        (number, int(events.ts[row]), int(events.end[row]))
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
        if recorded is None or number in recorded
    ]


def _makers(memory: MemoryEvents, around: Sequence[str | None], made: Int, kinds: Int) -> tuple[Maker, ...]:
    """The operators whose allocations held most."""
    found: dict[tuple[str | None, int], list[int]] = defaultdict(list)
    for name, kind, size in zip(around, kinds.tolist(), memory.size[made].tolist(), strict=True):
        found[name, kind].append(size)
    makers = [Maker(name, kind, sum(sizes), len(sizes)) for (name, kind), sizes in found.items()]
    return tuple(sorted(makers, key=lambda one: (-one.bytes, one.operator or ""))[:_MOST_OPERATORS])


class _Operators:
    """Which operator ran around an event: the innermost of its thread that does more than to allocate."""

    def __init__(self, events: Events) -> None:
        nesting = host_rows.find_nesting(events, np.flatnonzero(events.in_cats(*host_rows.OPERATOR_CATS)))
        self._names = events.names
        self._name = events.name[nesting.rows]
        self._begin, self._end = events.ts[nesting.rows], events.end[nesting.rows]
        self._parent = nesting.parent
        self._thread = {}
        tid = events.tid[nesting.rows]
        first = np.flatnonzero(np.append(True, tid[1:] != tid[:-1])[: len(tid)])
        for start, stop in zip(first.tolist(), [*first[1:].tolist(), len(tid)], strict=False):
            self._thread[int(tid[start])] = (start, stop)

    def around(self, thread: int, when: int) -> str | None:
        start, stop = self._thread.get(thread, (0, 0))
        at = start + int(np.searchsorted(self._begin[start:stop], when, side="right")) - 1
        name: str | None = None
        while at >= start:
            if self._end[at] >= when:
                own: str = self._names[self._name[at]]
                if not _ONLY_ALLOCATES.match(own):
                    return own
                name = name or own
            at = int(self._parent[at])
        return name
