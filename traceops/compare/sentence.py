"""The one line a comparison opens with."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.compare.explanation_text import number, size_text
from traceops.compare.model import Comparison, MetricChange


def sentence(comparison: Comparison) -> str:
    """Slower or not, by how much, how sure, and why: plain text."""
    regressed = [row for row in comparison.metrics if row.outcome == "regression"]
    step = next((row for row in comparison.metrics if row.metric == "step_time"), None)
    why = f" {_upper(comparison.explanations[0].text)}." if comparison.explanations else ""
    if comparison.verdict == "regression":
        main = step if step in regressed else regressed[0]
        assert main is not None
        others = [row for row in regressed if row is not main and row.metric != "throughput"]
        more = (
            f" Also worse: {', '.join(f'{row.label} ({_change(row)})' for row in others)}." if others else ""
        )
        open_step = ""
        if step is not None and main is not step and step.outcome == "inconclusive":
            open_step = f" The step time itself is open: {step.reason}."
        return f"Regression: {main.label} {values_text(main)}.{why}{more}{open_step}"
    if comparison.verdict == "improvement":
        best = next(row for row in comparison.gated if row.outcome == "improvement")
        if step is not None and step.outcome == "improvement":
            return f"Faster: step time {values_text(step)}.{why}"
        return f"Better: {best.label} {values_text(best)}.{why}"
    if step is None or step.base is None or step.head is None:
        return "Inconclusive: the step time of a side is not known."
    if comparison.verdict == "inconclusive":
        looks = f" It looks like {values_text(step)}." if step.change_pct is not None else ""
        wanted = _wanted(comparison, step)
        return f"Inconclusive: {step.reason}.{looks}{wanted}{_why_if_moved(comparison, step, why)}"
    waived = [row for row in comparison.metrics if row.outcome == "waived"]
    accepted = f" Accepted by a waiver: {_listed(waived)}." if waived else ""
    times = number(10 * comparison.power)
    found = (
        f" A change of {step.mde_pct:.1f} % would have been found {times} times of 10."
        if step.mde_pct
        else ""
    )
    if step in waived:
        return f"No regression beyond what is waived.{accepted}"
    return f"No regression: step time {values_text(step)}.{found}{accepted}"


def _why_if_moved(comparison: Comparison, step: MetricChange, why: str) -> str:
    threshold = step.threshold_pct or 0.0
    return why if step.change_pct is not None and abs(step.change_pct) >= threshold > 0 else ""


def _wanted(comparison: Comparison, step: MetricChange) -> str:
    if len(comparison.base.captures) >= 3 and len(comparison.head.captures) >= 3:
        return " More captures a side would settle it."
    return (
        " Several captures a side settle it: traceops run --repeat 5 --against REF."
        if step.p is not None
        else ""
    )


def values_text(row: MetricChange) -> str:
    """Base, head, and the change in percent with its interval."""
    interval = ""
    if row.low_pct is not None and row.high_pct is not None:
        interval = f", {row.low_pct:+.1f} to {row.high_pct:+.1f}"
    pct = f" ({row.change_pct:+.1f} %{interval})" if row.change_pct is not None else ""
    return f"{_value(row, row.base)} → {_value(row, row.head)}{pct}"


def _listed(rows: Sequence[MetricChange]) -> str:
    return ", ".join(f"{row.label} ({_change(row)})" for row in rows)


def _change(row: MetricChange) -> str:
    if row.change_pct is not None:
        return f"{row.change_pct:+.1f} %"
    return f"{_value(row, row.base)} → {_value(row, row.head)}"


def _value(row: MetricChange, value: float | None) -> str:
    if value is None:
        return "not known"
    if row.unit == "B":
        return size_text(value)
    if not row.unit:
        return number(value)
    return f"{value:.4g} {row.unit}"


def _upper(text: str) -> str:
    """As a sentence begins, unless it begins with the name of an operator or kernel."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text
