"""The short summary on the terminal, and the progress line while traces are read."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from traceops.analyses.ledger import BUCKETS
from traceops.model import Evidence, Finding, Report
from traceops.report.cells import GREW, short_name
from traceops.report.cross_text import percent
from traceops.report.verdict import verdict

STYLE = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "clear": "bold green"}
MARK = {"error": "✖", "warning": "▲", "info": "●", "clear": "✔"}
_MOST_RANKS = 8
_BAR_WIDTH = 30
_MOST_CHANGES = 3
_WORTH_PCT = 1.0  # of the step: a change that saves less is not worth a line
_MOST_NAME = 40
_MOST_VALUE = 100


def print_report(report: Report, file: TextIO, written: Path) -> None:
    """Verdict, where the step goes, findings, the worst ranks, and where the report lies."""
    console = PlainConsole(file=file, highlight=False, soft_wrap=True)
    console.print(_heading(report))
    said = verdict(report)
    console.print(plain(f"{MARK.get(said.level, '●')} {said.sentence}", STYLE.get(said.level, "")))
    console.print(_ledger(report))
    if (what_if := _what_if(report)) is not None:
        console.print(what_if)
    console.print(_ranks(report))
    for finding in report.findings:
        _print_finding(console, finding)
    skipped = sum(
        check.status == "not_evaluated" and not check.reason.startswith("not judged")
        for check in report.checks
    )
    if skipped:
        console.print(
            f"{skipped} rule{'s' if skipped > 1 else ''} could not be evaluated on these traces; the report says why.",
            style="dim",
        )
    console.print(plain(f"Report: {written}"))


class PlainConsole(Console):
    def on_broken_pipe(self) -> None:
        """Let the command end as if all had been read; rich would exit with 1, which means findings."""
        raise BrokenPipeError


def plain(text: str, style: str = "") -> Text:
    """Text from a trace or a path: no markup, and no control characters that would steer the terminal."""
    return Text("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text), style=style)


def say(console: Console, text: str, style: str = "", hanging: int = 0) -> None:
    """Text broken at words; further lines are indented by `hanging`, so that each item stays one to the eye."""
    indent = len(text) - len(text.lstrip(" "))
    lines = textwrap.wrap(
        ascii_ranges(plain(text).plain.strip()),
        console.width,
        initial_indent=" " * indent,
        subsequent_indent=" " * hanging,
        break_on_hyphens=False,
    )
    for line in lines:
        console.print(plain(line, style), soft_wrap=True)


def ascii_ranges(text: str) -> str:
    """'0-3' for '0–3': many terminals and logs behind ssh have ASCII only."""
    return text.replace("–", "-")


def _heading(report: Report) -> Text:
    run, step = report.run, report.summary["step_time_ms"]
    present = len(run["ranks_present"])
    parts = [f"{present} of {run['world_size']} ranks" if run["ranks_missing"] else f"{present} ranks"]
    parts += [str(run[key]) for key in ("device", "strategy") if run.get(key)]
    if step["median"] is not None:
        parts.append(
            f"step {step['median']:.2f} ms (median of {step['n']}, p5–p95 {step['p5']:.2f}–{step['p95']:.2f})"
        )
    return plain(f"{run['name']}: ", "bold") + plain(" · ".join(parts))


def _ledger(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    for title, justify in (
        ("where a step goes", "left"),
        ("ms", "right"),
        ("%", "right"),
        ("", "left"),
        ("worst rank", "left"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    worst = report.summary["ledger_worst_rank"]
    for bucket in BUCKETS:
        ms, pct = report.summary["ledger_ms"][bucket], report.summary["ledger_pct"][bucket]
        if not ms and bucket not in worst:
            continue
        bar = "█" * round((pct or 0) / 100 * _BAR_WIDTH)
        who = f"{worst[bucket]['ms']:.2f} ms on rank {worst[bucket]['rank']}" if bucket in worst else ""
        table.add_row(bucket, _number(ms, 2), _number(pct, 1), bar, who if len(report.ranks) > 1 else "")
    return table


def _what_if(report: Report) -> Table | None:
    """The changes that save most, and how good the replay is; None where none saves 1 %."""
    rows = sorted(report.what_if, key=lambda row: -(row["saved_pct"] or 0.0))
    rows = [row for row in rows if (row["saved_pct"] or 0.0) >= _WORTH_PCT][:_MOST_CHANGES]
    if not rows:
        return None
    table = Table(box=None, pad_edge=False, header_style="dim", caption_justify="left")
    table.add_column("what if")
    table.add_column("step ms", justify="right")
    table.add_column("saved %", justify="right")
    for row in rows:
        table.add_row(
            plain(row["change"]),
            f"{_number(row['step_time_ms'], 2)} → {_number(row['predicted_step_time_ms'], 2)}",
            _number(row["saved_pct"], 1),
        )
    error = (report.summary.get("replay") or {}).get("error_pct")
    if error is not None:
        table.caption = f"unchanged, the replay is within {percent(error)} of the measured steps"
    return table


def _ranks(report: Report) -> Table:
    columns: tuple[tuple[str, str, int], ...] = (
        ("idle %", "idle_pct", 1),
        ("compute %", "compute_pct", 1),
        ("overlap %", "overlap_pct", 1),
        ("wait ms", "comm_wait_ms", 2),
        ("transfer ms", "comm_transfer_ms", 2),
        ("caused wait", "late_share", 2),
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("rank", justify="right")
    for title, _, _ in columns:
        table.add_column(title, justify="right")
    rows = report.ranks
    if len(rows) > _MOST_RANKS:  # keep the ranks the others wait for, then the idlest
        rows = sorted(rows, key=lambda row: (-(row["late_share"] or 0), -(row["idle_pct"] or 0)))[
            :_MOST_RANKS
        ]
    for row in rows:
        cells = [_number(row[key], digits) for _, key, digits in columns]
        if row["late_share"] is not None:
            cells[-1] = f"{100 * row['late_share']:.0f} %"
        table.add_row(str(row["rank"]), *cells)
    if len(report.ranks) > len(rows):
        table.caption = f"the {len(rows)} worst of {len(report.ranks)} ranks; all are in summary.csv"
    return table


def _print_finding(console: Console, finding: Finding) -> None:
    style = STYLE[finding.severity]
    line = Text(f"{MARK[finding.severity]} {finding.rule} ", style=style)
    line.append_text(plain(f"{finding.title}. ", "bold"))
    line.append_text(plain(finding.message))
    console.print(line)
    shown = [_evidence(e) for e in finding.evidence if e.value is not None]
    console.print(plain("    " + "; ".join(shown), "dim"))
    if finding.severity != "info":
        console.print(plain("    → " + finding.advice))


def _evidence(evidence: Evidence) -> str:
    """Metric, value and unit; a long name of a kernel or region shortened, the page has all of it."""
    what, colon, grown = evidence.metric.partition(GREW)
    if colon and not what:
        usual = "" if evidence.peers is None else f", peers {evidence.peers:g}"
        return f"{GREW}{_short(grown)} {evidence.value} {evidence.unit}{usual}"
    value = evidence.value
    if isinstance(value, str) and len(value) > _MOST_VALUE:
        value = f"{value[:_MOST_VALUE]}…"
    return f"{evidence.metric} {value}{' ' + evidence.unit if evidence.unit else ''}"


def _short(name: str) -> str:
    """A kernel without return type and parameters; of other names the beginning and the end."""
    if "<" in name or len(name) <= _MOST_NAME:
        return short_name(name, _MOST_NAME)
    return f"{name[: _MOST_NAME * 2 // 3]}…{name[-(_MOST_NAME // 3) :]}"


def _number(value: Any, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
