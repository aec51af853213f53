"""The history of a key: its captures by commit in time order, each metric's trend and where it changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from math import comb
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.baseline.entry import Entry, Key, StoredReport
from traceops.baseline.store import Problem
from traceops.compare.metrics import BY_NAME, MIN_STEPS
from traceops.core.errors import InputError, problem_of
from traceops.core.units import minute_text

# Change points of a noisy series: where its level changed for good, how sure that is, and by how much.

Float = NDArray[np.float64]

MAX_P = 0.01  # a change point is reported up to this probability of seeing one as clear in noise
MIN_SEGMENT = 2  # values on each side of a change: one outlier is no new level

_WEAK_P = 0.1  # what the first pass marks, for the second to judge with its neighbours known
_FIRST, _REST = 99, 1900  # permutations: few tell that there is nothing
_CLEARLY_NOTHING = 20  # of the first ones that are as clear as what was seen
_MOST_CELLS = 1 << 21  # of distances in memory at once


class ChangePoint(Struct, frozen=True):
    """The level changed with value number `index`. before, after: medians from the change point before it, and to the
    one after it. p: the share of permutations of these values that split as clearly as they do."""

    index: int
    before: float
    after: float
    p: float


def change_points(values: NDArray[np.floating] | list[float], *, max_p: float = MAX_P) -> tuple[ChangePoint, ...]:
    """Change points of `values` (n, finite, in time order), in order; the same for the same values.

    E-divisive means: the split with the largest energy distance between its sides, its significance by permutation, and
    the same again in both parts [Matteson and James, "A Nonparametric Approach for Multiple Change Point Analysis of
    Multivariate Data", JASA 2014, eq. 5 to 8, with exponent 1 and the right side up to the next change]. As
    in Hunter, a first pass marks weak ones too, then each is judged between its neighbours and the weakest leaves until
    all that are left have p <= max_p [Fleming et al., "Hunter: Using Change Point Detection to Hunt for Performance
    Regressions", ICPE 2023, sec. 4.2]. No distribution is assumed, only that without a change any order of
    the values is as likely as another: slow drift of a machine counts as a change.
    """
    series = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(0)
    marks = _marks(series, 0, len(series), rng)
    tested: list[float] = []
    while marks:
        tested = []
        for i in range(len(marks)):
            edges = [0, *marks, len(series)]
            at, p = _best_split(series[edges[i] : edges[i + 2]], rng)
            marks[i] = edges[i] + at
            tested.append(p)
        weakest = int(np.argmax(tested))
        if tested[weakest] <= max_p:
            break
        del marks[weakest]
    edges = [0, *marks, len(series)]
    return tuple(
        ChangePoint(
            mark, float(np.median(series[edges[i] : mark])), float(np.median(series[mark : edges[i + 2]])), tested[i]
        )
        for i, mark in enumerate(marks)
    )


def least_values(max_p: float = MAX_P) -> int:
    """Values it takes to find any change at all: with fewer, too many permutations split as clearly as the best."""
    n = 2 * MIN_SEGMENT
    while 2 / comb(n, n // 2) > max_p:  # the two sides, or mirrored
        n += 1
    return n


def _marks(series: Float, start: int, end: int, rng: np.random.Generator) -> list[int]:
    """First pass: weak change points in series[start:end], by splitting."""
    if end - start < 2 * MIN_SEGMENT:
        return []
    at, p = _best_split(series[start:end], rng)
    if p > _WEAK_P:
        return []
    middle = start + at
    return [*_marks(series, start, middle, rng), middle, *_marks(series, middle, end, rng)]


def _best_split(values: Float, rng: np.random.Generator) -> tuple[int, float]:
    """Where the sides lie farthest apart, and the share of permutations whose best split is as clear (p). Permutations
    end early where p is large anyway."""
    distances = np.abs(values[:, None] - values[None, :])
    seen = _energy(distances[None])[0]
    at = int(np.argmax(seen))
    bound = seen[at] - 1e-9 * abs(seen[at])
    if seen[at] <= 0:
        return at + MIN_SEGMENT, 1.0
    as_clear = done = 0
    for count in (_FIRST, _REST):
        if done and as_clear >= _CLEARLY_NOTHING:
            break
        # How many of `count` permutations have a split of at least `bound`.
        n = len(distances)
        found, at_once = 0, max(_MOST_CELLS // n**2, 1)
        for start in range(0, count, at_once):
            orders = rng.permuted(np.tile(np.arange(n), (min(at_once, count - start), 1)), axis=1)
            permuted = distances[orders[:, :, None], orders[:, None, :]]
            found += int(np.count_nonzero(_energy(permuted).max(axis=1) >= bound))
        as_clear += found
        done += count
    return at + MIN_SEGMENT, (1 + as_clear) / (1 + done)


def _energy(distances: Float) -> Float:
    """Scaled energy distance between the first k values and the rest, for k = MIN_SEGMENT … n - MIN_SEGMENT. distances:
    (batch, n, n). Returns (batch, n - 2 MIN_SEGMENT + 1): k m / (k + m) times twice the mean distance across, less the
    mean distances within, m = n - k."""
    n = distances.shape[1]
    upper = np.triu(distances, 1)
    left = np.cumsum(upper.sum(axis=1), axis=1)  # [j]: within the first j + 1
    right = np.cumsum(upper.sum(axis=2)[:, ::-1], axis=1)[:, ::-1]  # [j]: within j and all after it
    k = np.arange(MIN_SEGMENT, n - MIN_SEGMENT + 1)
    m = n - k
    within_left, within_right = left[:, k - 1], right[:, k]
    across = left[:, -1:] - within_left - within_right
    energy: Float = (k * m / n) * (
        2 * across / (k * m) - within_left / (k * (k - 1) / 2) - within_right / (m * (m - 1) / 2)
    )
    return energy


# Of `compare.metrics.METRICS`. Those of steps without the profiler are not known of captures that timed too few.
UNPROFILED = ("step_time", "throughput")
SHOWN = (*UNPROFILED, "profiled_step_time", "exposed_comm", "idle", "peak_memory")
MOST_COMMITS = 400  # the last ones, in which changes are looked for


class Sample(Struct, frozen=True):
    """One capture: its entry, and the value of each metric in SHOWN, None where it is not known."""

    entry: Entry
    values: dict[str, float | None]

    @property
    def step_ms(self) -> float | None:
        """The step time without the profiler, or else with it."""
        own = self.values["step_time"]
        return self.values["profiled_step_time"] if own is None else own


class Commit(Struct, frozen=True):
    """Captures of one commit, in time order: replicates. `label` is short; a capture of changed code stands alone."""

    label: str
    commit: str | None
    samples: tuple[Sample, ...]

    @property
    def date(self) -> str:
        """The day of its first capture in UTC, as 2026-11-20."""
        return minute_text(self.samples[0].entry.time_ns)[:10]

    def value(self, metric: str) -> float | None:
        """Median over its captures, None where none knows it."""
        known = [value for sample in self.samples if (value := sample.values[metric]) is not None]
        return float(np.median(known)) if known else None


class LevelChange(Struct, frozen=True):
    """A lasting change of a metric. position: of the first commit at the new level among the key's commits; since,
    last: that commit, and the last one known at the old level. before, after: the levels in the metric's unit, to the
    neighbouring changes. change_pct: of the level before, None where that is 0. p: see `ChangePoint`."""

    position: int
    since: Commit
    last: Commit
    before: float
    after: float
    change_pct: float | None
    p: float
    verdict: Literal["worse", "better", "neither"]


class Trend(Struct, frozen=True):
    """One metric over the commits of a key: a value a commit, None where it is not known."""

    metric: str
    label: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    values: tuple[float | None, ...]
    changes: tuple[LevelChange, ...]


class KeyHistory(Struct, frozen=True):
    """Everything known of one key, in time order. Metrics that no capture knows have no trend."""

    key: Key
    commits: tuple[Commit, ...]
    trends: tuple[Trend, ...]

    @property
    def samples(self) -> tuple[Sample, ...]:
        """All captures in time order."""
        all_of = (sample for commit in self.commits for sample in commit.samples)
        return tuple(sorted(all_of, key=lambda sample: (sample.entry.time_ns, sample.entry.url)))


def samples_of(scanned: Iterable[StoredReport], problems: list[Problem]) -> Iterator[Sample]:
    """The values of each of what `store.scan` yields; entries whose report is none join the problems."""
    for stored in scanned:
        try:
            # The values of one capture. Raises InputError for a report that is none.
            capture = stored.capture()
            enough = capture.info.unprofiled_steps >= MIN_STEPS
            values: dict[str, float | None] = {}
            for name in SHOWN:
                metric = BY_NAME[name]
                series = metric.series(capture) if enough or name not in UNPROFILED else np.empty(0)
                values[name] = round(float(metric.location(series)), 6) if len(series) else None
            yield Sample(stored.entry, values)
        except InputError as error:
            problems.append(Problem(stored.entry.url, problem_of(error)))


def histories(samples: Iterable[Sample], max_p: float = MAX_P) -> list[KeyHistory]:
    """A history a key, in the order of the samples, of which those of one key follow each other."""
    return [history(key, list(own), max_p) for key, own in groupby(samples, key=lambda s: s.entry.key)]


def history(key: Key, samples: list[Sample], max_p: float = MAX_P) -> KeyHistory:
    """The history of one key from its captures, in any order."""
    groups: dict[str, list[Sample]] = {}  # by commit, at the place of its first capture
    for sample in sorted(samples, key=lambda sample: (sample.entry.time_ns, sample.entry.url)):
        entry = sample.entry
        own = entry.commit is None or entry.dirty  # unknown or changed code is equal to nothing
        groups.setdefault(entry.url if own else str(entry.commit), []).append(sample)
    commits = tuple(Commit(label_of(of[0].entry), of[0].entry.commit, tuple(of)) for of in groups.values())
    trends = [_trend(name, commits, max_p) for name in SHOWN]
    return KeyHistory(key, commits, tuple(t for t in trends if any(v is not None for v in t.values)))


def too_few(trend: Trend, max_p: float = MAX_P) -> int:
    """Commits with a value that are missing before any change could be told from noise; 0 where there are enough."""
    return max(least_values(max_p) - sum(value is not None for value in trend.values), 0)


def label_of(entry: Entry) -> str:
    """A commit's first seven digits, with a + where the code was changed since."""
    return "unknown" if entry.commit is None else entry.commit[:7] + ("+" if entry.dirty else "")


def _trend(name: str, commits: tuple[Commit, ...], max_p: float) -> Trend:
    metric = BY_NAME[name]
    values = tuple(commit.value(name) for commit in commits)
    known = [position for position, value in enumerate(values) if value is not None][-MOST_COMMITS:]
    changes = []
    for point in change_points([values[position] for position in known], max_p=max_p):  # type: ignore[misc]
        before, after = point.before, point.after
        verdict: Literal["worse", "better", "neither"] = "neither"
        if metric.better != "neither":
            verdict = "better" if (after > before) == (metric.better == "higher") else "worse"
        pct = 100.0 * (after - before) / before if before else None
        at, last = known[point.index], known[point.index - 1]
        changes.append(LevelChange(at, commits[at], commits[last], before, after, pct, point.p, verdict))
    return Trend(name, metric.label, metric.unit, metric.better, values, tuple(changes))
