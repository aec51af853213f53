"""compare.md: the comment on a pull request; the verdict and why at once, everything else folded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TextIO, TypeVar

from traceops.compare.model import (
    OUTCOMES,
    Change,
    Comparison,
    ComparisonVerdict,
    Explanation,
    MetricChange,
    MetricOutcome,
)
from traceops.compare.sentence import headline
from traceops.core.findings import Finding
from traceops.core.text import one_line
from traceops.render.comparison import text
from traceops.render.comparison.text import WORDS, say
from traceops.render.writers.markdown import FoldedPart, code, fitting, folded, prose, size, table
from traceops.version import __version__

LIMIT = 60_000  # bytes; GitHub takes 65,536 characters, and whoever posts it may add a line
MARK: dict[MetricOutcome, str] = {
    "regression": "❌", "inconclusive": "⚠️", "waived": "⚠️", "improvement": "✅", "unchanged": "✅", "informative": "",
}  # fmt: skip
VERDICT_MARK: dict[ComparisonVerdict, str] = {
    "regression": "❌", "inconclusive": "⚠️", "improvement": "✅", "no_regression": "✅",
}  # fmt: skip
_MOST_METRICS, _MOST_EXPLANATIONS, _MOST_REMARKS = 12, 3, 3
_MOST_OVERVIEW = 20_000  # bytes of what is not folded

_T = TypeVar("_T")


def marker(name: str = "") -> str:
    """The comment's first line, by which it is found again: one comment a `name` on a pull request. Of `name` letters,
    digits, dots, underscores and hyphens are kept, anything else becomes a hyphen."""
    kept = re.sub(r"-{2,}", "-", re.sub(r"[^A-Za-z0-9._-]+", "-", name)).strip("-")
    return f"<!-- traceops-compare{':' + kept if kept else ''} -->"


def render_markdown(comparison: Comparison, *, name: str = "", limit: int = LIMIT) -> str:
    """The comment as text of at most `limit` bytes, so that GitHub takes it whole. Everything from a trace is escaped:
    no mention, reference, link or HTML of its own takes effect."""
    lines = [marker(name), *_overview(comparison)]
    sides = [prose(text.side_text(side), 200) for side in (comparison.base, comparison.head)]
    end = say("end", base=sides[0], head=sides[1], version=__version__)
    left = limit - size([*lines, "", end, ""])
    for section in _sections(comparison):
        part = folded(section, left // 3)  # so that no part of it crowds out the rest
        left -= size(part)
        lines += part
    return "\n".join([*lines, "", end, ""])


def _overview(comparison: Comparison) -> list[str]:
    short, details = headline(comparison)
    lines = [f"**{VERDICT_MARK[comparison.verdict]} {prose(short)}**", *(["", prose(details)] if details else []), ""]
    for refusal in comparison.refusals[:_MOST_REMARKS]:
        lines += [f"⚠️ **{WORDS['refused']}** {prose(refusal, 300)}", ""]
    # Gated metrics, the worst where there are too many, then the parts of the step that moved.
    gated = text.known(comparison.gated)
    if len(gated) > _MOST_METRICS:
        gated = sorted(gated, key=lambda metric: OUTCOMES.index(metric.outcome))[:_MOST_METRICS]
    if shown := gated + text.movers(comparison):
        header = ("metric", "base", "head", "change", "interval", "verdict")
        lines += [*table(header, list(map(_overview_row, shown)), right=(1, 2, 3, 4)), ""]
    items = [
        f"- **{prose(metric.label, 80)}** is {text.WORD[metric.outcome]}: {prose(text.reason_text(metric), 300)}"
        for metric in comparison.gated
        if metric.outcome in ("inconclusive", "waived")
    ][:_MOST_REMARKS]
    items += [_reason(reason) for reason in comparison.explanations[:_MOST_EXPLANATIONS]]
    items += [f"- ⚠️ {prose(warning, 300)}" for warning in comparison.warnings[:_MOST_REMARKS]]
    return [*lines, *fitting(items, _MOST_OVERVIEW)]


def _overview_row(metric: MetricChange) -> list[str]:
    limit = text.threshold_text(metric)
    verdict = f"{MARK[metric.outcome]} {text.outcome_text(metric)}".strip()
    known = text.base_text(metric), text.head_text(metric), text.change_text(metric), text.interval_text(metric)
    return [prose(metric.label, 80), *known, f"{verdict} (limit {limit})" if limit else ""]


def _sections(comparison: Comparison) -> list[FoldedPart]:
    """What is folded, most important first; parts with nothing in them are left out."""
    metrics = [metric for metric in text.known(comparison.metrics) if metric.family != "ledger"]
    return [
        section
        for section in (
            _list("More reasons", comparison.explanations[_MOST_EXPLANATIONS:], _reason, 20),
            _findings("New findings", comparison.new_findings),
            _metrics("All metrics", metrics, comparison.power),
            _metrics(WORDS["ledger"], text.ledger_rows(comparison), comparison.power),
            *(_changes(comparison, kind) for kind in text.KINDS),
            _list(WORDS["how"], _method(comparison), str, 80),
            _findings(WORDS["gone"], comparison.gone_findings),
            _list(WORDS["outliers"], comparison.outliers, lambda step: f"- {prose(text.outlier_text(step), 300)}", 20),
            _list("Unchanged", comparison.unchanged, lambda said: f"- {prose(said, 300)}", 20),
        )
        if section.rows
    ]  # fmt: skip


def _reason(reason: Explanation) -> str:
    cost = text.cost_text(reason)
    return f"- {f'**{cost}** ' if cost else ''}{prose(reason.text, 300)}"


def _metrics(title: str, metrics: Sequence[MetricChange], power: float) -> FoldedPart:
    def row(metric: MetricChange) -> list[str]:
        known = text.base_text(metric), text.head_text(metric), text.effect_text(metric), text.threshold_text(metric)
        verdict = f"{MARK[metric.outcome]} {text.outcome_text(metric)}".strip()
        why = "; ".join(filter(None, (text.reason_text(metric), text.found_text(metric, power))))
        return [prose(metric.label, 80), *known, verdict, prose(why, 400)]

    header = ("metric", "base", "head", "change", "limit", "verdict", "why")
    return _table(title, header, metrics, row, 60, "compare_metrics.csv", right=(1, 2, 3, 4))


def _changes(comparison: Comparison, kind: str) -> FoldedPart:
    def variable(change: Change) -> list[str]:
        values = map(_value, (change.base_value, change.head_value))
        return [code(change.name), *values, prose(change.detail, 200)]

    def timed(change: Change) -> list[str]:
        numbers = (text.count_text(change), text.milliseconds_text(change))
        return [change.status, _name(change), *numbers, prose(change.detail, 200)]

    changes, file = text.important_first([one for one in comparison.changes if one.kind == kind]), "compare_changes.csv"
    if kind == "environment":
        return _table("Environment", ("variable", "base", "head", ""), changes, variable, 30, file)
    title = f"{text.KINDS[changes[0].kind][0] if changes else ''}, changed"
    header = ("", "name", "count a step", text.milliseconds_title(kind), "detail")
    return _table(title, header, changes, timed, 30, file, right=(2, 3))


def _name(change: Change) -> str:
    if text.change_name(change) != change.name and change.name:
        return f"{code(change.name)} → {code(change.head_name)}"
    return code(change.name or change.head_name)


def _value(value: str | None) -> str:
    return code(value, 120) if value else text.value_text(value)


def _findings(title: str, findings: Sequence[Finding]) -> FoldedPart:
    def line(finding: Finding) -> str:
        sentence = f"{prose(finding.rule, 20)} {prose(finding.title, 120)}: {prose(finding.message, 400)}"
        return f"- **{finding.severity}** {sentence}"

    return _list(title, findings, line, 20)


def _method(comparison: Comparison) -> list[str]:
    lines = [f"- {prose(label, 80)}: {prose(value, 300)}" for label, value in text.method(comparison)]
    for side, word in ((comparison.base, "base"), (comparison.head, "head")):
        for capture in side.captures[:20]:
            steps = say("capture_steps", steps=str(capture.steps), unprofiled=str(capture.unprofiled_steps))
            lines.append(f"- {word}: {code(capture.path, 120)}, {steps}, {text.started_text(capture.started_ns)}")
        if len(side.captures) > 20:
            lines.append(f"- {word}: {len(side.captures) - 20} captures more")
    return lines + [f"- {prose(note, 400)}" for note in comparison.notes]


def _list(title: str, things: Sequence[_T], line: Callable[[_T], str], most: int) -> FoldedPart:
    rows = tuple(line(thing) for thing in things[:most])
    return FoldedPart(f"{title} ({len(things)})", (), rows, len(things), "compare.json")


def _table(
    title: str, header: tuple[str, ...], things: Sequence[_T], row: Callable[[_T], list[str]], most: int, file: str,
    right: tuple[int, ...] = (),
) -> FoldedPart:  # fmt: skip
    lines = table(header, [row(thing) for thing in things[:most]], right)
    return FoldedPart(f"{title} ({len(things)})", tuple(lines[:2]), tuple(lines[2:]), len(things), file)


# Annotations and the job summary of GitHub Actions, where a workflow runs the comparison.

SUMMARY_LIMIT = 1024 * 1024  # bytes that GitHub takes from one step, all that is appended together
_MOST = 9  # GitHub shows 10 annotations of a kind from one step
_MESSAGE = 1000


def announce(comparison: Comparison, environ: Mapping[str, str], stdout: TextIO, *, name: str = "") -> None:
    """Print annotations and append to the job's summary; does nothing outside GitHub Actions. A summary that cannot be
    written is said in an annotation: it is no reason to fail the gate."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    for line in workflow_commands(comparison):
        print(line, file=stdout)
    if not (path := environ.get("GITHUB_STEP_SUMMARY")):
        return
    try:
        problem = _append(Path(path), render_markdown(comparison, name=name))
    except OSError as error:
        problem = say("summary_failed", path=path, why=error.strerror or error)
    if problem:
        print(_command("warning", "No job summary", problem), file=stdout)


def workflow_commands(comparison: Comparison) -> list[str]:
    """The annotations: an error a regression, a warning a metric left open, the verdict as a notice."""
    lines = [_command("notice", "traceops compare", comparison.sentence)]
    regressed = [metric for metric in comparison.gated if metric.outcome == "regression"]
    undecided = [metric for metric in comparison.gated if metric.outcome == "inconclusive"]
    for metric in regressed[:_MOST]:
        sentence = f"{text.base_text(metric)} → {text.head_text(metric)}, {text.effect_text(metric)}, "
        sentence += f"limit {text.threshold_text(metric)}. {text.reason_text(metric)}"
        lines.append(_command("error", f"{metric.label} regressed", sentence))
    for metric in undecided[:_MOST]:
        lines.append(_command("warning", f"{metric.label} is inconclusive", text.reason_text(metric)))
    return lines


def _append(path: Path, summary: str) -> str:
    """Add to the file; why not, where GitHub would refuse the whole of it then."""
    content = summary.encode("utf-8", "replace") + b"\n"
    with path.open("ab") as file:
        if file.tell() + len(content) > SUMMARY_LIMIT:
            return say("summary_too_large", path=path, limit=SUMMARY_LIMIT)
        file.write(content)
    return ""


def _command(kind: Literal["error", "warning", "notice"], title: str, message: str) -> str:
    sentence = one_line(message, _MESSAGE) or title
    return f"::{kind} title={_data(one_line(title, 200)).replace(':', '%3A').replace(',', '%2C')}::{_data(sentence)}"


def _data(said: str) -> str:
    return said.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
