"""What the workers of a rank's data loaders do, from looks at their main threads."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.text import pattern
from traceops.measure.host_places import CodePlace, Unit, own_place
from traceops.measure.steps import step_ends_ns
from traceops.traces.observed import Observed

BUSY_PCT = 50.0  # of the time of workers: below it they are not what a rank waits for
_LEAST_LOOKS = 20
# Where a worker is that has nothing to do: it waits for the numbers of the next batch.
_IDLE = pattern(r"/multiprocessing/(queues|connection|popen_fork|synchronize)\.py$|/(selectors|queue)\.py$")
_FETCHES = pattern(r"/torch/utils/data/_utils/fetch\.py$")
_FROM_WORKERS = pattern(r"(^|\.)_(try_)?get_data$")  # of torch's own loader


class LoaderWork(Struct, frozen=True):
    """Of one rank's workers together, those that were looked at.

    processes: of them. busy_pct: of their time in which they do not wait for work. busiest_pct: of the time of the one
    that waits least, among those that were looked at often enough: batches come in order, so one may hold up all, and
    workers of another loader have nothing to do meanwhile. place: the program's own function in which most of that time
    goes, with its line, None where it is all in libraries; place_pct: of the busy time.
    """

    processes: int
    busy_pct: float
    busiest_pct: float
    place: CodePlace | None
    place_pct: float

    @property
    def one_busy(self) -> bool:
        """Whether one worker is busy while all together mostly wait for work."""
        return self.processes > 1 and self.busy_pct < BUSY_PCT <= self.busiest_pct


def loads_itself(rank: Observed) -> bool:
    """Whether this rank's own process was seen to load its batches, and never to wait for a worker."""
    stacks = (rank.stacks[number] for number in set(rank.samples[:, 1].tolist()))
    seen = [rank.frames[number] for number in {number for stack in stacks for number in stack}]
    fetches = any(_FETCHES.search(frame.file) for frame in seen)
    return fetches and not any(_FROM_WORKERS.search(frame.function) for frame in seen)


def loader_work(rank: Observed, typical: NDArray[np.bool_] | None = None) -> LoaderWork | None:
    """Of a rank that was observed; None where its loaders have no workers, or were looked at too seldom.

    typical: the steps that count, where that is known. While a program starts, compiles or evaluates, the workers of
    its training rest.
    """
    loaders = rank.loaders
    if typical is not None and typical.any() and all(one.began_ns for one in loaders):
        within = tuple(_in_steps(one, step_ends_ns(rank), typical) for one in loaders)
        loaders = within if sum(len(one.samples) for one in within) >= _LEAST_LOOKS else loaders
    if sum(len(one.samples) for one in loaders) < _LEAST_LOOKS:
        return None
    lines: dict[Unit, dict[CodePlace, float]] = defaultdict(lambda: defaultdict(float))
    total = busy = busiest_pct = 0.0
    for one in loaders:
        total_before, busy_before = total, busy
        weight = np.bincount(one.samples[:, 1], one.samples[:, 2], len(one.stacks))
        for stack in np.flatnonzero(weight).tolist():
            total += weight[stack]
            if _is_idle(one, stack):
                continue
            busy += weight[stack]
            place = own_place(one, stack)
            # A program's own frames around the loop are those that started the training, not the loading.
            if place is not None and _below_the_loop(one, stack, place):
                lines[place.unit][place] += weight[stack]
        if len(one.samples) >= _LEAST_LOOKS and total > total_before:
            busiest_pct = max(busiest_pct, 100 * (busy - busy_before) / (total - total_before))
    if not total:
        return None
    most = max(lines.values(), key=lambda own: sum(own.values()), default=None)
    processes = sum(1 for one in loaders if len(one.samples))
    busy_pct = 100 * busy / total
    busiest_pct = max(busiest_pct, busy_pct)
    if most is None or not busy:
        return LoaderWork(processes, busy_pct, busiest_pct, None, 0.0)
    place = max(most, key=lambda one: most[one])
    return LoaderWork(processes, busy_pct, busiest_pct, place, 100 * sum(most.values()) / busy)


def _in_steps(one: Observed, ends_ns: NDArray[np.float64], steps: NDArray[np.bool_]) -> Observed:
    """The looks that stand for time in these steps. ends_ns: of all steps."""
    spans = 1e3 * one.samples[:, 2]
    middle = one.began_ns + np.cumsum(spans) - spans / 2
    at = np.searchsorted(ends_ns, middle)
    chosen = (at > 0) & (at < len(ends_ns))  # the first step holds the program's start
    chosen[chosen] = steps[at[chosen]]
    return replace(one, samples=one.samples[chosen])


def _is_idle(one: Observed, stack: int) -> bool:
    numbers = one.stacks[stack]
    return not numbers or bool(_IDLE.search(one.frames[numbers[-1]].file))


def _below_the_loop(one: Observed, stack: int, place: CodePlace) -> bool:
    """Whether this line is called by the worker's loop."""
    frames = [one.frames[number] for number in one.stacks[stack]]
    loop = next((at for at, frame in enumerate(frames) if frame.function == "_worker_loop"), None)
    if loop is None:
        return False
    return any((frame.function, frame.file) == (place.function, place.file) for frame in frames[loop:])
