"""The short summary on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from msgspec import UNSET

from traceops.core.findings import Evidence, Finding
from traceops.core.short_text import short_name
from traceops.core.units import fixed_text, percent_text
from traceops.measure.hta_agreement import HtaAgreement
from traceops.measure.ledger import BUCKETS
from traceops.render.evidence_text import quote_text
from traceops.render.printer import Printer
from traceops.render.report.verdict import verdict
from traceops.report.model import Report
from traceops.report.rows import RankRow

STYLE = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "clear": "bold green"}
MARK = {"error": "✖", "warning": "▲", "info": "●", "clear": "✔"}
_MOST_RANKS = 8
_BAR_WIDTH = 30
_MOST_CHANGES = 3
_WORTH_PCT = 1.0  # of the step: a change that saves less is not worth a line
_MOST_NAME = 40
_MOST_VALUE = 100
_MOST_QUOTES = 4
_MOST_QUOTE = 160


def print_report(report: Report, file: TextIO, written: Path) -> None:
    """Verdict, where the step goes, findings, the worst ranks, and where the report lies."""
    printer = Printer(file)
    printer.line((_heading(report), "bold"))
    said = verdict(report)
    printer.line((f"{MARK.get(said.level, '●')} {said.sentence}", STYLE.get(said.level, "")))
    _print_ledger(printer, report)
    _print_what_if(printer, report)
    _print_ranks(printer, report)
    for finding in report.findings:
        _print_finding(printer, finding)
    skipped = sum(check.status == "not_evaluated" and check.unjudged is UNSET for check in report.checks)
    if skipped:
        rules = f"{skipped} rule{'s' if skipped > 1 else ''}"
        printer.line((f"{rules} could not be evaluated on these traces; the report says why.", "dim"))
    if report.hta_agreement is not None:
        printer.line((hta_sentence(report.hta_agreement), ""))
    printer.line((f"Report: {written}", ""))


def hta_sentence(found: HtaAgreement) -> str:
    """One line that says whether HTA's own code gives the same tables."""
    own = f"HTA's own code ({found.by})" if found.by else "HTA's own code"
    if not found.values:
        return f"{own} has no tables to compare here: its analyses are of GPU activity"
    compared = f"{found.values:,} values of {found.ranks} rank{'s' if found.ranks > 1 else ''}"
    if not found.differing:
        return f"{own} gives the same tables: {compared} compared, none differs beyond rounding"
    return (
        f"{own} gives other tables: of {compared} compared, {found.differing:,} differ, in {', '.join(found.tables)}; "
        "docs/metrics.md names those that are known to"
    )


def _heading(report: Report) -> str:
    run, step = report.run, report.summary.step_time_ms
    present = len(run.ranks_present)
    parts = [f"{present} of {run.world_size} ranks" if run.ranks_missing else f"{present} ranks"]
    parts += [str(value) for value in (run.device, run.strategy) if value]
    if step.median is not None:
        parts.append(f"step {step.median:.2f} ms (median of {step.n}, p5–p95 {step.p5:.2f}–{step.p95:.2f})")
    return f"{run.name}: {' · '.join(parts)}"


def _print_ledger(printer: Printer, report: Report) -> None:
    worst = report.summary.ledger_worst_rank
    rows = [("where a step goes", "ms", "%", "", "worst rank")]
    for bucket in BUCKETS:
        ms, pct = report.summary.ledger_ms.of(bucket), report.summary.ledger_pct.of(bucket)
        if not ms and bucket not in worst:
            continue
        bar = "█" * round((pct or 0) / 100 * _BAR_WIDTH)
        who = f"{worst[bucket].ms:.2f} ms on rank {worst[bucket].rank}" if bucket in worst else ""
        rows.append(
            (bucket, fixed_text(ms, 2), fixed_text(pct, 1), bar, who if len(report.ranks) > 1 else "")
        )
    printer.table(rows[0], rows[1:], left=(0, 3, 4), bars=3)


def _print_what_if(printer: Printer, report: Report) -> None:
    """The changes that save most, and how good the replay is; nothing where none saves 1 %."""
    rows = sorted(report.what_if, key=lambda row: -(row.saved_pct or 0.0))
    rows = [row for row in rows if (row.saved_pct or 0.0) >= _WORTH_PCT][:_MOST_CHANGES]
    if not rows:
        return
    cells = [
        (
            row.change,
            f"{fixed_text(row.step_time_ms, 2)} → {fixed_text(row.predicted_step_time_ms, 2)}",
            fixed_text(row.saved_pct, 1),
        )
        for row in rows
    ]
    error = report.summary.replay.error_pct if report.summary.replay is not None else None
    within = (
        ""
        if error is None
        else f"unchanged, the replay is within {percent_text(error)} of the measured steps"
    )
    printer.table(("what if", "step ms", "saved %"), cells, left=(0,), caption=within)


def _print_ranks(printer: Printer, report: Report) -> None:
    rows: Sequence[RankRow] = report.ranks
    if len(rows) > _MOST_RANKS:  # keep the ranks the others wait for, then the idlest
        rows = sorted(rows, key=lambda row: (-(row.late_share or 0), -(row.idle_pct or 0)))[:_MOST_RANKS]
    table = [
        (
            str(row.rank),
            fixed_text(row.idle_pct, 1),
            fixed_text(row.compute_pct, 1),
            fixed_text(row.overlap_pct, 1),
            fixed_text(row.comm_wait_ms, 2),
            fixed_text(row.comm_transfer_ms, 2),
            fixed_text(None, 0) if row.late_share is None else f"{100 * row.late_share:.0f} %",
        )
        for row in rows
    ]
    all_ranks = len(report.ranks)
    rest = (
        f"the {len(rows)} worst of {all_ranks} ranks; all are in summary.csv" if all_ranks > len(rows) else ""
    )
    header = ("rank", "idle %", "compute %", "overlap %", "wait ms", "transfer ms", "caused wait")
    printer.table(header, table, left=(), caption=rest)


def _print_finding(printer: Printer, finding: Finding) -> None:
    style = STYLE[finding.severity]
    printer.line(
        (f"{MARK[finding.severity]} {finding.rule} ", style),
        (f"{finding.title}. ", f"{style} bold"),
        (finding.message, style),
    )
    for line in evidence_lines(finding):
        printer.line((f"    {line}", "dim"))
    if finding.severity != "info":
        printer.line(("    → " + finding.advice, ""))


def evidence_lines(finding: Finding) -> list[str]:
    """The numbers in one line, then the lines of files that the finding quotes, each cut to what a line holds."""
    shown = [_evidence(e) for e in finding.evidence if e.value is not None and e.file is None]
    quotes = [quote_text(e) for e in finding.evidence if e.file is not None]
    lines = ["; ".join(shown)] if shown else []
    lines += [f"{q[:_MOST_QUOTE]}{'…' if len(q) > _MOST_QUOTE else ''}" for q in quotes[:_MOST_QUOTES]]
    if len(quotes) > _MOST_QUOTES:
        more = len(quotes) - _MOST_QUOTES
        lines.append(f"… and {more} more line{'' if more == 1 else 's'} in the report")
    return lines


def _evidence(evidence: Evidence) -> str:
    """Metric, value and unit; a long name of a kernel or region shortened, the page has all of it."""
    if isinstance(evidence.grown, str):
        usual = "" if evidence.peers is None else f", peers {evidence.peers:g}"
        return f"grew: {_short(evidence.grown)} {evidence.value} {evidence.unit}{usual}"
    value = evidence.value
    if isinstance(value, str) and len(value) > _MOST_VALUE:
        value = f"{value[:_MOST_VALUE]}…"
    return f"{evidence.metric} {value}{' ' + evidence.unit if evidence.unit else ''}"


def _short(name: str) -> str:
    """A kernel without return type and parameters; of other names the beginning and the end."""
    if "<" in name or len(name) <= _MOST_NAME:
        return short_name(name, _MOST_NAME)
    return f"{name[: _MOST_NAME * 2 // 3]}…{name[-(_MOST_NAME // 3) :]}"
