"""What may mark the iterations of a trace without profiler steps: annotations, optimizers, loaders, backward passes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from traceops.core.arrays import Int
from traceops.core.words import StepsBy
from traceops.measure.activity import Activity
from traceops.measure.host_rows import ANNOTATION_CATS, BACKWARD_NAME, OPERATOR_CATS, OPTIMIZER_NAME, rows_named
from traceops.traces.model import Events

_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
_LOADER = re.compile(r"enumerate\(DataLoader\)#.*__next__")
# Names by which programs call one iteration; camel case is taken apart first.
_STEP_WORD = re.compile(
    r"(?<![a-z])(steps?|iters?|iterations?|(train|training|run)_?batch|decode|prefill|generation|"
    r"execute_?(#_)?(model|context)|(model|engine)_?forward_?batch|forward_?batch)(?![a-z])"
)
# And those that are one if their names count up: a server's loop numbers what it answers.
_NUMBERED_WORD = re.compile(
    r"(?<![a-z])(requests?|quer(y|ies)|prompts?|batch(es)?|inferences?|predictions?|frames?|images?)(?![a-z])"
)
# Parts of an iteration that have such a word in their name, and what comes along with one.
_PART_WORD = re.compile(
    r"profiler|micro|optim|sched|valid|eval|test|layer|stage|block|loss|scaler|load|data|save|log|sampl|fetch|wait|get|"
    r"backward|bwd|forward_?step|fwd|zero|clip|prepar|detoken|communic|nccl|all_?reduce|post|pre_?proc|encod"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_DIGITS = re.compile(r"\d+")
_BRACKET = re.compile(r"[\[(]")
_MOST_DIGITS = 15
_FORWARD = 0.3  # of the operators of the longest pause between backward passes: less is no forward pass


class Marks(Struct, frozen=True):
    """Moments on the host (ns) at which one kind of mark says that an iteration begins; the last one ends the last.

    `number` are the iterations' numbers where the names give them, one fewer than `moment`, else None. `whole`: each
    mark is one iteration, and several are never put together to make one. `open_end`: the last moment is where the
    last range ends, which may be before its iteration does.
    """

    by: StepsBy
    name: str
    moment: Int
    number: Int | None = None
    whole: bool = False
    closing: bool = False
    open_end: bool = False


def step_marks(events: Events, activity: Activity) -> Iterator[Marks]:
    """The kinds of marks in this trace, the most telling first."""
    yield from _annotations(events)
    yield from _of_rows(events, "optimizer", "Optimizer.step", _rows(events, OPTIMIZER_NAME), closing=True)
    yield from _of_rows(events, "zero_grad", "Optimizer.zero_grad", _rows(events, _ZERO_GRAD))
    loads = _rows(events, _LOADER)
    if len(loads):  # of several loaders the one that is asked most
        names, counts = np.unique(events.name[loads], return_counts=True)
        loads = loads[events.name[loads] == names[np.argmax(counts)]]
    yield from _of_rows(events, "loader", "DataLoader", loads)
    yield from _backward(events, activity)


def optimizer_steps(events: Events) -> int:
    """How often an optimizer stepped, as far as the trace says."""
    return len(_outermost(events, _rows(events, OPTIMIZER_NAME)))


def _of_rows(events: Events, by: StepsBy, name: str, rows: Int, closing: bool = False) -> Iterator[Marks]:
    rows = _outermost(events, rows)
    if len(rows) > 1:
        moment = events.ts[rows] + (events.dur[rows] if closing else 0)
        yield Marks(by, name, moment, closing=closing)


def _annotations(events: Events) -> Iterator[Marks]:
    """Annotations whose name says that they are an iteration, numbered ones first, then the most frequent."""
    families: dict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(events.names):
        family = _BRACKET.split(_DIGITS.sub("#", text), maxsplit=1)[0].strip(" :#_-./")
        words = _CAMEL.sub("_", family).lower()
        told = _STEP_WORD.search(words) or _NUMBERED_WORD.fullmatch(words)
        if told and not _PART_WORD.search(words) and len(text) < 200:
            families[family].append(number)
    noted = events.in_cats(*ANNOTATION_CATS)
    found = []
    for family, names in families.items():
        rows = np.flatnonzero(np.isin(events.name, names) & noted)
        rows = _outermost(events, rows)
        if len(rows) < 2:
            continue
        numbers = _numbers([events.names[name] for name in events.name[rows].tolist()])
        if numbers is None and not _STEP_WORD.search(_CAMEL.sub("_", family).lower()):
            continue
        begin, end = events.ts[rows], events.ts[rows] + events.dur[rows]
        moment = np.append(begin, end[-1])
        found.append(Marks("annotation", family, moment, numbers, whole=True, open_end=True))
    yield from sorted(found, key=lambda marks: (marks.number is None, -len(marks.moment)))


def _numbers(names: list[str]) -> Int | None:
    """The iterations' own numbers: those digits of the names that count up by one."""
    digits = [[int(text) for text in _DIGITS.findall(name) if len(text) <= _MOST_DIGITS] for name in names]
    if len({len(own) for own in digits}) != 1:
        return None
    for column in np.array(digits, dtype=np.int64).reshape(len(names), -1).T:
        if (np.diff(column) == 1).all():
            numbers: Int = column
            return numbers
    return None


def _backward(events: Events, activity: Activity) -> Iterator[Marks]:
    """Where a backward pass is over and a forward pass follows: operators outside autograd, not just a hook's."""
    rows = rows_named(events, BACKWARD_NAME)
    if len(rows) < 2:
        return
    rows = rows[np.argsort(events.ts[rows], kind="stable")]
    begin, over = events.ts[rows], np.maximum.accumulate(events.ts[rows] + events.dur[rows])
    lying = activity.host.nesting
    outer = lying.rows[lying.outermost]
    outer = outer[~np.isin(outer, rows)]
    others = np.sort(events.ts[outer])
    between = np.searchsorted(others, begin[1:]) - np.searchsorted(others, over[:-1])
    breaks = np.flatnonzero((begin[1:] > over[:-1]) & (between > _FORWARD * max(between.max(), 1)))
    if len(breaks):
        yield Marks("backward", "backward", np.append(over[breaks], over[-1]), closing=True)


def _rows(events: Events, pattern: re.Pattern[str]) -> Int:
    rows = rows_named(events, pattern)
    return rows[events.in_cats(*ANNOTATION_CATS, *OPERATOR_CATS)[rows]] if len(rows) else rows


def _outermost(events: Events, rows: Int) -> Int:
    """Of the thread that has most of them those that lie in no other, in time order."""
    if not len(rows):
        return rows
    tids = events.tid[rows].tolist()
    rows = rows[events.tid[rows] == Counter(tids).most_common(1)[0][0]]
    rows = rows[np.lexsort((-events.dur[rows], events.ts[rows]))]
    over = np.maximum.accumulate(events.ts[rows] + events.dur[rows])
    outer: Int = rows[np.concatenate(([True], events.ts[rows][1:] >= over[:-1]))]
    return outer
