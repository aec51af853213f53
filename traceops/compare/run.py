"""From two sides of captures to a Comparison: refuse, measure, judge, explain."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from datetime import date
from pathlib import PurePath
from typing import Literal

import msgspec
from msgspec.structs import replace

from traceops.compare.capture import ComparedCapture, findings_of_most, on_ranks, ranks_of, timed_series
from traceops.compare.changes import find_changes, memory_explanation
from traceops.compare.comparable import damaged, differences, refusals, unlike_steps
from traceops.compare.config import CompareConfig
from traceops.compare.explain import explain
from traceops.compare.judge import (
    apart,
    launch_noise_pct,
    measure,
    odd_captures,
    outlier_steps,
    overall,
    reason_for_more,
    step_bound,
)
from traceops.compare.ledger import ledger_of
from traceops.compare.metrics import MIN_STEPS, enough_unprofiled, metrics_for
from traceops.compare.model import Comparison, MetricChange, NotJudged, Side, StepPoint, metric_of
from traceops.compare.sentence import sentence, unchanged, values_text
from traceops.compare.statistics import LEAST_FREEDOM, LEAST_PAIRS, taken_in_turn
from traceops.core.errors import UsageError
from traceops.core.findings import Finding
from traceops.core.rank_text import who
from traceops.measure.ledger import BUCKETS
from traceops.rules import stragglers
from traceops.rules.regression import check_regressions, regression

_LARGE_PCT = 20.0  # of the step


def compare(
    base: Sequence[ComparedCapture],
    head: Sequence[ComparedCapture],
    config: CompareConfig | None = None,
    *,
    force: bool = False,
    today: date | None = None,
) -> Comparison:
    """Whether `head` is slower than `base`, by how much, how sure that is, and why.

    Raises UsageError with the reasons where the two are not comparable, and leaves open what rests on steps that are
    not of one kind; neither where `force`.
    """
    config, today = config or CompareConfig(), today or date.today()
    base, head = (_in_order(side) for side in _told_apart(base, head))
    cut_off = damaged(base, head)
    everywhere = frozenset.intersection(*(ranks_of(capture) for capture in (*base, *head)))
    differ = bool(everywhere) and any(ranks_of(capture) != everywhere for capture in (*base, *head))
    if differ:
        base, head = ([on_ranks(capture, everywhere) for capture in side] for side in (base, head))
    reasons = refusals(base, head)
    if reasons and not force:
        listed = "\n".join(f"  {reason}" for reason in reasons)
        raise UsageError(f"these runs cannot be compared:\n{listed}\n--force compares them anyway")
    in_turn = taken_in_turn(*([c.info.started_ns for c in side] for side in (base, head)))
    paired = in_turn and len(base) >= LEAST_PAIRS
    assumed = len(base) + len(head) - 2 < LEAST_FREEDOM
    device = "cpu" if base[0].run.device_type == "cpu" else "cuda"
    metrics = metrics_for((base, head))
    step_time = next(metric for metric in metrics if metric.name == "step_time")
    noise_pct = config.launch_noise_pct
    if noise_pct is None:
        noise_pct = launch_noise_pct(step_time, base, head, device)
    # Captures that were not taken in turn may have met different sessions of the machine.
    floor_pct = 0.0 if in_turn else noise_pct or 0.0
    if device == "cpu":
        floor_pct = (noise_pct or 0.0) * math.sqrt(1 / len(base) + 1 / len(head))
    unlike = () if force else unlike_steps(base, head)
    open_ = {name: one.short for one in reversed(unlike) for name in one.metrics}
    by_profiler = all(one.of_profiler for one in unlike if "step_time" in one.metrics)
    if "step_time" in open_:
        bound = step_bound(base, head) if by_profiler else None
    else:
        timed = [[step_time.series(capture) for capture in side] for side in (base, head)]
        bound = apart(*timed, on_gpus=device == "cuda")
    rows = measure(
        metrics, base, head, config,
        noise_pct=noise_pct, paired=paired, floor_pct=floor_pct, today=today, unlike=open_, bound=bound,
    )  # fmt: skip
    profiled = metric_of(rows, "profiled_step_time")
    changes = find_changes(base, head, (profiled.base if profiled else None) or 1.0)
    worse = [row for row in rows if row.outcome == "regression"]
    ledger = ledger_of(rows, BUCKETS, "CPU" if device == "cpu" else "GPU")
    explanations = (
        explain(ledger, changes, base, head, _wanted_ms(rows), [row.metric for row in worse])
        if ledger is not None and "step_time" not in open_
        else ()
    )
    held = memory_explanation(base, head) if _moved(rows, "peak_memory") else None
    if held is not None:
        explanations = (*explanations, held)
    verdict = overall(rows)
    new, gone = _findings_of(base, head)
    notes = [_step_time_from(base, head)]
    if differ:
        notes.append(f"compared on {who(sorted(everywhere))}, of which all captures have traces")
    if config.expired(today):
        notes += [f"the waiver of {w.metric} expired on {w.until}: {w.reason}" for w in config.expired(today)]
    result = Comparison(
        verdict=verdict,
        sentence="",
        base=_side("base", base),
        head=_side("head", head),
        metrics=rows,
        explanations=explanations,
        changes=changes,
        unchanged=unchanged(rows, changes, base, head),
        outliers=(*outlier_steps("base", base), *outlier_steps("head", head)),
        new_findings=new,
        gone_findings=gone,
        findings=tuple(
            regression(row, values_text(row), "" if because is None else because.text)
            for row in worse
            for because in [held if row.metric == "peak_memory" else reason_for_more(row, explanations)]
        ),
        checks=(check_regressions(worse, _undecided(rows, verdict)),),
        refusals=tuple(reasons),
        not_judged=tuple(NotJudged(one.why, one.cure, tuple(sorted(one.metrics))) for one in unlike if one.metrics),
        warnings=(*cut_off, *differences(base, head), *_not_in_turn(base, head, in_turn), *odd_captures(base, head)),
        notes=tuple(notes),
        paired=paired,
        confidence=config.confidence,
        power=config.power,
        launch_noise_pct=noise_pct if assumed else None,
        settings={
            "thresholds": {row.metric: row.threshold_pct for row in rows if row.threshold_pct is not None},
            "source": config.source,
            "forced": bool(reasons),
        },
        steps=(*_points("base", base), *_points("head", head)),
    )
    return replace(result, sentence=sentence(result))


def _told_apart(*sides: Sequence[ComparedCapture]) -> list[list[ComparedCapture]]:
    """The captures with names that differ: where runs are called alike, the folders they lie in come first."""
    everyone = [capture for side in sides for capture in side]
    names = [capture.info.name for capture in everyone]
    for depth in range(2, 6):
        if len(set(names)) == len(names):
            break
        names = ["/".join(PurePath(capture.info.path).parts[-depth:]) for capture in everyone]
    named = iter(names)
    return [[replace(capture, info=replace(capture.info, name=next(named))) for capture in side] for side in sides]


def _in_order(side: Sequence[ComparedCapture]) -> list[ComparedCapture]:
    """By start time where all are known, so that pairs are pairs."""
    if any(c.info.started_ns is None for c in side):
        return list(side)
    return sorted(side, key=lambda c: c.info.started_ns or 0)


def _side(label: str, captures: Sequence[ComparedCapture]) -> Side:
    return Side(label, tuple(c.info for c in captures), captures[0].run_object)


def _moved(rows: Sequence[MetricChange], name: str) -> bool:
    """Whether a metric got worse or better, or seems to."""
    row = metric_of(rows, name)
    return row is not None and row.outcome in ("regression", "improvement", "waived", "inconclusive")


def _wanted_ms(rows: Sequence[MetricChange]) -> float | None:
    """The change of the step that asks for a reason: one that is certain, or very large where nothing was tested."""
    step = metric_of(rows, "step_time")
    if step is None or step.change is None or step.change_pct is None:
        return None
    certain = step.outcome in ("regression", "improvement", "waived")
    return step.change if certain or abs(step.change_pct) >= _LARGE_PCT else None


def _not_in_turn(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture], in_turn: bool) -> list[str]:
    if in_turn or len(base) + len(head) <= 2:
        return []
    return [
        "base and head were not taken in turn: what differs between their sessions counts as a change "
        "(traceops run --against takes them in turn)"
    ]


def _step_time_from(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> str:
    if enough_unprofiled((base, head)):
        return "step time and throughput are those of steps without the profiler; the ledger is of profiled steps"
    return (
        "step time and throughput are those of profiled steps: fewer than "
        f"{MIN_STEPS} steps without the profiler were timed on a side"
    )


def _points(side: Literal["base", "head"], captures: Sequence[ComparedCapture]) -> list[StepPoint]:
    return [
        StepPoint(side, capture.info.name, index, profiled, float(ms))
        for capture in captures
        for profiled, series in timed_series(capture)
        for index, ms in enumerate(series)
    ]


def _findings_of(
    base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Findings above info that most captures of one side have and none of the other does, by rule and cause."""
    sides = [findings_of_most(side, _key) for side in (base, head)]
    anywhere = [{_key(f) for c in side for f in c.report.findings} for side in (base, head)]
    new = tuple(_finding(f) for key, f in sides[1].items() if key not in anywhere[0])
    gone = tuple(_finding(f) for key, f in sides[0].items() if key not in anywhere[1])
    return new, gone


def _key(found: Finding) -> Hashable:
    """Rule and cause; of stragglers also the ranks."""
    return found.rule, found.cause, found.ranks if found.rule in stragglers.IDS else ()


def _finding(found: Finding) -> Finding:
    """A finding of a side, without its steps, which are those of one capture."""
    evidence = tuple(msgspec.structs.replace(known) for known in found.evidence)  # with the keys its report lacked
    return msgspec.structs.replace(found, steps=(), evidence=evidence)


def _undecided(rows: Sequence[MetricChange], verdict: str) -> str | None:
    if verdict != "inconclusive":
        return None
    step = metric_of(rows, "step_time")
    return step.reason if step else "not known"
