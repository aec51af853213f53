"""The row of one run, from its report."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from traceops.core.findings import SEVERITIES, Finding
from traceops.core.redaction import redact_text
from traceops.report.model import ReportBase
from traceops.runs.model import FindingCount, RunRow


def row_of(report: ReportBase, name: str, path: str, folder: str | None = None, verdict: str = "") -> RunRow:
    """The row of a run whose report is in `folder`, beside the table; `verdict` is what the report opens with."""
    run, summary = report.run, report.summary
    return RunRow(
        name=name,
        path=redact_text(path),
        report=folder,
        verdict=verdict,
        started_ns=run.started_ns,
        commit=run.git.commit if run.git else None,
        strategy=run.strategy,
        device=run.device,
        ranks=run.world_size,
        hosts=len(run.hosts) or None,
        samples_per_step=run.samples_per_step,
        step_ms=summary.own_step_ms,
        step_profiled=summary.plain_ms is None and summary.own_step_ms is not None,
        recorded_step_ms=summary.step_time_ms.typical,
        samples_per_s=summary.samples_per_s,
        tokens_per_s=summary.tokens_per_s,
        mfu_pct=None if summary.flops is None else summary.flops.mfu_pct,
        ledger_ms=summary.ledger_ms,
        overlap_pct=summary.overlap_pct,
        exposed_comm_ms=summary.exposed_comm_ms,
        collective_bytes=collective_bytes(report),
        peak_memory_bytes=max((r.peak_memory_bytes for r in report.ranks if r.peak_memory_bytes), default=None),
        findings=counted(report.findings),
    )


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
