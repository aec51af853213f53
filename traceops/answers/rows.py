"""Rows of a report as answers and frames hold them: each name ends in its unit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from traceops.answers.model import CheckLine, CollectiveLine, FindingLine, KernelLine, LedgerLine, StepLine
from traceops.core.documents import copied
from traceops.core.findings import Check, Finding
from traceops.core.units import stored
from traceops.core.words import BUCKETS as WORDS
from traceops.measure.ledger import BUCKETS
from traceops.report.inventory import KernelUse
from traceops.report.model import Report
from traceops.report.tables import KernelRow
from traceops.rules.registry import BY_ID


def step_lines(report: Report) -> tuple[StepLine, ...]:
    """A row a rank and step, in order of ranks and steps."""
    return tuple(
        copied(StepLine, row, **{f"{bucket}_ms": getattr(row, bucket) for bucket in BUCKETS}) for row in report.steps
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
        late = {name: getattr(last, name, None) for name in ("spread_p50_ms", "last_rank", "last_rank_pct")}
        lines.append(copied(CollectiveLine, row, **late))
    return tuple(lines)


def kernel_lines(report: Report) -> tuple[KernelLine, ...]:
    """A row a kernel, most time first: from the table of kernels, or else from the inventory."""
    used: dict[str, list[KernelUse]] = defaultdict(list)
    for use in report.inventory.kernels if report.inventory is not None else ():
        used[use.name].append(use)
    if report.tables.kernels:
        return tuple(_kernel(row, used.get(row.name, ())) for row in report.tables.kernels)
    unknown = dict.fromkeys((
        "share_pct", "count", "mean_us", "min_us", "max_us", "ranks", "worst_rank", "worst_rank_total_ms",
        "least_rank_total_ms",
    ))  # fmt: skip
    lines = [
        copied(
            KernelLine, uses[0], operators=_operators(uses), ms_per_step=sum(use.ms_per_step for use in uses),
            count_per_step=sum(use.count_per_step for use in uses), grid="", **unknown,
        )
        for uses in used.values()
    ]  # fmt: skip
    return tuple(sorted(lines, key=lambda line: -line.ms_per_step))


def _kernel(row: KernelRow, uses: Sequence[KernelUse]) -> KernelLine:
    count = sum(use.count_per_step for use in uses) if uses else None
    return copied(KernelLine, row, operators=_operators(uses), count_per_step=count)


def _operators(uses: Sequence[KernelUse]) -> tuple[str, ...]:
    ordered = sorted(uses, key=lambda use: -use.ms_per_step)
    return tuple(dict.fromkeys(use.operator for use in ordered if use.operator))


def finding_line(finding: Finding) -> FindingLine:
    """A finding without its evidence."""
    return copied(FindingLine, finding)


def check_line(check: Check) -> CheckLine:
    """What a rule says, with its title; empty for a rule of another version."""
    rule = BY_ID.get(check.rule)
    return CheckLine(rule=check.rule, title=rule.title if rule else "", status=check.status, reason=check.reason)
