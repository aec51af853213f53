"""Rows of a report as answers and frames hold them: each name ends in its unit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from traceops.answers.model import CheckLine, CollectiveLine, FindingLine, FullFinding, KernelLine, LedgerLine, StepLine
from traceops.core.cause_words import BUCKETS as WORDS
from traceops.core.findings import Check, Finding
from traceops.core.units import stored
from traceops.measure.ledger import BUCKETS
from traceops.report.inventory import KernelUse
from traceops.report.model import Report
from traceops.report.tables import KernelRow
from traceops.rules.registry import BY_ID


def step_lines(report: Report) -> tuple[StepLine, ...]:
    """A row a rank and step, in order of ranks and steps."""
    return tuple(
        StepLine(
            rank=row.rank,
            step=row.step,
            duration_ms=row.duration_ms,
            kernels=row.kernels,
            collectives=row.collectives,
            collective_bytes=row.collective_bytes,
            blocking_calls=row.blocking_calls,
            **{f"{bucket}_ms": getattr(row, bucket) for bucket in BUCKETS},
        )
        for row in report.steps
    )


def ledger_lines(report: Report, ranks: Sequence[int] = ()) -> tuple[LedgerLine, ...]:
    """The ledger of all ranks together, or of each of `ranks`."""
    if not ranks:
        summary = report.summary
        worst = summary.ledger_worst_rank
        return tuple(
            LedgerLine(
                bucket=bucket,
                ms_per_step=summary.ledger_ms.of(bucket),
                pct_of_step=summary.ledger_pct.of(bucket),
                worst_rank=worst[bucket].rank if bucket in worst else None,
                worst_rank_ms=worst[bucket].ms if bucket in worst else None,
                meaning=WORDS[bucket].definition,
            )
            for bucket in BUCKETS
        )
    lines = []
    for row in report.ranks:
        if row.rank in ranks:
            own = {bucket: row.bucket_ms(bucket) for bucket in BUCKETS}
            step = sum(ms or 0.0 for ms in own.values())
            lines += [
                LedgerLine(
                    bucket=bucket,
                    rank=row.rank,
                    ms_per_step=ms,
                    pct_of_step=None if ms is None or not step else stored(100.0 * ms / step),
                    meaning=WORDS[bucket].definition,
                )
                for bucket, ms in own.items()
            ]
    return tuple(lines)


def collective_lines(report: Report) -> tuple[CollectiveLine, ...]:
    """A row a group, operation and size; who comes last where the report's tables tell."""
    arrivals = {(row.group, row.ranks, row.op, row.bytes): row for row in report.tables.arrivals}
    lines = []
    for row in report.collectives:
        last = arrivals.get((row.group, row.ranks, row.op, row.bytes))
        lines.append(
            CollectiveLine(
                group=row.group,
                role=row.role,
                ranks=row.ranks,
                op=row.op,
                bytes=row.bytes,
                count=row.count,
                total_ms=row.total_ms,
                median_ms=row.median_ms,
                median_wait_ms=row.median_wait_ms,
                busbw_gbs=row.busbw_gbs,
                places=row.places,
                places_of=row.places_of,
                spread_p50_ms=last.spread_p50_ms if last else None,
                last_rank=last.last_rank if last else None,
                last_rank_pct=last.last_rank_pct if last else None,
            )
        )
    return tuple(lines)


def kernel_lines(report: Report) -> tuple[KernelLine, ...]:
    """A row a kernel, most time first: from the table of kernels, or else from the inventory."""
    used: dict[str, list[KernelUse]] = defaultdict(list)
    for use in report.inventory.kernels if report.inventory is not None else ():
        used[use.name].append(use)
    if report.tables.kernels:
        return tuple(_kernel(row, used.get(row.name, ())) for row in report.tables.kernels)
    lines = [
        KernelLine(
            name=name,
            kind=uses[0].kind,
            operators=_operators(uses),
            ms_per_step=sum(use.ms_per_step for use in uses),
            count_per_step=sum(use.count_per_step for use in uses),
            share_pct=None,
            count=None,
            mean_us=None,
            min_us=None,
            max_us=None,
            ranks=None,
            worst_rank=None,
            worst_rank_total_ms=None,
            least_rank_total_ms=None,
            grid="",
        )
        for name, uses in used.items()
    ]
    return tuple(sorted(lines, key=lambda line: -line.ms_per_step))


def _kernel(row: KernelRow, uses: Sequence[KernelUse]) -> KernelLine:
    return KernelLine(
        name=row.name,
        kind=row.kind,
        operators=_operators(uses),
        ms_per_step=row.ms_per_step,
        count_per_step=sum(use.count_per_step for use in uses) if uses else None,
        share_pct=row.share_pct,
        count=row.count,
        mean_us=row.mean_us,
        min_us=row.min_us,
        max_us=row.max_us,
        ranks=row.ranks,
        worst_rank=row.worst_rank,
        worst_rank_total_ms=row.worst_rank_total_ms,
        least_rank_total_ms=row.least_rank_total_ms,
        grid=row.grid,
        flops=row.flops,
        bytes=row.bytes,
        attainable_ms=row.attainable_ms,
        efficiency_pct=row.efficiency_pct,
        cause=row.cause,
    )


def _operators(uses: Sequence[KernelUse]) -> tuple[str, ...]:
    ordered = sorted(uses, key=lambda use: -use.ms_per_step)
    return tuple(dict.fromkeys(use.operator for use in ordered if use.operator))


def finding_line(finding: Finding) -> FindingLine:
    """A finding without its evidence."""
    return FindingLine(**_shared(finding))


def full_finding(finding: Finding) -> FullFinding:
    """A finding with its evidence."""
    return FullFinding(**_shared(finding), evidence=finding.evidence)


def _shared(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in FindingLine.__struct_fields__}


def check_line(check: Check) -> CheckLine:
    """What a rule says, with its title; empty for a rule of another version."""
    rule = BY_ID.get(check.rule)
    return CheckLine(rule=check.rule, title=rule.title if rule else "", status=check.status, reason=check.reason)
