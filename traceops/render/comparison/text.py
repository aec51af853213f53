"""Words and digits of a comparison that every format shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from traceops.compare.model import (
    OUTCOMES,
    Change,
    ChangeKind,
    Comparison,
    ComparisonVerdict,
    Explanation,
    MetricChange,
    MetricOutcome,
    OutlierStep,
    Side,
)
from traceops.core.claims import first_phrase
from traceops.core.units import UNKNOWN, mean_count_text, minute_text, ms_change_text, percent_changes, size_text
from traceops.measure.ledger import BUCKETS
from traceops.render.cells import number
from traceops.render.document import Level
from traceops.words.catalogue import texts

MARK: dict[MetricOutcome, str] = {
    "regression": "✖", "inconclusive": "▲", "waived": "▲", "improvement": "✔", "unchanged": "✔",
    "informative": "●",
}  # fmt: skip
LEVEL: dict[MetricOutcome, Level] = {
    "regression": "error", "inconclusive": "warning", "waived": "warning", "improvement": "clear",
    "unchanged": "clear", "informative": "info",
}  # fmt: skip
WORD: dict[MetricOutcome, str] = {outcome: outcome for outcome in OUTCOMES} | {"informative": "not gated"}
VERDICT_LEVEL: dict[ComparisonVerdict, Level] = {
    "regression": "error", "inconclusive": "warning", "improvement": "clear", "no_regression": "clear",
}  # fmt: skip
_MOST_NAMES = 2
WORDS = texts("views", "compare")
say = partial(first_phrase, "views", "compare")
KINDS: dict[ChangeKind, tuple[str, str]] = {  # title, one of them
    "module": ("Modules or phases, GPU time", "module"),
    "gpu_operator": ("Operators, GPU time", "operator"),
    "kernel": ("Kernels", "kernel"),
    "operator": ("Operators", "operator"),
    "collective": ("Collectives", "collective"),
    "blocking_call": ("Calls that wait for the device", "blocking call"),
    "environment": ("Environment", "variable"),
}
WORTH_PCT = 1.0  # of the step: a part of it that moved less is not named beside the gated metrics


def amount(value: float | None, unit: str, beside: float | None = None) -> str:
    """'60.1 ms', '33.6 MB', '1204': about three digits, as many decimals as `beside` has; a dash if not known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if unit == "B":
        return size_text(value)
    text = number(value, _decimals(value, beside, whole=unit != "ms")).text
    return f"{text} {unit}" if unit else text


def signed(value: float, unit: str) -> str:
    """'+4.0 kB', '-3', '0 ms'."""
    return f"{'+' if value > 0 else ''}{amount(value, unit)}"


def finite(value: Any) -> float | None:
    """The number, None where it is not known or none."""
    return float(value) if value is not None and math.isfinite(value) else None


def base_text(metric: MetricChange) -> str:
    return amount(metric.base, metric.unit, metric.head)


def head_text(metric: MetricChange) -> str:
    return amount(metric.head, metric.unit, metric.base)


def effect_text(metric: MetricChange) -> str:
    """'+5.2 % (+3.9 to +6.6)': the change and its interval; '+2 (+1.5 %)' for what is counted."""
    pct, low, high = (finite(value) for value in (metric.change_pct, metric.low_pct, metric.high_pct))
    bound = low if high is None else high if low is None else None
    if metric.change_pct is None and bound is not None:
        return f"at least {percent_changes([bound])[0]} %"  # nothing else is certain
    if metric.family == "exact" or pct is None:
        if (absolute := finite(metric.change)) is None:
            return UNKNOWN if pct is None else percent_changes([pct])[0] + " %"
        text = signed(absolute, metric.unit)
        return text if pct is None or not absolute else f"{text} ({percent_changes([pct])[0]} %)"
    known = [value for value in (pct, low, high) if value is not None]
    shown = percent_changes(known)
    of_step = " of step" if metric.of_step else ""
    interval = "" if low is None or high is None else f" ({shown[1]} to {shown[2]})"
    return f"{shown[0]} %{of_step}{interval}"


def interval_text(metric: MetricChange) -> str:
    """'+3.9 to +6.6 %'; empty where nothing was tested."""
    low, high = finite(metric.low_pct), finite(metric.high_pct)
    if low is None or high is None:
        return ""
    shown = percent_changes([low, high, finite(metric.change_pct) or 0.0])
    return f"{shown[0]} to {shown[1]} %"


def change_text(metric: MetricChange) -> str:
    """The same without the interval: '+5.2 %'."""
    return effect_text(replace(metric, low_pct=None, high_pct=None))


def threshold_text(metric: MetricChange) -> str:
    """'5 %' from which a change fails; empty where the metric is not gated."""
    limit = metric.threshold_pct
    return "" if limit is None else f"{limit:g} %"


def outcome_text(metric: MetricChange) -> str:
    """'regression'; of a waived one until when."""
    if metric.outcome == "informative" and metric.threshold_pct is not None:
        return "not judged"
    waiver = metric.waiver if metric.outcome == "waived" else None
    return WORD[metric.outcome] + ("" if waiver is None else f" until {waiver.until.isoformat()}")


def reason_text(metric: MetricChange) -> str:
    """Why the outcome is what it is, and the waiver's own reason."""
    waiver = metric.waiver if metric.outcome == "waived" else None
    sentence = metric.reason
    if waiver is not None and waiver.reason and waiver.reason not in sentence:
        sentence = f"{sentence}{'; ' if sentence else ''}waived: {waiver.reason}"
    return sentence


def found_text(metric: MetricChange, power: float) -> str:
    """'a change of 1.6 % would have been found 9 times of 10'; empty where that is not known."""
    if finite(metric.mde_pct) is None:
        return ""
    least = percent_changes([abs(metric.mde_pct or 0.0)])[0].removeprefix("+")
    return say("found", least=least, times=times_text(power))


def times_text(power: float) -> str:
    """0.9 as '9 times of 10', 0.95 as '95 times of 100'."""
    for whole in (10, 100, 1000):
        if math.isclose(power * whole, round(power * whole), abs_tol=1e-6):
            return f"{round(power * whole)} times of {whole}"
    return f"{power:.3g} of the time"


def known(metrics: Sequence[MetricChange]) -> list[MetricChange]:
    """The metrics that at least one side has a value of."""
    return [metric for metric in metrics if metric.base is not None or metric.head is not None]


def is_bucket(metric: MetricChange) -> bool:
    """Whether a metric is a bucket of the step ledger, which together make up the step."""
    return metric.family == "ledger" and metric.metric in BUCKETS


def movers(comparison: Comparison, most: int = 5) -> list[MetricChange]:
    """Parts of the step that moved by 1 % of it or more and are not gated, the largest first."""
    moved = [
        metric
        for metric in comparison.metrics
        if metric.threshold_pct is None and is_bucket(metric) and abs(finite(metric.change_pct) or 0.0) >= WORTH_PCT
    ]
    return sorted(moved, key=lambda metric: -abs(metric.change or 0.0))[:most]


def ledger_rows(comparison: Comparison) -> list[MetricChange]:
    """The parts of the step that are there on either side."""
    return [m for m in comparison.metrics if m.family == "ledger" and (m.base or m.head)]


def cost_text(reason: Explanation) -> str:
    """'+2.10 ms:', for before the reason; empty where its own words say that already."""
    cost = ms_change_text(reason.ms)
    return "" if cost in reason.text or f"{abs(reason.ms):.2f} ms" in reason.text else f"{cost}:"


def important_first(changes: Sequence[Change]) -> list[Change]:
    """By the milliseconds a step they cost or save, then by how many more there are."""
    return sorted(changes, key=lambda c: (-abs(c.more_ms), -abs((c.head_count or 0) - (c.base_count or 0))))


def milliseconds_title(kind: str) -> str:
    """What the milliseconds of a kind of change are: the host's own time inside an operator, else the device's."""
    return say("milliseconds", host=kind in ("operator", "blocking_call") or None)


def change_name(change: Change) -> str:
    """The name, or both where it was renamed."""
    if change.status == "renamed" and change.head_name and change.head_name != change.name:
        return f"{change.name} → {change.head_name}"
    return change.name or change.head_name


def count_text(change: Change) -> str:
    """'12 → 14' a step; empty where neither is known."""
    if change.base_count is None and change.head_count is None:
        return ""
    return f"{mean_count_text(change.base_count)} → {mean_count_text(change.head_count)}"


def milliseconds_text(change: Change) -> str:
    """'+0.92' ms per step; empty where times are not known."""
    return "" if change.delta_ms is None else signed(change.delta_ms, "ms").removesuffix(" ms")


def value_text(value: str | None) -> str:
    """What a variable is set to, for people."""
    return "not set" if value is None else value or "empty"


def _decimals(value: float, beside: float | None, whole: bool) -> int:
    values = [value, *([] if beside is None or not math.isfinite(beside) else [beside])]
    if whole and all(float(known).is_integer() for known in values):
        return 0
    most = max(abs(known) for known in values)
    return 0 if most >= 1000 else 1 if most >= 100 else 2 if most >= 0.1 else 3


def side_names(comparison: Comparison) -> tuple[str, str]:
    """What people call base and head; their sides where both have one name."""
    base, head = side_name(comparison.base), side_name(comparison.head)
    return (base, head) if base != head else (f"{base} (base)", f"{head} (head)")


def side_name(side: Side) -> str:
    """What people call a side: the label that it was given, else the names of its captures, 'ddp_1, ddp_2 …'."""
    if side.label not in ("", "base", "head"):
        return side.label
    if not (names := list(dict.fromkeys(capture.name for capture in side.captures if capture.name))):
        return side.label
    return ", ".join(names[:_MOST_NAMES]) + (" …" if len(names) > _MOST_NAMES else "")


def sentence_of(text: str) -> str:
    """A clause as a sentence; the name of an operator that it begins with stays as it is."""
    first = text.split(" ", 1)[0]
    return (text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text) + "."


def method(comparison: Comparison) -> list[tuple[str, str]]:
    """How it was compared: pairs of a label and what it was."""
    facts = [("Base", side_text(comparison.base)), ("Head", side_text(comparison.head))]
    facts.append(("Captures", say("method", paired=comparison.paired)))
    facts.append(("Confidence", f"{100 * comparison.confidence:g} %"))
    for metric in known(comparison.gated):
        if found := found_text(metric, comparison.power):
            facts.append((f"{metric.label}, sensitivity", found))
    if (noise := finite(comparison.launch_noise_pct)) is not None:
        facts.append((WORDS["launches_label"], say("launches", noise=f"{noise:.2g}")))
    if left_out := [metric.label for metric in comparison.metrics if not known([metric])]:
        facts.append((WORDS["left_out"], ", ".join(left_out)))
    for name, value in comparison.settings.items():
        if isinstance(value, (str, int, float)) and value not in ("", False):
            facts.append((f"Setting {name}", str(value)))
    return facts


def side_text(side: Side) -> str:
    """'3 captures of main, 60 steps, commit db015ac'; a side that is called just base or head is not named again."""
    steps = sum(capture.steps + capture.unprofiled_steps for capture in side.captures)
    count = len(side.captures)
    named = "" if side.label in ("", "base", "head") else f" of {side.label}"
    parts = [f"{count} capture{'' if count == 1 else 's'}{named}", f"{steps} steps"]
    if commits := commits_text(side):
        parts.append(commits)
    return ", ".join(parts)


def commits_text(side: Side) -> str:
    """'commit db015ac' or, with local changes, 'commit db015ac + changes'; empty where no capture says."""
    distinct = dict.fromkeys((c.commit, bool(c.dirty)) for c in side.captures if c.commit)
    names = [f"{str(commit)[:10]}{' + changes' if dirty else ''}" for commit, dirty in distinct]
    return f"commit{'' if len(names) == 1 else 's'} {', '.join(names)}" if names else ""


def started_text(started_ns: int | None) -> str:
    """'2026-11-21 10:54 UTC', a dash if not known."""
    if started_ns is None:
        return UNKNOWN
    try:
        return f"{minute_text(started_ns)} UTC"
    except (OverflowError, ValueError, OSError):  # no time that a calendar has
        return UNKNOWN


def outlier_text(step: OutlierStep) -> str:
    """'head launch_2, step 7 (profiled): 95.1 ms, median 60.2 ms'."""
    profiled = "profiled" if step.profiled else "not profiled"
    return (
        f"{step.side} {step.capture}, step {step.step} ({profiled}): {amount(step.ms, 'ms')}, "
        f"median {amount(step.median_ms, 'ms')}"
    )
