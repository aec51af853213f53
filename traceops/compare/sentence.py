"""The one line a comparison opens with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from traceops.compare.capture import Captures, inventories
from traceops.compare.changes import say
from traceops.compare.judge import reason_for_more, worse_for_certain
from traceops.compare.metrics import BY_NAME, MIN_STEPS
from traceops.compare.model import Change, Comparison, Explanation, MetricChange, metric_of
from traceops.core.claims import first_phrase, phrases
from traceops.core.units import count_text, digits_text, gib_text, size_text

_phrase = partial(first_phrase, "compare", "reasons")
"""The first text of a kind of which all facts are known."""

_TOO_MANY = 50  # captures a side
_MOST_VARIABLES = 3
_TWICE = 2.0  # base's step: what nearly no profiler costs
_FAR = 4.0  # limits, beyond which few steps are told first as what they look like


def headline(comparison: Comparison) -> tuple[str, str]:
    """The verdict in 90 characters, and how sure it is and why: the same as `sentence`, in two parts."""
    step = metric_of(comparison.metrics, "step_time")
    parts = _parts(comparison)
    main = next((row for row in comparison.metrics if row.outcome == comparison.verdict), step)
    if step is not None and step.outcome == comparison.verdict:
        main = step
    first = parts[0].partition(":")[0]
    if main is None or main.base is None or main.head is None or ":" not in parts[0]:
        return parts[0], " ".join(filter(None, parts[1:]))
    pct = f" ({_change(main)})" if main.change_pct is not None else _bound_text(main)
    short = f"{first}: {main.label} {_value(main, main.base)} → {_value(main, main.head)}{pct}"
    if comparison.verdict == "inconclusive":
        return short, " ".join(filter(None, _inconclusive(comparison, main, values_known=True)))
    low, high, noise = main.low_pct, main.high_pct, comparison.launch_noise_pct
    certain = f"{_upper(main.reason)}." if _certain(main) else ""
    if low is not None and high is not None:
        certain = say("interval", pct=100 * comparison.confidence, low=_signed(low), high=_signed(high))
        if noise is not None and main.p is not None:
            certain += f", {say('assumed', noise=round(noise, 1))}"
        certain += "."
    return short, " ".join(filter(None, [certain, *parts[1:]]))


def sentence(comparison: Comparison) -> str:
    """Slower or not, by how much, how sure, and why: plain text."""
    return " ".join(part for part in _parts(comparison) if part)


def _parts(comparison: Comparison) -> list[str]:
    step = metric_of(comparison.metrics, "step_time")
    if comparison.verdict == "regression":
        return _regression(comparison, step)
    if comparison.verdict == "improvement":
        if step is not None and step.outcome == "improvement":
            faster = f"{say('faster', values=values_text(step))}{_certain(step)}."
            return [faster, _why(comparison, step), _open_text(comparison)]
        best = next(row for row in comparison.gated if row.outcome == "improvement")
        why = _why_memory(comparison) if best.metric == "peak_memory" else ""
        return [say("better_metric", label=best.label, values=values_text(best)), why, _open_text(comparison)]
    if step is None or step.base is None or step.head is None:
        return [say("step_unknown")]
    if comparison.verdict == "inconclusive":
        return _inconclusive(comparison, step)
    return _no_regression(comparison, step)


def _inconclusive(comparison: Comparison, step: MetricChange, *, values_known: bool = False) -> list[str]:
    """Why the step is not judged, what it looks like and what would settle it. values_known: stated before these."""
    values = None if values_known else values_text(step)
    open_ = _open_text(comparison)
    unlike = next((one for one in comparison.not_judged if step.metric in one.metrics), None)
    if unlike is not None:
        opens = _phrase("not_judged", why=unlike.why, why_first=_upper(unlike.why), values=values)
        return [opens, _at_least(step), say("judge", cure=unlike.cure), open_]
    moved = 0.0 if step.change_pct is None or not step.threshold_pct else step.change_pct / step.threshold_pct
    why = _why_it_looks_so(comparison, step) if abs(moved) >= 1 and step.p is None else ""  # noise has no reason
    opens = say("inconclusive", reason=step.reason) if values else f"{_upper(step.reason)}."
    if abs(moved) >= _FAR and step.p is None:
        looks = _phrase("looks_far", way="slower" if moved > 0 else "faster", values=values)
        return [looks, why, opens, _wanted(comparison, step), open_]
    shown = None if step.change_pct is None else values
    interval = values_known and step.low_pct is not None and step.high_pct is not None
    bounds = [_signed(step.low_pct or 0.0), _signed(step.high_pct or 0.0)] if interval else None
    looks = _phrase("looks", values=shown, bounds=bounds, pct=f"{100 * comparison.confidence:g}")
    return [opens, looks, why, _wanted(comparison, step), open_]


def _at_least(step: MetricChange) -> str:
    """What must hold if a step that takes far longer is none: a profiler makes no step shorter."""
    base, head = step.base, step.head
    if base is None or head is None or head < _TWICE * base:
        return ""
    return say("slower_unless", more=digits_text(head - base), head=digits_text(head))


def _regression(comparison: Comparison, step: MetricChange | None) -> list[str]:
    regressed = [row for row in comparison.metrics if row.outcome == "regression"]
    main = step if step is not None and step in regressed else regressed[0]
    others = [row for row in regressed if row is not main and row.metric != "throughput"]
    if main.metric == "peak_memory":
        why = _why_memory(comparison)
    else:
        why = _why(comparison, step) if main is step else _because(reason_for_more(main, comparison.explanations))
    noise = comparison.launch_noise_pct
    assumed = "" if noise is None or main.p is None else say("assumed", noise=round(noise, 1))
    certain = f"{_certain(main)}{f', {assumed}' if assumed else ''}"
    return [
        f"{say('regression', label=main.label, values=values_text(main))}{certain}.",
        why,
        _differing(comparison, why),
        say("also_worse", others=_listed(others)) if others else "",
        say("step_open", reason=step.reason)
        if step is not None and main is not step and step.outcome == "inconclusive"
        else "",
    ]


def _no_regression(comparison: Comparison, step: MetricChange) -> list[str]:
    waived = [row for row in comparison.metrics if row.outcome == "waived"]
    accepted = say("accepted", waived=_listed(waived)) if waived else ""
    values, open_ = values_text(step), _open_text(comparison)
    if step in waived:
        return [say("all_waived"), accepted, open_]
    if step.threshold_pct is None:
        return [say("step_not_gated", values=values), accepted]
    if worse_for_certain(step, comparison.confidence):
        why = _because(reason_for_more(step, comparison.explanations))
        return [say("slower_below", threshold=step.threshold_pct, values=values), why, accepted, open_]
    times = count_text(10 * comparison.power)
    found = say("would_be_found", pct=f"{step.mde_pct:.1f}", times=times) if step.mde_pct else ""
    return [say("no_regression", values=values), found, accepted, open_]


def _certain(row: MetricChange) -> str:
    """Why a bound holds, behind a colon."""
    return f": {row.reason}" if _bound_text(row) else ""


def _why(comparison: Comparison, step: MetricChange) -> str:
    """The first explanation of a step time that changed for certain, if it points where that goes."""
    first = next((one for one in comparison.explanations if one.cause != "peak_memory"), None)
    if first is not None and first.ms * (step.change or 0.0) < 0:
        return say("not_shown_why")
    return _because(first)


def _because(explanation: Explanation | None) -> str:
    """An explanation as a sentence of its own."""
    return "" if explanation is None else f"{_upper(explanation.text)}."


def _why_it_looks_so(comparison: Comparison, step: MetricChange) -> str:
    """What goes the way of a step that could not be judged; what goes the other way is no reason."""
    change = step.change or 0.0
    along = (one for one in comparison.explanations if one.cause != "peak_memory" and one.ms * change >= 0)
    why = _because(next(along, None))
    return f"{why} {_differing(comparison, why, faster=change < 0)}".strip()


def _why_memory(comparison: Comparison) -> str:
    """What grew or shrank of the peak memory, where that is known."""
    return _because(next((one for one in comparison.explanations if one.cause == "peak_memory"), None))


def _differing(comparison: Comparison, why: str, *, faster: bool = False) -> str:
    """Variables that only one side has set and the reason does not name; else what head's report finds anew. Of a step
    that is faster what base's report found and head's does not: a new finding is no reason for it."""
    variables = [c for c in comparison.changes if c.kind == "environment" and c.name not in why]
    if told := [_variable(change) for change in variables[:_MOST_VARIABLES]]:
        if len(variables) > len(told):
            told.append(say("more_variables", count=len(variables) - len(told)))
        return f"{_upper('; '.join(told))}."
    found = next(iter(comparison.gone_findings if faster else comparison.new_findings), None)
    where = "Only in base" if faster else "New in head"
    return "" if found is None else f"{where}: {found.title} ({found.rule})."


def _variable(change: Change) -> str:
    """A variable that only one side sets, or that differs; an empty value is one."""
    if change.head_value is None:
        return f"only base sets {change.name}={change.base_value}"
    if change.base_value is None:
        return f"only head sets {change.name}={change.head_value}"
    return f"{change.name} is {change.head_value}, {change.base_value} before"


def _open_text(comparison: Comparison) -> str:
    """Gated metrics other than time that look worse beyond their threshold and could not be judged."""
    rows = [
        row
        for row in comparison.gated
        if row.outcome == "inconclusive" and row.family == "exact" and (row.change or 0.0) > 0
    ]
    return f"Open: {'; '.join(f'{row.label} ({_change(row)}): {row.reason}' for row in rows)}." if rows else ""


def _wanted(comparison: Comparison, step: MetricChange) -> str:
    """How many captures would settle it, from how wide the interval of these is."""
    captures = min(len(comparison.base.captures), len(comparison.head.captures))
    if captures < 3:
        enough = max(step.samples.base, step.samples.head) >= MIN_STEPS
        return (
            _phrase("several_settle", least=step.mde_pct if captures == 1 else None)
            if enough
            else say("more_steps_settle")
        )
    if step.low_pct is None or step.high_pct is None or not step.threshold_pct:
        return ""
    needed = math.ceil(captures * ((step.high_pct - step.low_pct) / step.threshold_pct) ** 2)
    if needed > _TOO_MANY:
        return say("too_noisy", threshold=step.threshold_pct)
    return say("captures_settle", needed=needed) if needed > captures else ""


def values_text(row: MetricChange) -> str:
    """Base, head, and the change in percent with its interval."""
    interval = ""
    if row.low_pct is not None and row.high_pct is not None:
        interval = f", {_signed(row.low_pct)} to {_signed(row.high_pct)}"
    elif row.change_pct is not None and (bound := row.low_pct if row.low_pct is not None else row.high_pct) is not None:
        interval = f", at least {abs(bound):.1f} %"
    if row.change_pct is not None:
        pct = f" ({_signed(row.change_pct)} %{interval})"
    else:
        pct = f" in recorded steps{certain}" if (certain := _bound_text(row)) else ""
    return f"{_value(row, row.base)} → {_value(row, row.head)}{pct}"


def _bound_text(row: MetricChange) -> str:
    """' (at least 12 % slower)' of a step time of which only that is certain."""
    if row.low_pct is not None and row.high_pct is not None:
        return ""
    slower, faster = (None if pct is None else f"{abs(pct):.1f}" for pct in (row.low_pct, row.high_pct))
    bound = _phrase("bound", slower=slower, faster=faster)
    return f" {bound}" if bound else ""


def _signed(pct: float) -> str:
    """'+1.2', and '0.0' of what is neither more nor less."""
    return f"{pct:+.1f}" if round(pct, 1) else "0.0"


def _listed(rows: Sequence[MetricChange]) -> str:
    return ", ".join(f"{row.label} ({_change(row)})" for row in rows)


def _change(row: MetricChange) -> str:
    if row.change_pct is not None:
        return f"{_signed(row.change_pct)} %"
    return f"{_value(row, row.base)} → {_value(row, row.head)}"


def _value(row: MetricChange, value: float | None) -> str:
    if value is None:
        return "not known"
    if row.metric == "peak_memory":
        return gib_text(value)  # as everywhere where memory is meant
    if row.unit == "B":
        return size_text(value)
    if not row.unit:
        return count_text(value)
    return f"{digits_text(value)} {row.unit}"


def _upper(text: str) -> str:
    """As a sentence begins, unless it begins with the name of an operator or kernel."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text


def unchanged(
    metrics: Sequence[MetricChange], changes: Sequence[Change], base: Captures, head: Captures
) -> tuple[str, ...]:
    """Sentences without a full stop; nothing is said of what is not known on both sides."""
    same = {row.metric: row.base for row in metrics if row.base and _is_the_same(row.metric, base, head)}
    kernels = _names(base) & _names(head)
    if any(change.kind == "kernel" and change.status != "changed" for change in changes):
        kernels = set()
    variables = not any(change.kind == "environment" for change in changes)
    variables = variables and all(capture.run.environment for capture in (*base, *head))
    counted: dict[str, Any] = {name: same.get(name) for name in ("kernels", "collectives", "blocking_calls")}
    return tuple(
        phrases(
            "compare", "unchanged", "all", **counted, bytes=same.get("collective_bytes"),
            peak=same.get("peak_memory"), names=len(kernels) or None, variables=variables,
        )
    )  # fmt: skip


def _is_the_same(name: str, base: Captures, head: Captures) -> bool:
    """Whether an exact metric has one value, on both sides, in all captures and steps."""
    if (metric := BY_NAME.get(name)) is None or not metric.exact:
        return False
    sides = [{float(value) for capture in side for value in metric.series(capture)} for side in (base, head)]
    return len(sides[0]) == 1 and sides[0] == sides[1]


def _names(side: Captures) -> set[str]:
    return {row.name for inventory in inventories(side) for row in inventory.kernels}
