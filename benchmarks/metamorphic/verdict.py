"""What a report says, in a form that two can be compared in, and how they differ."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from benchmarks.metamorphic.change import Changed, Expected
from traceops.core.findings import SEVERITIES, Finding
from traceops.report.model import Report

_NEAR = 0.01  # of the step or of the number: as near as rounding
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Said:
    """One finding."""

    rule: str
    severity: str
    ranks: tuple[int, ...]
    cause: str | None
    impact_ms: float | None
    steps: tuple[int, ...]
    message: str
    advice: str
    evidence: tuple[tuple[Any, ...], ...]

    @property
    def of_files(self) -> bool:
        """Whether it is about the traces, not the run."""
        return self.rule.startswith("TO-V")


@dataclass(frozen=True)
class Verdict:
    """step_ms: typical. checks: status by rule. error: what `analyze` raised."""

    step_ms: float | None = None
    said: tuple[Said, ...] = ()
    checks: dict[str, str] = field(default_factory=dict)
    error: str = ""


def verdict_of(report: Report) -> Verdict:
    """Findings in their order."""
    times = report.summary.step_time_ms
    return Verdict(
        times.typical if times else None,
        tuple(_said(one) for one in report.findings),
        {check.rule: check.status for check in report.checks},
    )


def _said(one: Finding) -> Said:
    evidence = tuple((e.metric, e.value, e.unit, e.rank, e.step, e.peers) for e in one.evidence)
    return Said(
        one.rule, one.severity, tuple(one.ranks), one.cause, one.impact_ms, tuple(one.steps), one.message,
        one.advice, evidence,
    )  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """kind: error, new, gone, severity, cause, ranks, numbers, checks, words, step, unnamed."""

    kind: str
    what: str


def differences(before: Verdict, after: Verdict, changed: Changed, expected: Expected) -> list[Difference]:
    """How what is said now is not what was to be said."""
    if after.error or before.error:
        return [Difference("error", after.error)] if after.error != before.error else []
    found: list[Difference] = []
    ranks = changed.ranks or {}
    old = [one for one in before.said if not one.of_files]
    new = [one for one in after.said if not one.of_files]
    step = before.step_ms or 0.0
    if expected != "read" and not _near(before.step_ms, after.step_ms, step):
        found.append(Difference("step", f"{before.step_ms} → {after.step_ms}"))
    left = new[:]
    for one in old:
        same = _alike(one, left, ranks)
        if same is None:
            found.append(Difference("gone" if expected in ("same", "permuted", "read") else "less", _short(one)))
            continue
        left.remove(same)
        found += _of_pair(one, same, changed, expected, step)
    found += [Difference("new", _short(one)) for one in left]
    for one in after.said:
        if expected == "peers" and not one.of_files and {*one.ranks} & {*changed.without}:
            found.append(Difference("unnamed", f"of rank {changed.without}: {_short(one)}"))
    if changed.named and not any(
        changed.named in one.message or any(changed.named in str(e) for e in one.evidence)
        for one in after.said
        if one.of_files
    ):
        found.append(Difference("unnamed", f"no finding names {changed.named}"))
    if expected in ("same", "permuted"):
        found += _of_files(before, after, expected)
        for rule in sorted({*before.checks} | {*after.checks}):
            if before.checks.get(rule) != after.checks.get(rule):
                found.append(Difference("checks", f"{rule} {before.checks.get(rule)} → {after.checks.get(rule)}"))
    return found


def _of_files(before: Verdict, after: Verdict, expected: Expected) -> list[Difference]:
    """Findings of the traces themselves."""
    old, new = ({(one.rule, one.severity) for one in verdict.said if one.of_files} for verdict in (before, after))
    return [Difference("gone", f"{rule} {severity}") for rule, severity in sorted(old - new)] + [
        Difference("new", f"{_short(one)}")
        for one in after.said
        if one.of_files and (one.rule, one.severity) in new - old
    ]


def _alike(one: Said, among: list[Said], ranks: dict[int, int]) -> Said | None:
    """The finding of the same rule, best of the same ranks."""
    same = [other for other in among if other.rule == one.rule]
    moved = {ranks.get(rank, rank) for rank in one.ranks}
    return min(same, key=lambda other: (other.cause != one.cause, -len({*other.ranks} & moved)), default=None)


def _of_pair(one: Said, other: Said, changed: Changed, expected: Expected, step: float) -> list[Difference]:
    ranks = changed.ranks or {}
    found = []
    moved = tuple(sorted(ranks.get(rank, rank) for rank in one.ranks))
    if expected == "peers":
        moved = tuple(rank for rank in moved if rank not in changed.without)
    if one.severity != other.severity and not (
        expected in ("less", "peers") and SEVERITIES.index(other.severity) < SEVERITIES.index(one.severity)
    ):
        found.append(Difference("severity", f"{one.severity} → {other.severity}: {_short(other)}"))
    if one.cause != other.cause and not (expected == "less" and other.cause is None):
        found.append(Difference("cause", f"{one.cause} → {other.cause}: {_short(other)}"))
    if moved != tuple(sorted(other.ranks)):
        found.append(Difference("ranks", f"{moved} → {other.ranks}: {_short(other)}"))
    if expected == "read":
        return found
    if not _near(one.impact_ms, other.impact_ms, step) and expected in ("same", "permuted", "less"):
        found.append(Difference("numbers", f"{one.impact_ms} → {other.impact_ms}: {_short(other)}"))
    if expected == "same" and (one.message, one.advice) != (other.message, other.advice):
        found.append(Difference("words", f"{one.rule}: {one.message} {one.advice} → {other.message} {other.advice}"))
    elif expected == "same" and one.evidence != other.evidence:
        mine, theirs = (
            [e for e in one.evidence if e not in other.evidence],
            [e for e in other.evidence if e not in one.evidence],
        )
        found.append(Difference("evidence", f"{one.rule}: {mine} → {theirs}"))
    elif expected == "permuted" and (words := _of_words(one.message, other.message)):
        found.append(Difference("words", f"{one.rule}: {words}"))
    return found


def _of_words(before: str, after: str) -> str:
    """Other words, where all numbers are masked: of ranks they have to differ."""
    old, new = (" ".join(_DIGITS.sub("#", text).split()) for text in (before, after))
    return "" if old == new else f"{before} → {after}"


def _near(before: float | None, after: float | None, step: float) -> bool:
    if before is None or after is None:
        return before is after
    return abs(before - after) <= max(_NEAR * max(abs(before), abs(after)), 0.001 * step)


def _short(one: Said) -> str:
    impact = "" if one.impact_ms is None else f" {one.impact_ms:.3g} ms"
    return f"{one.rule} {one.severity} {list(one.ranks)} {one.cause or ''}{impact}: {one.message[:230]}"
