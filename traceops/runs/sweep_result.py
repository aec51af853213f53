"""What a sweep found: the best combination, and what its steps have less of."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from traceops.compare.student import quantile
from traceops.core.units import stored
from traceops.measure.ledger import BUCKETS
from traceops.runs.model import RunRow
from traceops.runs.search import SweepSearch, rate_of
from traceops.runs.sweep_model import LedgerDifference, PointRow, SweepDocument, SweepState, SweepTrial
from traceops.runs.vary import Point

_SURE = 0.975  # two-sided, 5 %
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
    return SweepDocument(
        name=name,
        command=state.command,
        varied=tuple(points[0].words),
        complete=found.complete,
        by_samples=bool(finished) and all(trial.samples_per_s for trial in finished),
        best=None if best is None else points[best].label,
        against=None if other is None else points[other].label,
        told_apart=None if best is None or other is None else _told_apart(trials, best, other),
        why=() if best is None or other is None else _why(rows, trials, best, other),
        points=tuple(
            _point_row(place, point, found, rates[place], rates[best] if best is not None else 0.0)
            for place, point in enumerate(points)
        ),
        trials=trials,
        runs=tuple(rows),
    )


def _point_row(place: int, point: Point, found: SweepSearch, rate: float, most: float) -> PointRow:
    own = [trial for trial in found.trials if trial.point == place]
    finished = [trial for trial in own if trial.status == "finished"]
    failed = [trial for trial in own if trial.status != "finished"]
    steps = [trial.step_ms for trial in finished if trial.step_ms]
    samples = [trial.samples_per_s for trial in finished if trial.samples_per_s]
    reason = failed[-1].reason if failed else ""
    if not reason and place in found.given_up:
        reason = "slower than half of the others, so it was not trained again"
    elif not own:
        reason = "not trained: the time was up"
    return PointRow(
        label=point.label,
        settings=point.words,
        trained=len(finished),
        failed=len(failed),
        reason=reason,
        samples_per_s=stored(statistics.fmean(samples)) if samples else None,
        step_ms=stored(statistics.fmean(steps)) if steps else None,
        spread_pct=stored(100 * statistics.stdev(steps) / statistics.fmean(steps)) if len(steps) > 1 else None,
        behind_pct=stored(100 * (1 - rate / most)) if rate and most else None,
    )


def _told_apart(trials: Sequence[SweepTrial], best: int, other: int) -> bool | None:
    """Whether two combinations' steps differ by more than chance: a t test on their trainings, None without repeats."""
    sides = [
        [t.step_ms if not t.samples_per_s else 1e3 / t.samples_per_s for t in trials if t.point == place and t.step_ms]
        for place in (best, other)
    ]
    if any(len(side) < 2 for side in sides):
        return None
    error = sum(statistics.variance(side) / len(side) for side in sides) ** 0.5
    df = sum(len(side) for side in sides) - 2
    gap = abs(statistics.fmean(sides[0]) - statistics.fmean(sides[1]))
    return bool(gap > quantile(_SURE, df) * error)


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
