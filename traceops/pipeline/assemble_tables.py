"""Tables of one run in the units of report.json: kernels, calls that block, HTA's own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from traceops.across.cross_rank import CrossRank
from traceops.core.units import stored
from traceops.measure.hta_breakdown import Columns
from traceops.report.tables import BlockingCallRow, CopyRow, KernelRow


def kernel_rows(run: CrossRank) -> tuple[KernelRow, ...]:
    """Kernels over all ranks, most time first, with the rank that spends most on each."""
    merged: dict[tuple[str, str], list[tuple[int, Any]]] = defaultdict(list)
    for times in run.ranks:
        for kernel in times.summary.kernels:
            merged[kernel.name, kernel.kind].append((times.summary.rank, kernel))
    total = sum(kernel.total_us for same in merged.values() for _, kernel in same) or 1.0
    steps = max(sum(len(times.duration) for times in run.ranks), 1)
    ranks = len(run.ranks)
    rows = []
    for (name, kind), same in merged.items():
        spent = sum(kernel.total_us for _, kernel in same)
        count = sum(kernel.count for _, kernel in same)
        worst_rank, worst = max(same, key=lambda pair: pair[1].total_us)
        rows.append(
            KernelRow(
                name=name,
                kind=kind,
                count=count,
                share_pct=stored(100.0 * spent / total),
                ms_per_step=stored(spent / 1000.0 / steps),
                mean_us=stored(spent / count),
                min_us=min(kernel.min_us for _, kernel in same),
                max_us=max(kernel.max_us for _, kernel in same),
                ranks=len(same),
                worst_rank=worst_rank,
                worst_rank_total_ms=stored(worst.total_us / 1000.0),
                least_rank_total_ms=stored(min(k.total_us for _, k in same) / 1000.0) if len(same) == ranks else 0.0,
                grid=max((kernel for _, kernel in same), key=lambda kernel: kernel.max_us).grid,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.share_pct))


def blocking_rows(run: CrossRank) -> tuple[BlockingCallRow, ...]:
    return tuple(
        BlockingCallRow(
            rank=times.summary.rank,
            call=call.call,
            operator=call.operator,
            count=call.count,
            total_ms=stored(call.total_ms),
        )
        for times in run.ranks
        for call in times.summary.host.blocking
    )


def copy_rows(run: CrossRank) -> tuple[CopyRow, ...]:
    """Copies between host and device by rank and kind, the most exposed first."""
    rows = []
    for times in run.ranks:
        steps = max(len(times.duration), 1)
        for kind in times.summary.copies.kinds:
            size, gbs = kind.size, kind.gbs
            rows.append(
                CopyRow(
                    rank=times.summary.rank,
                    direction=kind.direction,
                    memory=kind.memory,
                    purpose=kind.purpose,
                    operator=kind.operator,
                    region=kind.region,
                    count=stored(int(kind.count.sum()) / steps),
                    bytes=size if size >= 0 else None,
                    exposed_ms=stored(float(kind.exposed_ns.sum()) / 1e6 / steps),
                    device_ms=stored(float(kind.device_ns.sum()) / 1e6 / steps),
                    host_ms=stored(float(kind.blocked_ns.sum()) / 1e6 / steps),
                    gbs=stored(gbs) if gbs is not None else None,
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.exposed_ms))


def hta_rows(run: CrossRank) -> dict[str, tuple[dict[str, Any], ...]]:
    """HTA's own tables, each rank's under each other, in HTA's columns."""
    tables: dict[str, tuple[dict[str, Any], ...]] = {}
    for attribute, name in (
        ("temporal", "hta_temporal_breakdown"),
        ("overlap", "hta_overlap"),
        ("idle", "hta_idle_time_breakdown"),
        ("kernel_types", "hta_kernel_types"),
        ("kernels", "hta_kernels"),
        ("launches", "hta_launch_statistics"),
        ("queue_length", "hta_queue_length"),
    ):
        rows: list[dict[str, Any]] = []
        for times in run.ranks:
            rows += _hta_records(times.summary.rank, getattr(times.summary.hta, attribute))
        if rows:
            tables[name] = tuple(rows)
    return tables


def _hta_records(rank: int, table: Columns | None) -> list[dict[str, Any]]:
    if table is None:
        return []
    return [{"rank": rank, **dict(zip(table, values, strict=True))} for values in zip(*table.values(), strict=True)]
