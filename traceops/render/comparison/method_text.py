"""How two sides were compared, in words that every format shares."""

from __future__ import annotations

from traceops.compare.model import Comparison, OutlierStep, Side
from traceops.core.units import UNKNOWN, minute_text
from traceops.render.comparison.text import amount, finite, found_text, known


def method(comparison: Comparison) -> list[tuple[str, str]]:
    """How it was compared: pairs of a label and what it was."""
    facts = [("Base", side_text(comparison.base)), ("Head", side_text(comparison.head))]
    facts.append(
        ("Captures", "taken in turn, compared pair by pair" if comparison.paired else "two groups, not paired")
    )
    facts.append(("Confidence", f"{100 * comparison.confidence:g} %"))
    for metric in known(comparison.gated):
        if found := found_text(metric, comparison.power):
            facts.append((f"{metric.label}, sensitivity", found))
    noise = finite(comparison.launch_noise_pct)
    if noise is not None:
        facts.append(("Between captures", f"a standard deviation of {noise:.2g} % was assumed: a side has one capture"))
    if left_out := [metric.label for metric in comparison.metrics if not known([metric])]:
        facts.append(("Not known on either side", ", ".join(left_out)))
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
