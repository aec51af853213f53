"""A Report of any number of ranks for the renderers' tests, with names that try to break out of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs
from sample_cross import cross_tables

from traceops.core.facts import Fact
from traceops.core.findings import Check, Evidence, Finding
from traceops.measure.ledger import BUCKETS
from traceops.report.model import Report
from traceops.report.rows import CollectiveRow, RankRow, Run, StepRow, WhatIfRow
from traceops.report.summary import Summary
from traceops.report.tables import Tables
from traceops.rules.registry import RULES

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028'\"&<b>"
LATE = 1  # the rank that is late for its input


def sample_report(ranks: int = 4, steps: int = 3, hostile: str = HOSTILE) -> Report:
    """`ranks` ranks of which rank 1 waits 30 ms of each 50 ms step for input; rank 0 knows no wait."""
    rank_rows = [_rank_row(rank, ranks, hostile) for rank in range(ranks)]
    ledger = {bucket: rank_rows[0][f"{bucket}_ms"] for bucket in BUCKETS}
    late = min(LATE, ranks - 1)
    return typed_report(
        run={
            "name": hostile,
            "world_size": ranks + 1,
            "ranks_present": list(range(ranks)),
            "ranks_missing": [ranks],
            "hosts": [hostile],
            "device": "NVIDIA H200",
            "backend": "nccl",
            "torch_version": None,
            "nccl_version": "2.28.9",
            "strategy": hostile,
            "steps": list(range(3, 3 + steps)),
        },
        summary={
            "step_time_ms": {"median": 50.0, "p5": 49.0, "p95": 52.0, "n": steps},
            "ledger_ms": ledger,
            "ledger_pct": {bucket: None if ms is None else 2 * ms for bucket, ms in ledger.items()},
            "ledger_worst_rank": {"idle_input": {"rank": late, "ms": 30.0}},
            "unprofiled_step_time_ms": None,
            "profiler_slowdown": None,
            "matching": {"events": 100, "matched_pct": 97.5, "unmatched": {hostile: 5}},
            "notes": [hostile],
            "clocks": {"anchors": 42, "residual_p50_us": 3.5, "residual_p95_us": 9.33, "unaligned": []},
            "replay": {"error_pct": 0.2733, "straggler_slowdown": 1.6667, "steps": list(range(3, 3 + steps))},
        },
        ranks=rank_rows,
        steps=[
            {"rank": rank, "step": step, "duration_ms": 50.0 + step, **dict.fromkeys(BUCKETS, 5.0)}
            for rank in range(ranks)
            for step in range(3, 3 + steps)
        ],
        collectives=[_collective(hostile, ranks, nbytes) for nbytes in (None, 33_603_584)],
        findings=[
            Finding(
                "TO-I002",
                "error",
                "high",
                hostile,
                f"message {hostile}",
                (
                    Evidence(Fact.OTHER, hostile, "ms/step", 5.0, late, 3, subject=hostile),
                    Evidence(Fact.OTHER, None, subject="unknown"),
                ),
                ranks=(late,),
                steps=(3, 4),
                impact_ms=30.0,
                cause=hostile,
                advice=f"advice {hostile}",
            ),
            Finding(
                "TO-I001",
                "info",
                "medium",
                "Starved",
                "second",
                (Evidence(Fact.OTHER, 0.0, "%", subject="m"),),
                ranks=(0,),
            ),
        ],
        checks=[Check(rule.id, "not_evaluated", f"reason {hostile}") for rule in RULES],
        what_if=[
            {"change": hostile, "ranks": [0], "step_time_ms": 50.0, "predicted_step_time_ms": 20.0, "saved_pct": 60.0}
        ],
        tables={
            **cross_tables(ranks, steps, late, hostile),
            "kernels": [_kernel(f"void at::native::{hostile}<float, {n}>(int, float*)", n) for n in range(40)],
            "blocking_calls": [
                {"rank": 0, "call": hostile, "operator": hostile, "count": 3, "total_ms": 1.5},
                {"rank": 0, "call": "cudaEventSynchronize", "operator": "", "count": 1, "total_ms": None},
            ],
            "hta_temporal_breakdown": [{"rank": rank, "idle_time(us)": 1.0, hostile: hostile} for rank in range(ranks)],
            "hta_idle_time_breakdown": [
                {"rank": rank, "stream": s, "idle_category": "host_wait", "idle_time": float("nan")}
                for rank in range(ranks)
                for s in range(4)
            ],
        },
    )


def with_tables(report: Report, **tables: Any) -> Report:
    """The report with other rows in these tables."""
    return structs.replace(report, tables=structs.replace(report.tables, **tables))


def typed_report(
    *,
    run: dict[str, Any],
    summary: dict[str, Any],
    ranks: Sequence[dict[str, Any]],
    steps: Sequence[dict[str, Any]],
    findings: Sequence[Finding],
    checks: Sequence[Check],
    collectives: Sequence[dict[str, Any]] = (),
    what_if: Sequence[dict[str, Any]] = (),
    tables: dict[str, Any] | None = None,
) -> Report:
    """A Report from plain objects as report.json holds them, and tables as their CSV files do."""
    named = {key: rows for key, rows in (tables or {}).items() if not key.startswith("hta_")}
    hta = {key: tuple(rows) for key, rows in (tables or {}).items() if key.startswith("hta_")}
    return Report(
        run=msgspec.convert(run, Run),
        summary=msgspec.convert(summary, Summary),
        ranks=msgspec.convert(ranks, tuple[RankRow, ...]),
        steps=msgspec.convert(steps, tuple[StepRow, ...]),
        collectives=msgspec.convert(collectives, tuple[CollectiveRow, ...]),
        findings=tuple(findings),
        checks=tuple(checks),
        what_if=msgspec.convert(what_if, tuple[WhatIfRow, ...]),
        tables=structs.replace(msgspec.convert(named, Tables), hta=hta),
    )


def _rank_row(rank: int, ranks: int, hostile: str) -> dict[str, Any]:
    late = rank == min(LATE, ranks - 1)
    buckets: dict[str, float | None] = dict.fromkeys(BUCKETS, 0.0)
    buckets |= {"compute": 15.0 + rank / 1000, "comm_transfer": 3.0, "comm_wait": 30.0, "idle_gap": 0.0001}
    if late:
        buckets |= {"comm_wait": 0.0, "idle_input": 30.0}
    return {
        "rank": rank,
        "host": hostile,
        "steps": 3,
        "step_time_ms": 50.0,
        "idle_pct": 60.0 if late else 2.0,
        "compute_pct": 30.0,
        "non_compute_pct": 10.0 if late else 68.0,
        "overlap_pct": None,
        "breakdown_source": "hta" if rank else "traceops",
        "breakdown_note": "" if rank else "no GPU activity",
        "exposed_comm_ms": 3.0 if late else 33.0,
        "wait_ms": None if rank == 0 else 30.0,
        "transfer_ms": 3.0,
        "caused_wait_ms": 90.0 if late else 0.0,
        "late_share": 1.0 if late else 0.0,
        **{f"{bucket}_ms": ms for bucket, ms in buckets.items()},
        "input_ms": 30.0 if late else 0.0,
        "events": 1000,
        "trace": hostile,
        "damage": hostile if rank == 0 else "",
    }


def _collective(hostile: str, ranks: int, nbytes: int | None) -> dict[str, Any]:
    return {
        "group": hostile,
        "ranks": list(range(ranks)),
        "op": hostile,
        "bytes": nbytes,
        "count": 12,
        "median_ms": 0.188,
        "total_ms": 2.26,
        "median_wait_ms": 0.99,
        "busbw_gbs": None,
    }


def _kernel(name: str, n: int) -> dict[str, Any]:
    return {
        "name": name,
        "kind": ("compute", "comm", "memory", "<i>")[n % 4],
        "count": 10,
        "share_pct": 40.0 - n,
        "ms_per_step": 1.0,
        "mean_us": 5.0,
        "min_us": 4.0,
        "max_us": 6.0,
        "ranks": 2,
        "worst_rank": 0,
        "worst_rank_total_ms": 3.0,
    }
