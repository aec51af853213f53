"""The history of a key: its captures by commit in time order, each metric's trend and where it changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from traceops.baseline.change_points import MAX_P, ChangePoint, change_points, least_values
from traceops.baseline.entry import Entry, StoredReport
from traceops.baseline.key import Key
from traceops.baseline.store import Problem
from traceops.compare.metrics import BY_NAME, MIN_STEPS
from traceops.core.errors import InputError, problem_of
from traceops.core.units import minute_text

# Of `compare.metrics.METRICS`. Those of steps without the profiler are not known of captures that timed too few.
UNPROFILED = ("step_time", "throughput")
SHOWN = (*UNPROFILED, "profiled_step_time", "exposed_comm", "idle", "peak_memory")
MOST_COMMITS = 400  # the last ones, in which changes are looked for


@dataclass(frozen=True)
class Sample:
    """One capture: its entry, and the value of each metric in SHOWN, None where it is not known."""

    entry: Entry
    values: dict[str, float | None]

    @property
    def step_ms(self) -> float | None:
        """The step time without the profiler, or else with it."""
        own = self.values["step_time"]
        return self.values["profiled_step_time"] if own is None else own


@dataclass(frozen=True)
class Commit:
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


@dataclass(frozen=True)
class LevelChange:
    """A lasting change of a metric.

    position: of the first commit at the new level among the key's commits; since, last: that commit, and the
    last one known at the old level. before, after: the levels in the metric's unit, to the neighbouring
    changes. change_pct: of the level before, None where that is 0. p: see `ChangePoint`.
    """

    position: int
    since: Commit
    last: Commit
    before: float
    after: float
    change_pct: float | None
    p: float
    verdict: Literal["worse", "better", "neither"]


@dataclass(frozen=True)
class Trend:
    """One metric over the commits of a key: a value a commit, None where it is not known."""

    metric: str
    label: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    values: tuple[float | None, ...]
    changes: tuple[LevelChange, ...]


@dataclass(frozen=True)
class KeyHistory:
    """Everything known of one key, in time order. Metrics that no capture knows have no trend."""

    key: Key
    commits: tuple[Commit, ...]
    trends: tuple[Trend, ...]

    @property
    def samples(self) -> tuple[Sample, ...]:
        """All captures in time order."""
        all_of = (sample for commit in self.commits for sample in commit.samples)
        return tuple(sorted(all_of, key=lambda sample: (sample.entry.time_ns, sample.entry.url)))


def sample_of(stored: StoredReport) -> Sample:
    """The values of one capture. Raises InputError for a report that is none."""
    capture = stored.capture()
    enough = capture.info.unprofiled_steps >= MIN_STEPS
    values: dict[str, float | None] = {}
    for name in SHOWN:
        metric = BY_NAME[name]
        series = metric.series(capture) if enough or name not in UNPROFILED else np.empty(0)
        values[name] = round(float(metric.location(series)), 6) if len(series) else None
    return Sample(stored.entry, values)


def samples_of(scanned: Iterable[StoredReport], problems: list[Problem]) -> Iterator[Sample]:
    """The values of each of what `store.scan` yields; entries whose report is none join the problems."""
    for stored in scanned:
        try:
            yield sample_of(stored)
        except InputError as error:
            problems.append(Problem(stored.entry.url, problem_of(error)))


def histories(samples: Iterable[Sample], max_p: float = MAX_P) -> list[KeyHistory]:
    """A history a key, in the order of the samples, of which those of one key follow each other."""
    return [history(key, list(own), max_p) for key, own in groupby(samples, key=lambda s: s.entry.key)]


def history(key: Key, samples: list[Sample], max_p: float = MAX_P) -> KeyHistory:
    """The history of one key from its captures, in any order."""
    commits = _by_commit(sorted(samples, key=lambda sample: (sample.entry.time_ns, sample.entry.url)))
    trends = [_trend(name, commits, max_p) for name in SHOWN]
    return KeyHistory(key, commits, tuple(t for t in trends if any(v is not None for v in t.values)))


def too_few(trend: Trend, max_p: float = MAX_P) -> int:
    """Commits with a value that are missing before any change could be told from noise; 0 where there are enough."""
    return max(least_values(max_p) - sum(value is not None for value in trend.values), 0)


def label_of(entry: Entry) -> str:
    """A commit's first seven digits, with a + where the code was changed since."""
    return "unknown" if entry.commit is None else entry.commit[:7] + ("+" if entry.dirty else "")


def _by_commit(samples: list[Sample]) -> tuple[Commit, ...]:
    """One group a commit, at the place of its first capture; unknown or changed code is equal to nothing."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        entry = sample.entry
        same = entry.commit if entry.commit is not None and not entry.dirty else entry.url
        groups.setdefault(same, []).append(sample)
    return tuple(Commit(label_of(own[0].entry), own[0].entry.commit, tuple(own)) for own in groups.values())


def _trend(name: str, commits: tuple[Commit, ...], max_p: float) -> Trend:
    metric = BY_NAME[name]
    values = tuple(commit.value(name) for commit in commits)
    known = [position for position, value in enumerate(values) if value is not None][-MOST_COMMITS:]
    found = change_points([values[position] for position in known], max_p=max_p)  # type: ignore[misc]
    return Trend(
        name,
        metric.label,
        metric.unit,
        metric.better,
        values,
        tuple(_change(metric.better, point, known, commits) for point in found),
    )


def _change(better: str, point: ChangePoint, known: list[int], commits: tuple[Commit, ...]) -> LevelChange:
    verdict: Literal["worse", "better", "neither"] = "neither"
    if better != "neither":
        verdict = "better" if (point.after > point.before) == (better == "higher") else "worse"
    return LevelChange(
        position=known[point.index],
        since=commits[known[point.index]],
        last=commits[known[point.index - 1]],
        before=point.before,
        after=point.after,
        change_pct=100.0 * (point.after - point.before) / point.before if point.before else None,
        p=point.p,
        verdict=verdict,
    )
