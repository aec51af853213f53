"""Finds the steps of a trace that marks none, and says by what; in doubt it finds none.

Marks are proposed by names, by backward passes and by sequences that repeat; then they are judged.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, is_in, median, uniques
from traceops.core.text import pattern
from traceops.core.words import StepsBy
from traceops.measure.activity import COMM, Activity
from traceops.measure.host_rows import ANNOTATION_CATS, BACKWARD_NAME, OPERATOR_CATS, OPTIMIZER_NAME, rows_named
from traceops.traces.model import Events

_ZERO_GRAD = pattern(r"^Optimizer\.zero_grad#")
_LOADER = pattern(r"enumerate\(DataLoader\)#.*__next__")
# Names by which programs call one iteration; camel case is taken apart first.
_STEP_WORD = pattern(
    r"(?<![a-z])(steps?|iters?|iterations?|(train|training|run)_?batch|decode|prefill|generation|"
    r"execute_?(#_)?(model|context)|(model|engine)_?forward_?batch|forward_?batch)(?![a-z])"
)
# And those that are one if their names count up: a server's loop numbers what it answers.
_NUMBERED_WORD = pattern(
    r"(?<![a-z])(requests?|quer(y|ies)|prompts?|batch(es)?|inferences?|predictions?|frames?|images?)(?![a-z])"
)
# Parts of an iteration that have such a word in their name, and what comes along with one.
_PART_WORD = pattern(
    r"profiler|micro|optim|sched|valid|eval|test|layer|stage|block|loss|scaler|load|data|save|log|sampl|fetch|wait|get|"
    r"backward|bwd|forward_?step|fwd|zero|clip|prepar|detoken|communic|nccl|all_?reduce|post|pre_?proc|encod"
)
_CAMEL = pattern(r"(?<=[a-z])(?=[A-Z])")
_DIGITS = pattern(r"\d+")
_BRACKET = pattern(r"[\[(]")
_MOST_DIGITS = 15
_FORWARD = 0.3  # of the operators of the longest pause between backward passes: less is no forward pass


class Marks(Struct, frozen=True):
    """Moments on the host (ns) at which one kind of mark says that an iteration begins; the last one ends the last.
    `number` are the iterations' numbers where the names give them, one fewer than `moment`, else None. `whole`: each
    mark is one iteration, and several are never put together to make one. `open_end`: the last moment is where the last
    range ends, which may be before its iteration does."""

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
        rows = (is_in(events.name, names) & noted).nonzero()[0]
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
        if ((column[1:] - column[:-1]) == 1).all():
            numbers: Int = column
            return numbers
    return None


def _backward(events: Events, activity: Activity) -> Iterator[Marks]:
    """Where a backward pass is over and a forward pass follows: operators outside autograd, not just a hook's."""
    rows = rows_named(events, BACKWARD_NAME)
    if len(rows) < 2:
        return
    rows = rows[events.ts[rows].argsort(kind="stable")]
    begin, over = events.ts[rows], np.maximum.accumulate(events.ts[rows] + events.dur[rows])
    lying = activity.host.nesting
    outer = lying.rows[lying.outermost]
    outer = outer[~is_in(outer, rows)]
    others = np.sort(events.ts[outer])
    between = others.searchsorted(begin[1:]) - others.searchsorted(over[:-1])
    breaks = ((begin[1:] > over[:-1]) & (between > _FORWARD * max(between.max(), 1))).nonzero()[0]
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


# A sequence of kernels (operators, without a GPU) that repeats itself: the iterations of a trace that marks none.

_LEAST_TIMES = 3
_LEAST_KERNELS = 8  # in one repetition, of several names: a few kernels in a loop are no iteration
_LEAST_NAMES = 3
_COVERS = 0.8  # of the lane's kernels
_MOST_NAMES = 4
_MOST_DISTANCES = 128
_PIECE = 4096  # kernels in the middle that must repeat first of all


def repetitions(events: Events, activity: Activity) -> Iterator[Marks]:
    """The launch of the kernel that each repetition begins with, and of the one after the last; nothing without any. A
    trace of whole repetitions alone has those behind the first one, which end with it. Looks at the busiest stream (a
    thread, where there is no GPU). What lies before and after the repetitions must hold no name that they do not hold,
    nor another size where theirs is the same each time: of a single pass the layers repeat, but what reads and what
    ends it does not. Takes time linear in the kernels."""
    lane = activity.by_start[inside_window(activity)[activity.by_start]]
    lanes, which = np.unique(activity.lane_of(events, lane), return_inverse=True)
    if len(lanes):
        lane = lane[which == np.argmax(np.bincount(which))]
    names = events.name[activity.row[lane]].astype(np.int64)
    if (found := _period(names)) is None:
        return
    first, covered, period = found
    inside = names[first : first + covered]
    if not is_in(names, uniques(inside)).all() or len(uniques(inside[:period])) < _LEAST_NAMES:
        return
    shape = events.shape[activity.row[lane]].astype(np.int64)
    sized = names * (shape.max() + 2) + shape
    passes = sized[first : first + covered // period * period].reshape(-1, period)
    if (passes == passes[0]).all() and not is_in(sized, uniques(passes[0])).all():
        return
    whole = covered == len(names) and covered % period == 0  # nothing but passes; the first one is a cold start
    at = period if whole else first + _beginning([events.names[name] for name in inside[:period].tolist()])
    starts = np.arange(at, first + covered + 1, period)
    moments = activity.launched[lane[starts[starts < len(lane)]]]
    if whole:
        last = lane[-1]
        moments = np.append(moments, (activity.launched if activity.on_gpu else activity.end)[last] + 1)
    if len(moments) >= _LEAST_TIMES and ((moments[1:] - moments[:-1]) > 0).all():
        yield Marks("repetition", "", moments, whole=True)


def inside_window(activity: Activity) -> NDArray[np.bool_]:
    """Which activities were launched inside the window: those with a launch, where launches are recorded."""
    known: NDArray[np.bool_] = activity.launch >= 0
    return known if np.count_nonzero(known) else ~known


def _period(names: Int) -> tuple[int, int, int] | None:
    """(first, length, period) of the longest exact repetition that covers most of the sequence; None without one."""
    count = len(names)
    for period in _distances(names):
        same = names[period:] == names[:-period]
        edges = np.diff(np.concatenate(([False], same, [False])).astype(np.int8)).nonzero()[0]
        if not len(edges):
            continue
        lengths = edges[1::2] - edges[::2]
        longest = int(np.argmax(lengths))
        covered = int(lengths[longest]) + period
        if covered >= max(_LEAST_TIMES * period, _COVERS * count):
            first = int(edges[::2][longest])
            repeated = names[first : first + period]  # what repeats within it as often is the repetition
            divisors = (each for each in range(1, period // 2 + 1) if period % each == 0)
            period = next((each for each in divisors if (repeated == np.roll(repeated, each)).all()), period)
            return (first, covered, period) if period >= _LEAST_KERNELS else None
    return None


def _distances(names: Int) -> list[int]:
    """What the period may be, shortest first: how far the rarest kernels are from the next ones of their names."""
    count = len(names)
    values, seen = np.unique(names, return_counts=True)
    rarest = values[seen >= _LEAST_TIMES][seen[seen >= _LEAST_TIMES].argsort(kind="stable")][:_MOST_NAMES]
    found: set[int] = set()
    for name in rarest:
        at = (names == name).nonzero()[0]
        anchor = len(at) // _LEAST_TIMES  # what begins a window may come once
        found.update((at[anchor + 1 : anchor + 1 + _MOST_DISTANCES] - at[anchor]).tolist())
    middle, piece = count // 2, min(_PIECE, count // 4)
    return [
        period
        for period in sorted(found)
        if _LEAST_KERNELS <= period <= count // _LEAST_TIMES
        and (names[middle - piece : middle] == names[middle - piece + period : middle + period]).all()
    ]


def _beginning(texts: list[str]) -> int:
    """The kernel of a repetition that counts as its first, the same on all ranks that run this repetition. The first by
    name of those that come once; where none does, the first of the least rotation [Booth 1980]."""
    counts = Counter(texts)
    if once := [text for text in texts if counts[text] == 1]:
        return texts.index(min(once))
    doubled, failure, least = texts + texts, [-1] * (2 * len(texts)), 0
    for j in range(1, len(doubled)):
        i = failure[j - least - 1]
        while i != -1 and doubled[j] != doubled[least + i + 1]:
            if doubled[j] < doubled[least + i + 1]:
                least = j - i - 1
            i = failure[i]
        if doubled[j] != doubled[least + i + 1]:
            if doubled[j] < doubled[least]:
                least = j
            failure[j - least] = -1
        else:
            failure[j - least] = i + 1
    return least


LEAST_STEPS = 2
_LEAST_BACKWARD = 3  # two backward passes may be two calls in a test of a layer
_MOST_TOGETHER = 8  # marks in one step: micro-batches, optimizers
_LEAST_TIME = 0.6  # of the time that those kernels take
_MOST_BEYOND = 1.5  # steps for each step of an optimizer, which a gradient scaler may leave out now and then
_ALIKE = 0.15  # of the median number of kernels: what steps may differ by
_APART = 0.02  # of the median: what the marks that make one step differ by at least
_SURE = 0.9  # of the steps that are alike
_MOSTLY = 0.65  # an evaluation or a recompilation may be in every third


class FoundSteps(Struct, frozen=True):
    """Steps by what marks them: step i runs on the host from `begin[i]` to `end[i]` (ns); `name` is the mark's."""

    by: StepsBy
    name: str
    number: Int
    begin: Int
    end: Int


def found_steps(events: Events, activity: Activity) -> FoundSteps | None:
    """The steps of the first kind of mark by which nearly all steps hold as many kernels, else of the best; or None.
    The step in which a rank first communicates is left out, with those before it: what ranks wait there is how far
    apart they began to record."""
    # Collect the launches inside the window, ns, in order.
    launched = activity.launched[activity.by_launch[inside_window(activity)[activity.by_launch]]]
    if not len(launched):
        return None
    # Count the steps of an optimizer that the trace shows.
    optimized = len(_outermost(events, _rows(events, OPTIMIZER_NAME)))
    best: FoundSteps | None = None
    best_alike = 0.0
    most_steps = optimized * (1.0 if optimized <= LEAST_STEPS else _MOST_BEYOND)
    for marks in chain(step_marks(events, activity), repetitions(events, activity)):
        if marks.by == "repetition" and best is not None:
            break
        if (candidate := _candidate(marks, launched)) is None:
            continue
        steps, alike = candidate
        if 0 < most_steps < len(steps.begin):  # these are parts of a step, such as micro-batches
            continue
        if best is None or alike > best_alike:
            best, best_alike = steps, alike
        if best_alike >= _SURE:
            break
    if best is None:
        return None
    comm = activity.launched[(activity.kind == COMM) & inside_window(activity)]
    kept = slice(int(best.begin.searchsorted(comm.min(), side="right")) if len(comm) else 0, None)
    if len(best.begin[kept]) < LEAST_STEPS:
        return None
    return FoundSteps(best.by, best.name, best.number[kept], best.begin[kept], best.end[kept])


def _candidate(marks: Marks, launched: Int) -> tuple[FoundSteps, float] | None:
    """The steps that these marks make, if they cover the window and are alike; and how many of them are."""
    counts = np.diff(launched.searchsorted(marks.moment))
    moment, number = marks.moment, marks.number
    if marks.open_end and len(counts) > 2 and not _alike(counts[-1:], median(counts[:-1]))[0]:
        moment, counts = moment[:-1], counts[:-1]  # the last range ends before its step does
        number = None if number is None else number[:-1]
    together, offset = (1, 0) if marks.whole else _together(counts, marks.closing)
    edges = moment[offset::together]
    if len(edges) <= (_LEAST_BACKWARD if marks.by == "backward" else LEAST_STEPS):
        return None
    at = launched.searchsorted(edges)
    counts = at[1:] - at[:-1]
    usual = median(counts)
    if len(counts) > LEAST_STEPS and counts[0] < (1 - _ALIKE) * usual:  # recording began in its middle
        edges, at, counts = edges[1:], at[1:], counts[1:]
        number = None if number is None else number[1:]
    alike = float(_alike(counts, usual).mean())
    if alike < _MOSTLY or not usual:
        return None
    # What lies before and behind may be a part of one step each, whose time may be anything: recording began there.
    before, behind = int(at[0]), len(launched) - int(at[-1])
    part = (1 + _ALIKE) * usual
    first = edges[0] if before <= part else min(edges[0], launched[0])
    last = edges[-1] if behind <= part else max(edges[-1], launched[-1])
    beyond = max(before - part, 0.0) + max(behind - part, 0.0)
    if beyond > (1 - _COVERS) * len(launched) or edges[-1] - edges[0] < _LEAST_TIME * (last - first):
        return None
    numbers = np.arange(len(counts)) if number is None else number[: len(counts)]
    return FoundSteps(marks.by, marks.name, numbers, edges[:-1], edges[1:]), alike


def _alike(counts: Int, usual: float, slack: float = _ALIKE) -> NDArray[np.bool_]:
    close: NDArray[np.bool_] = np.abs(counts - usual) <= (max(2.0, slack * usual) if slack else 0.0)
    return close


def _together(counts: Int, closing: bool) -> tuple[int, int]:
    """(how many marks make one step, the first of them): the fewest by which steps are alike place by place. Of
    micro-batches only the last has the optimizer's kernels behind it: few, but as many each time."""
    if (exactly := _fewest(counts, 0.0)) is not None:
        usual = median(counts[: len(counts) // exactly * exactly].reshape(-1, exactly), axis=0)
        if np.ptp(usual) < _APART * median(usual):
            exactly = None  # a copy more in every second step makes no step of two
    together = exactly or _fewest(counts, _ALIKE) or 1
    usual = median(counts[: len(counts) // together * together].reshape(-1, together), axis=0)
    # The longest part comes first where marks end a step: several optimizers step behind one backward.
    longest = int(np.argmax(usual))
    return together, (longest if closing else longest + 1) % together


def _fewest(counts: Int, slack: float) -> int | None:
    """The period of these numbers of kernels: place by place nearly all are as many, but for the slack."""
    for together in range(1, _MOST_TOGETHER + 1):
        times = len(counts) // together
        if times < LEAST_STEPS + (together > 1):
            return None
        rows = counts[: times * together].reshape(times, together)
        usual = median(rows, axis=0)
        if all(_alike(rows[:, place], usual[place], slack).mean() >= _SURE for place in range(together)):
            return together
    return None
