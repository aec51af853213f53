"""The order in which the combinations of a sweep are trained; trains nothing itself."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traceops.runs.sweep_model import SweepTrial

Attempt = Callable[[int, int], "SweepTrial | None"]  # point, repeat -> what came of it; None: the user ended the sweep


@dataclass(frozen=True)
class SweepSearch:
    """All trials, and which combinations were given up for slower than others, by their place."""

    trials: tuple[SweepTrial, ...]
    complete: bool
    given_up: frozenset[int] = frozenset()


def in_turn(points: Sequence[int], repeat: int) -> list[tuple[int, int]]:
    """Every point once, then all in the opposite order, and so on: a machine's drift is the same for all."""
    order = []
    for number in range(1, repeat + 1):
        order += [(point, number) for point in (points if number % 2 else reversed(points))]
    return order


def try_all(points: int, repeat: int, attempt: Attempt, done: Sequence[SweepTrial]) -> SweepSearch:
    """Each combination `repeat` times; one that failed is not tried again."""
    trials = list(done)
    for point, number in in_turn(range(points), repeat):
        if _is_done(trials, point, number) or _failed(trials, point):
            continue
        trial = attempt(point, number)
        if trial is None:
            return SweepSearch(tuple(trials), False)
        trials.append(trial)
    return SweepSearch(tuple(trials), True)


def halve(
    points: int, budget_s: float, attempt: Attempt, clock: Callable[[], float], done: Sequence[SweepTrial] = ()
) -> SweepSearch:
    """Successive halving [Jamieson and Talwalkar 2016]: train all once, keep the better half, again, until one is left.

    The better half is by what it gets done, mean over its trainings. A round in which each is trained once more takes
    half as many trainings as the one before. No training is begun that would likely outlast the budget: the median
    time of those before it.
    """
    began, trials, left, number = clock(), list(done), list(range(points)), 0
    while True:
        number += 1
        for point in left if number % 2 else reversed(left):
            if _is_done(trials, point, number):
                continue
            expected = statistics.median(trial.seconds for trial in trials) if trials else 0.0
            if clock() - began + expected > budget_s:
                return SweepSearch(tuple(trials), False, frozenset(range(points)) - set(left))
            trial = attempt(point, number)
            if trial is None:
                return SweepSearch(tuple(trials), False, frozenset(range(points)) - set(left))
            trials.append(trial)
        left = [point for point in left if not _failed(trials, point)]
        if len(left) > 1:
            left = sorted(sorted(left, key=lambda p: -rate_of(trials, p))[: math.ceil(len(left) / 2)])
        if len(left) < 2:
            gone = {p for p in range(points) if p not in left and not _failed(trials, p)}
            return SweepSearch(tuple(trials), True, frozenset(gone))


def rate_of(trials: Sequence[SweepTrial], point: int) -> float:
    """What a combination gets done: samples a second, or steps where no training tells its samples; 0 if nothing."""
    own = [trial for trial in trials if trial.point == point and trial.status == "finished"]
    by_samples = all(trial.samples_per_s for trial in trials if trial.status == "finished")
    rates = [trial.samples_per_s if by_samples else 1e3 / trial.step_ms if trial.step_ms else None for trial in own]
    known = [rate for rate in rates if rate]
    return statistics.fmean(known) if known else 0.0


def _is_done(trials: Sequence[SweepTrial], point: int, number: int) -> bool:
    return any(trial.point == point and trial.repeat == number for trial in trials)


def _failed(trials: Sequence[SweepTrial], point: int) -> bool:
    return any(trial.point == point and trial.status != "finished" for trial in trials)
