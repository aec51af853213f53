"""From two sides of captures to a Comparison: refuse, measure, judge, explain."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from datetime import date
from pathlib import PurePath
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from traceops.compare import judge
from traceops.compare.capture import Captures, ComparedCapture, findings_of_most, on_ranks, ranks_of, timed_series
from traceops.compare.changes import find_changes, ledger_of, memory_explanation, say
from traceops.compare.comparable import Unlike, damaged, differences, refusals, unlike_steps
from traceops.compare.config import CompareConfig
from traceops.compare.explain import explain
from traceops.compare.metrics import MIN_STEPS, Metric, enough_unprofiled, metrics_for
from traceops.compare.model import Comparison, Explanation, MetricChange, NotJudged, Side, StepPoint, metric_of
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
    base: Captures,
    head: Captures,
    config: CompareConfig | None = None,
    *,
    force: bool = False,
    today: date | None = None,
) -> Comparison:
    """Whether `head` is slower than `base`, by how much, how sure that is, and why. Raises UsageError with the reasons
    where the two are not comparable, and leaves open what rests on steps that are not of one kind; neither where
    `force`."""
    config, today = config or CompareConfig(), today or date.today()
    base, head = (_in_order(side) for side in _told_apart(base, head))
    cut_off = damaged(base, head)
    base, head, common = _on_common_ranks(base, head)
    reasons = refusals(base, head)
    if not force:
        _check_comparable(reasons)
    on_cpu = base[0].run.device_type == "cpu"
    metrics = metrics_for((base, head))
    step_time = next(metric for metric in metrics if metric.name == "step_time")
    noise = _noise(step_time, base, head, config, on_cpu=on_cpu)
    unlike = () if force else unlike_steps(base, head)
    open_ = _open_metrics(unlike)
    rows = judge.measure(
        metrics, base, head, config,
        noise_pct=noise.pct, paired=noise.paired, floor_pct=noise.floor_pct, today=today, unlike=open_,
        bound=_bound(step_time, base, head, unlike, on_cpu=on_cpu),
    )  # fmt: skip
    changes = find_changes(base, head, _profiled_ms(rows))
    worse = [row for row in rows if row.outcome == "regression"]
    ledger = ledger_of(rows, BUCKETS, "CPU" if on_cpu else "GPU") if "step_time" not in open_ else None
    wanted = (_wanted_ms(rows), [row.metric for row in worse])
    explanations = () if ledger is None else explain(ledger, changes, base, head, *wanted)
    held = memory_explanation(base, head) if _moved(rows, "peak_memory") else None
    verdict = judge.overall(rows)
    new, gone = _findings_of(base, head)
    result = Comparison(
        verdict=verdict,
        sentence="",
        base=_side("base", base),
        head=_side("head", head),
        metrics=rows,
        explanations=explanations if held is None else (*explanations, held),
        changes=changes,
        unchanged=unchanged(rows, changes, base, head),
        outliers=(*judge.outlier_steps("base", base), *judge.outlier_steps("head", head)),
        new_findings=new,
        gone_findings=gone,
        findings=tuple(_regression(row, held, explanations) for row in worse),
        checks=(check_regressions(worse, _undecided(rows, verdict)),),
        refusals=tuple(reasons),
        not_judged=tuple(NotJudged(one.why, one.cure, tuple(sorted(one.metrics))) for one in unlike if one.metrics),
        warnings=(
            *cut_off,
            *differences(base, head),
            *_not_in_turn(base, head, noise.in_turn),
            *judge.odd_captures(base, head),
        ),
        notes=_notes(base, head, common, config, today),
        paired=noise.paired,
        confidence=config.confidence,
        power=config.power,
        launch_noise_pct=noise.pct if len(base) + len(head) - 2 < LEAST_FREEDOM else None,
        settings={"thresholds": _thresholds(rows), "source": config.source, "forced": bool(reasons)},
        steps=(*_points("base", base), *_points("head", head)),
    )
    return replace(result, sentence=sentence(result))


def _check_comparable(reasons: Sequence[str]) -> None:
    """Raises UsageError where there are reasons not to compare."""
    if reasons:
        listed = "\n".join(f"  {reason}" for reason in reasons)
        raise UsageError(f"these runs cannot be compared:\n{listed}\n--force compares them anyway")


def _on_common_ranks(base: Captures, head: Captures) -> tuple[Captures, Captures, frozenset[int]]:
    """Both sides on the ranks that all captures have, and these ranks; none where no capture has others."""
    known = [ranks_of(capture) for capture in (*base, *head)]
    common = frozenset.intersection(*known)
    if not common or all(ranks == common for ranks in known):
        return base, head, frozenset()
    return [on_ranks(one, common) for one in base], [on_ranks(one, common) for one in head], common


class _Noise(Struct, frozen=True):
    """pct: what launches of one code may differ by, of a step; floor_pct: what is assumed however little they did."""

    in_turn: bool
    paired: bool
    pct: float | None
    floor_pct: float


def _noise(step_time: Metric, base: Captures, head: Captures, config: CompareConfig, *, on_cpu: bool) -> _Noise:
    in_turn = taken_in_turn(*([c.info.started_ns for c in side] for side in (base, head)))
    if (pct := config.launch_noise_pct) is None:
        pct = _launches_differ_by(step_time, (base, head), on_cpu)
    # Captures that were not taken in turn may have met different sessions of the machine.
    floor_pct = 0.0 if in_turn else pct or 0.0
    if on_cpu:
        floor_pct = (pct or 0.0) * math.sqrt(1 / len(base) + 1 / len(head))
    return _Noise(in_turn, in_turn and len(base) >= LEAST_PAIRS, pct, floor_pct)


def _launches_differ_by(step_time: Metric, sides: Sequence[Captures], on_cpu: bool) -> float | None:
    timed = [([step_time.series(capture) for capture in side], judge.waited_pct(side)) for side in sides]
    return judge.launch_noise_pct(timed, "cpu" if on_cpu else "cuda")


def _bound(
    step_time: Metric, base: Captures, head: Captures, unlike: Sequence[Unlike], *, on_cpu: bool
) -> judge.StepBound | None:
    """What is certain of the step time whatever noise, and the profiler where that is all that is unlike, may add."""
    if open_ := [one for one in unlike if step_time.name in one.metrics]:
        return judge.step_bound(base, head) if all(one.of_profiler for one in open_) else None
    timed = [[step_time.series(capture) for capture in side] for side in (base, head)]
    return judge.apart(*timed, noise_pct=_launches_differ_by(step_time, (base, head), on_cpu), on_gpus=not on_cpu)


def _regression(row: MetricChange, held: Explanation | None, explanations: Sequence[Explanation]) -> Finding:
    because = held if row.metric == "peak_memory" else judge.reason_for_more(row, explanations)
    return regression(row, values_text(row), "" if because is None else because.text)


def _notes(
    base: Captures, head: Captures, common: frozenset[int], config: CompareConfig, today: date
) -> tuple[str, ...]:
    timed = "without_profiler" if enough_unprofiled((base, head)) else "with_profiler"
    return (
        say(timed, needed=MIN_STEPS),
        *([say("common_ranks", ranks=who(sorted(common)))] if common else ()),
        *(say("expired", metric=w.metric, until=w.until, reason=w.reason) for w in config.expired(today)),
    )


def _told_apart(*sides: Captures) -> list[list[ComparedCapture]]:
    """The captures with names that differ: where runs are called alike, the folders they lie in come first."""
    everyone = [capture for side in sides for capture in side]
    names = [capture.info.name for capture in everyone]
    for depth in range(2, 6):
        if len(set(names)) == len(names):
            break
        names = ["/".join(PurePath(capture.info.path).parts[-depth:]) for capture in everyone]
    named = iter(names)
    return [[replace(capture, info=replace(capture.info, name=next(named))) for capture in side] for side in sides]


def _in_order(side: Captures) -> list[ComparedCapture]:
    """By start time where all are known, so that pairs are pairs."""
    if any(c.info.started_ns is None for c in side):
        return list(side)
    return sorted(side, key=lambda c: c.info.started_ns or 0)


def _side(label: str, captures: Captures) -> Side:
    return Side(label, tuple(c.info for c in captures), captures[0].run_object)


def _profiled_ms(rows: Sequence[MetricChange]) -> float:
    """What a profiled step of base takes; 1 where that is not known."""
    profiled = metric_of(rows, "profiled_step_time")
    return (profiled.base if profiled is not None else None) or 1.0


def _thresholds(rows: Sequence[MetricChange]) -> dict[str, float]:
    return {row.metric: row.threshold_pct for row in rows if row.threshold_pct is not None}


def _open_metrics(unlike: Sequence[Unlike]) -> dict[str, str]:
    """Metrics that steps of different kinds leave open, and what makes them so, in a few words."""
    return {name: one.short for one in reversed(unlike) for name in one.metrics}


def _moved(rows: Sequence[MetricChange], name: str) -> bool:
    """Whether a metric got worse or better, or seems to."""
    row = metric_of(rows, name)
    return row is not None and row.outcome in ("regression", "improvement", "waived", "inconclusive")


def _wanted_ms(rows: Sequence[MetricChange]) -> float | None:
    """The change of the step that asks for a reason: one that is certain, or very large where nothing was tested."""
    if (step := metric_of(rows, "step_time")) is None or step.change is None or step.change_pct is None:
        return None
    certain = step.outcome in ("regression", "improvement", "waived")
    return step.change if certain or abs(step.change_pct) >= _LARGE_PCT else None


def _not_in_turn(base: Captures, head: Captures, in_turn: bool) -> list[str]:
    if in_turn or len(base) + len(head) <= 2:
        return []
    return [say("not_in_turn")]


def _points(side: Literal["base", "head"], captures: Captures) -> list[StepPoint]:
    return [
        StepPoint(side, capture.info.name, index, profiled, float(ms))
        for capture in captures
        for profiled, series in timed_series(capture)
        for index, ms in enumerate(series)
    ]


def _findings_of(base: Captures, head: Captures) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
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
