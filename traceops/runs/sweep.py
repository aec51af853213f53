"""What a sweep varies: axes from the command line, and the points that they span."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import prod
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from traceops.compare.statistics import quantile
from traceops.core.claims import reason
from traceops.core.documents import Tool
from traceops.core.errors import UsageError
from traceops.core.units import stored
from traceops.measure.ledger import BUCKETS
from traceops.report.rows import Count, NotNegative, Number
from traceops.runs.row import RunRow
from traceops.words.catalogue import texts

MOST_POINTS = 1000
_FOLDER_SAFE = re.compile(r"[^A-Za-z0-9._=,+-]+")


class SweepAxis(Struct, frozen=True):
    """One thing that is varied. of_script: an option of the script's own, not of `traceops run`."""

    key: str
    values: tuple[str, ...]
    of_script: bool = False


class Point(Struct, frozen=True):
    """A value of each axis, in the axes' order."""

    settings: tuple[tuple[SweepAxis, str], ...]

    @property
    def label(self) -> str:
        """'strategy=zero3,workers=2': its name, and that of its folders."""
        words = ",".join(f"{axis.key.lstrip('-')}={value}" for axis, value in self.settings)
        return _FOLDER_SAFE.sub("_", words)[:120]

    @property
    def words(self) -> dict[str, str]:
        """The settings by key."""
        return {axis.key: value for axis, value in self.settings}


def axes_of(options: Sequence[str], arguments: Sequence[str]) -> tuple[SweepAxis, ...]:
    """The axes of --vary and --vary-arg, each KEY=VALUE,VALUE,…. Raises UsageError for what is none."""
    axes = []
    for flag, text in [*(("--vary", text) for text in options), *(("--vary-arg", text) for text in arguments)]:
        key, sign, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split(","))
        if not sign or not key.strip("- ") or not all(values):
            raise UsageError(f"{flag} {text}: write KEY=VALUE,VALUE, for example {flag} workers=0,2,4")
        if len(set(values)) < len(values):
            raise UsageError(f"{flag} {text}: a value is given twice; --repeat N runs each combination N times")
        axes.append(SweepAxis(key.strip(), values, flag == "--vary-arg"))
    if not axes:
        raise UsageError(reason("runs", "nothing_varied"))
    if twice := [axis.key for axis in axes if [other.key for other in axes].count(axis.key) > 1]:
        raise UsageError(f"{twice[0]} is varied twice; give all values in one option")
    return tuple(axes)


def points_of(axes: Sequence[SweepAxis]) -> tuple[Point, ...]:
    """All combinations, the last axis changing fastest. Raises UsageError for too many, or names that collide."""
    if (count := prod(len(axis.values) for axis in axes)) > MOST_POINTS:
        raise UsageError(f"{count} combinations, more than {MOST_POINTS}; vary fewer values at once")
    points = tuple(Point(tuple(zip(axes, values, strict=True))) for values in product(*(axis.values for axis in axes)))
    labels = [point.label for point in points]
    if same := [label for label in labels if labels.count(label) > 1]:
        raise UsageError(f"two combinations would share the folder {same[0]}; use shorter values, or other ones")
    return points


def script_words(point: Point, script: Sequence[str]) -> list[str]:
    """The script's words with the values of its own options: in place of {KEY}, else behind them as --KEY VALUE."""
    words = list(script)
    for axis, value in point.settings:
        if not axis.of_script:
            continue
        place = "{" + axis.key + "}"
        if any(place in word for word in words):
            words = [word.replace(place, value) for word in words]
        else:
            words += [axis.key if axis.key.startswith("-") else f"--{axis.key}", value]
    return words


SWEEP_VERSION = 1
TRIALS = "trials.json"
TrialStatus = Literal["finished", "failed", "hung"]


class SweepTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One training of one combination."""

    point: Count
    repeat: Count
    folder: str
    status: TrialStatus
    seconds: NotNegative
    exit_code: int = 0
    reason: str = ""
    step_ms: NotNegative | None = None
    samples_per_s: NotNegative | None = None


class SweepState(msgspec.Struct, frozen=True, kw_only=True):
    """What trials.json holds: enough to go on where the sweep ended. command: what all trainings share."""

    schema_version: Annotated[int, Meta(extra_json_schema={"const": SWEEP_VERSION})] = SWEEP_VERSION
    command: tuple[str, ...]
    points: tuple[dict[str, str], ...]
    trials: tuple[SweepTrial, ...] = ()


class PointRow(msgspec.Struct, frozen=True, kw_only=True):
    """One combination and what came of it; null where it is not known."""

    label: str
    settings: dict[str, str]
    trained: Count = 0
    failed: Count = 0
    reason: str = ""
    samples_per_s: NotNegative | None = None
    step_ms: NotNegative | None = None
    spread_pct: NotNegative | None = None
    behind_pct: Number | None = None


class LedgerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket of the step ledger of the best combination against another's, ms for as many samples."""

    bucket: str
    best_ms: float
    other_ms: float


class SweepDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What sweep.json holds."""

    schema_version: Annotated[int, Meta(extra_json_schema={"const": SWEEP_VERSION})] = SWEEP_VERSION
    tool: Tool = Tool()
    name: str
    command: tuple[str, ...]
    varied: tuple[str, ...]
    complete: bool
    by_samples: bool
    best: str | None = None
    against: str | None = None
    told_apart: bool | None = None
    why: tuple[LedgerDifference, ...] = ()
    points: tuple[PointRow, ...]
    trials: tuple[SweepTrial, ...]
    runs: tuple[RunRow, ...] = ()


# The order in which the combinations of a sweep are trained; trains nothing itself.

_MOST_AGAIN = 3  # trainings of each of the two best, where none were asked for
Attempt = Callable[[int, int], "SweepTrial | None"]  # point, repeat -> what came of it; None: the user ended the sweep


class SweepSearch(Struct, frozen=True):
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
    complete = _attempt_all(in_turn(range(points), repeat), attempt, trials)
    return SweepSearch(tuple(trials), complete)


def _attempt_all(order: Iterable[tuple[int, int]], attempt: Attempt, trials: list[SweepTrial]) -> bool:
    """Append the trials that `order` lacks; False where the user ended the sweep."""
    for point, number in order:
        if _is_done(trials, point, number) or _failed(trials, point):
            continue
        if (trial := attempt(point, number)) is None:
            return False
        trials.append(trial)
    return True


def best_again(found: SweepSearch, points: int, attempt: Attempt) -> SweepSearch:
    """The two best are trained again, in turn, until they differ by more than chance or each has `_MOST_AGAIN`."""
    trials = list(found.trials)
    for number in range(2, _MOST_AGAIN + 1):
        first = sorted((p for p in range(points) if rate_of(trials, p)), key=lambda p: -rate_of(trials, p))[:2]
        if len(first) < 2 or _differ(trials, *first):
            break
        order = ((point, number) for point in (first if number % 2 else reversed(first)))
        if not _attempt_all(order, attempt, trials):
            return SweepSearch(tuple(trials), False)
    return SweepSearch(tuple(trials), found.complete)


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
            if clock() - began + expected > budget_s or (trial := attempt(point, number)) is None:
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


_SURE = 0.975  # two-sided, 5 %
_LAUNCHES_PCT = 4.0  # two launches of one code are less apart [benchmarks/compare/pairs.py]
_BUSY = "TO-W002"
_MOST_BUCKETS = 5
_WORTH = 0.005  # of the step: a bucket that differs by less explains nothing


def sweep_document(
    name: str, state: SweepState, points: Sequence[Point], found: SweepSearch, rows: Sequence[RunRow]
) -> SweepDocument:
    """The document of a sweep; `rows` are the reports of its trainings, named by their folders."""
    trials = found.trials
    finished = [trial for trial in trials if trial.status == "finished"]
    rates = {place: rate_of(trials, place) for place in range(len(points))}
    ranked = sorted((place for place, rate in rates.items() if rate), key=lambda place: -rates[place])
    best = ranked[0] if ranked else None
    other = ranked[1] if len(ranked) > 1 else None
    most = 0.0 if best is None else rates[best]
    return SweepDocument(
        name=name, command=state.command, varied=tuple(points[0].words), complete=found.complete,
        by_samples=bool(finished) and all(trial.samples_per_s for trial in finished),
        best=None if best is None else points[best].label, against=None if other is None else points[other].label,
        told_apart=None if best is None or other is None else _decided(rows, trials, best, other),
        why=() if best is None or other is None else _why(rows, trials, best, other),
        points=tuple(_point_row(place, point, found, rates[place], most) for place, point in enumerate(points)),
        trials=trials, runs=tuple(rows),
    )  # fmt: skip


def _point_row(place: int, point: Point, found: SweepSearch, rate: float, most: float) -> PointRow:
    own = [trial for trial in found.trials if trial.point == place]
    finished = [trial for trial in own if trial.status == "finished"]
    failed = [trial for trial in own if trial.status != "finished"]
    steps = [trial.step_ms for trial in finished if trial.step_ms]
    samples = [trial.samples_per_s for trial in finished if trial.samples_per_s]
    reason = failed[-1].reason if failed else ""
    if not reason and place in found.given_up:
        reason = texts("runs", "sweep")["not_again"]
    elif not own:
        reason = texts("runs", "sweep")["no_time"]
    return PointRow(
        label=point.label, settings=point.words, trained=len(finished), failed=len(failed), reason=reason,
        samples_per_s=stored(statistics.fmean(samples)) if samples else None,
        step_ms=stored(statistics.fmean(steps)) if steps else None,
        spread_pct=stored(100 * statistics.stdev(steps) / statistics.fmean(steps)) if len(steps) > 1 else None,
        behind_pct=stored(100 * (1 - rate / most)) if rate and most else None,
    )  # fmt: skip


def _decided(rows: Sequence[RunRow], trials: Sequence[SweepTrial], best: int, other: int) -> bool | None:
    """`_differ`; and False of trainings once each that launches alone may make so far apart, or a busy machine."""
    if (differ := _differ(trials, best, other)) is not None:
        return differ
    rates = rate_of(trials, best), rate_of(trials, other)
    own = {trial.folder for trial in trials if trial.point in (best, other)}
    busy = any(
        found.rule == _BUSY and found.severity != "info" for row in rows if row.name in own for found in row.findings
    )
    return False if busy or 100 * (1 - rates[1] / rates[0]) < _LAUNCHES_PCT else None


def _differ(trials: Sequence[SweepTrial], best: int, other: int) -> bool | None:
    """Whether two combinations' steps differ by more than chance: a t test on their trainings, None without repeats.
    Few trainings may be alike by luck, so their means must also be as far apart as launches alone make them."""
    sides = [
        [t.step_ms if not t.samples_per_s else 1e3 / t.samples_per_s for t in trials if t.point == place and t.step_ms]
        for place in (best, other)
    ]
    if any(len(side) < 2 for side in sides):
        return None
    error = sum(statistics.variance(side) / len(side) for side in sides) ** 0.5
    df = sum(len(side) for side in sides) - 2
    gap = abs(statistics.fmean(sides[0]) - statistics.fmean(sides[1]))
    least = _LAUNCHES_PCT / 100 * statistics.fmean(sides[0]) / min(map(len, sides)) ** 0.5
    return bool(gap > max(quantile(_SURE, df) * error, least))


def _why(rows: Sequence[RunRow], trials: Sequence[SweepTrial], best: int, other: int) -> tuple[LedgerDifference, ...]:
    """Buckets of recorded steps in which best and other differ most, ms for as many samples as a step of best has."""
    by_name = {row.name: row for row in rows if not row.problem}
    ledgers = []
    for place in (best, other):
        own = [by_name[trial.folder] for trial in trials if trial.point == place and trial.folder in by_name]
        if not own or any(row.ledger_ms.of("compute") is None for row in own):
            return ()
        ledgers.append((own, {b: statistics.fmean(row.ledger_ms.of(b) or 0.0 for row in own) for b in BUCKETS}))
    (mine, first), (theirs, second) = ledgers
    samples = [row.samples_per_step for row in (mine[0], theirs[0])]
    scale = samples[0] / samples[1] if samples[0] and samples[1] else 1.0
    found = [LedgerDifference(bucket=b, best_ms=first[b], other_ms=scale * second[b]) for b in BUCKETS]
    least = _WORTH * sum(second.values()) * scale
    worth = [one for one in found if abs(one.other_ms - one.best_ms) > least]
    return tuple(sorted(worth, key=lambda one: -abs(one.other_ms - one.best_ms))[:_MOST_BUCKETS])
