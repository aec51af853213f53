"""The row of one run, from its report."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.core.documents import Tool
from traceops.core.findings import SEVERITIES, Finding, Severity
from traceops.core.redaction import redact_text
from traceops.report.model import ReportBase
from traceops.report.rows import Count, NotNegative, Number, Whole
from traceops.report.step_times import Ledger

# One row a run: what runs.json, runs.csv and the table of several runs hold.

RUNS_VERSION = 1


class FindingCount(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that fired in a run, at its worst severity."""

    rule: str
    severity: Severity
    count: Count


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a line; null where it is not known. Times are of a step, over all ranks as in the report's summary."""

    name: str
    path: str
    report: str | None = None
    problem: str = ""
    verdict: str = ""
    started_ns: Whole | None = None
    commit: str | None = None
    strategy: str | None = None
    device: str | None = None
    ranks: Count | None = None
    hosts: Count | None = None
    samples_per_step: NotNegative | None = None
    step_ms: NotNegative | None = None
    step_profiled: bool = False
    recorded_step_ms: NotNegative | None = None
    samples_per_s: NotNegative | None = None
    tokens_per_s: NotNegative | None = None
    mfu_pct: Number | None = None
    ledger_ms: Ledger = Ledger()
    overlap_pct: Number | None = None
    exposed_comm_ms: Number | None = None
    collective_bytes: NotNegative | None = None
    peak_memory_bytes: Count | None = None
    findings: tuple[FindingCount, ...] = ()


class RunsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What runs.json holds: a row a run, in the order of their names."""

    schema_version: Annotated[int, Meta(extra_json_schema={"const": RUNS_VERSION})] = RUNS_VERSION
    tool: Tool = Tool()
    runs: tuple[RunRow, ...]


def row_of(report: ReportBase, name: str, path: str, folder: str | None = None, verdict: str = "") -> RunRow:
    """The row of a run whose report is in `folder`, beside the table; `verdict` is what the report opens with."""
    run, summary = report.run, report.summary
    return RunRow(
        name=name, path=redact_text(path), report=folder, verdict=verdict, started_ns=run.started_ns,
        commit=run.git.commit if run.git else None, strategy=run.strategy, device=run.device, ranks=run.world_size,
        hosts=len(run.hosts) or None, samples_per_step=run.samples_per_step, step_ms=summary.own_step_ms,
        step_profiled=summary.plain_ms is None and summary.own_step_ms is not None,
        recorded_step_ms=summary.step_time_ms.typical, samples_per_s=summary.samples_per_s,
        tokens_per_s=summary.tokens_per_s, mfu_pct=None if summary.flops is None else summary.flops.mfu_pct,
        ledger_ms=summary.ledger_ms, overlap_pct=summary.overlap_pct, exposed_comm_ms=summary.exposed_comm_ms,
        collective_bytes=collective_bytes(report),
        peak_memory_bytes=max((r.peak_memory_bytes for r in report.ranks if r.peak_memory_bytes), default=None),
        findings=counted(report.findings),
    )  # fmt: skip


def without_report(name: str, path: str, problem: str) -> RunRow:
    """The row of a run that cannot be analysed, and why."""
    return RunRow(name=name, path=redact_text(path), problem=redact_text(problem))


def collective_bytes(report: ReportBase) -> float | None:
    """Bytes in collectives of the average rank, a step: median over steps and ranks; None where a size is unknown."""
    known = [row.collective_bytes for row in report.steps]
    if not known or any(size is None for size in known):
        return None
    return float(statistics.median(size for size in known if size is not None))


def counted(findings: Sequence[Finding]) -> tuple[FindingCount, ...]:
    """Rules that fired, the most severe first, in the report's order within a severity."""
    by_rule: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_rule[finding.rule].append(finding)
    rows = [
        FindingCount(rule=rule, severity=max((f.severity for f in same), key=SEVERITIES.index), count=len(same))
        for rule, same in by_rule.items()
    ]
    return tuple(sorted(rows, key=lambda row: -SEVERITIES.index(row.severity)))
