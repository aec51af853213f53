"""The tables of the HTML page about ranks and steps, from a Report and as data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from traceops.measure.ledger import BUCKETS, IDLE_BUCKETS
from traceops.render.cells import Cell, Column, Table, build_table, number, rows_of, share, table_of
from traceops.render.report.rank_groups import MOST_RANKS, group_label, idle_ms, rank_column
from traceops.render.report.terms import (
    BUBBLE,
    COLUMNS,
    NOT_TOLD_APART,
    TERMS,
    BucketTerm,
    caused_wait_column,
    step_column,
)
from traceops.report.model import Report
from traceops.report.rows import RankRow
from traceops.report.step_times import WorstRank

MOST_STEPS = 100

_APART_PCT = 1.0  # percentage points
_APART_OF_STEP = 0.005


class _BucketRow(Struct, frozen=True):
    """A bucket of the run's ledger, and the rank that spends most on it."""

    bucket: str
    ms: float | None
    pct: float | None
    worst: WorstRank | None


class _IdleRow(RankRow, frozen=True, kw_only=True):
    """A rank with its idle time of all causes together, ms a step."""

    idle_ms: float


class _StepRow(Struct, frozen=True):
    """A step over all ranks, ms."""

    step: int
    least: float
    median: float
    most: float
    slowest: int


def buckets_table(report: Report) -> Table:
    """The ledger of the run: a row a bucket with its meaning."""
    ms, pct = report.summary.ledger_ms, report.summary.ledger_pct
    rows, words = [], report.summary.step_words
    for b in BUCKETS:
        rows.append(_BucketRow(b, ms.of(b), pct.of(b), report.summary.ledger_worst_rank.get(b)))
        if b == "comm_wait":
            rows += [_BucketRow(part, own, share, None) for part, own, share in bubble_parts(report)]
    cells = {
        "bucket": lambda row: _bucket_cell(row.bucket),
        "pct": lambda row: share(row.pct, _term(row.bucket).colour),
        "worst": lambda row: _blank_or(row.worst and row.worst.ms, 2),
        "worst_rank": lambda row: _worst_rank(report, row.worst),
        "meaning": lambda row: Cell(_term(row.bucket).definition, css="meaning"),
    }
    alone = ("worst", "worst_rank") if len(report.ranks) < 2 else ()
    return table_of("ledger", rows, words, make=cells, without=alone)


def bubble_parts(report: Report) -> list[tuple[str, float, float | None]]:
    """The bubble of pipelines and what it is made of: name, ms and % of a step. Parts of no time are left out."""
    bubble, step = report.summary.bubble_ms, report.summary.step_time_ms.typical
    if bubble is None:
        return []
    known = all(pipeline.schedule_bubble_pct is not None for pipeline in report.pipelines)
    of_name = {name: "late" if name == NOT_TOLD_APART else name for name in BUBBLE}
    del of_name[NOT_TOLD_APART if known else "late"]
    parts = [(name, float(getattr(bubble, own))) for name, own in of_name.items()]
    return [(name, ms, 100 * ms / step if step else None) for name, ms in parts if ms or name == "bubble"]


def ranks_table(report: Report, shown: Sequence[int]) -> Table:
    """The breakdown of each shown rank; least, median and most are over all ranks."""
    rows = rows_of(report.ranks, shown)
    apart, words = _apart(report), report.summary.step_words
    facts = {
        "step": step_column(words), "breakdown": COLUMNS["Idle, compute, non-compute"], "overlap": COLUMNS["Overlap"],
        "exposed": COLUMNS["Exposed"], "wait": COLUMNS["Wait"], "transfer": COLUMNS["Transfer"],
        "caused": caused_wait_column(words), "late": COLUMNS["Share of caused"],
    }  # fmt: skip
    least = {"typical_step_ms": apart, "idle_pct": _APART_PCT, "compute_pct": _APART_PCT, "caused_wait_ms": apart}
    return table_of(
        "ranks", rows, words, make={"host": _host}, columns=[rank_column(report)], apart=least | {"late_share": 10},
        facts=facts, note=_cut(report, shown), summarize=report.ranks if len(report.ranks) > 2 else (),
    )  # fmt: skip


def steps_table(report: Report) -> Table:
    """How long each step took over all ranks, and on which rank longest."""
    by_step: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for row in report.steps:
        if row.step is not None:
            by_step[row.step].append((float(row.duration_ms), int(row.rank)))
    rows = [
        _StepRow(step, min(took)[0], median(ms for ms, _ in took), *max(took))
        for step, took in sorted(by_step.items())[-MOST_STEPS:]
    ]
    note = f"The last {MOST_STEPS} of {len(by_step)} steps; all are in steps.csv." if len(by_step) > MOST_STEPS else ""
    return table_of("steps", rows, note=note)


def idle_table(report: Report, shown: Sequence[int]) -> Table:
    """Idle time of each shown rank by cause, ms a step."""
    rows = [_IdleRow(**msgspec.structs.asdict(row), idle_ms=idle_ms(row)) for row in report.ranks]
    apart = _apart(report)
    causes = [
        (f"{b}_ms", TERMS[b].label.removeprefix("Idle: ").capitalize(), TERMS[b].definition) for b in IDLE_BUCKETS
    ]
    loading = "time the host spent in data loading, device busy or not"
    shown_columns = [("idle_ms", "All idle", "all causes together"), *causes, ("input_ms", "In data loading", loading)]
    columns = [
        rank_column(report),
        *(Column(key, label, title, unit="ms", worst="max", apart=apart) for key, label, title in shown_columns),
    ]
    many = rows if len(rows) > 2 else ()
    return build_table(
        f"Idle ms {report.summary.step_words.per} by cause",
        columns,
        rows_of(rows, shown),
        note=_cut(report, shown),
        summarize=many,
    )


def _host(row: RankRow) -> Cell:
    host = row.host or ""
    return Cell(host if len(host) <= 24 else f"{host[:23]}…", host, "host") if host else number(None)


def _term(bucket: str) -> BucketTerm:
    """A bucket's words and colour, or those of a part of the bubble."""
    return TERMS.get(bucket) or BUBBLE[bucket]


def _bucket_cell(bucket: str) -> Cell:
    return Cell(_term(bucket).label, bucket, "swatch", colour=_term(bucket).colour)


def _blank_or(value: Any, decimals: int) -> Cell:
    """Nothing where there is nothing to say: no rank spends most of a time that is zero everywhere."""
    return Cell("") if value is None else number(value, decimals)


def _worst_rank(report: Report, worst: WorstRank | None) -> Cell:
    """The rank, or the row that it is in: of ranks that are alike, one is the worst by chance."""
    return Cell("") if worst is None else Cell(group_label(report, worst.rank).removeprefix("rank "))


def _apart(report: Report) -> float:
    """Differences between ranks smaller than this, in ms, mark no worst one."""
    return _APART_OF_STEP * float(report.summary.step_time_ms.median or 0.0)


def _cut(report: Report, shown: Sequence[int]) -> str:
    if len(report.ranks) <= MOST_RANKS:
        return ""
    return f"{len(shown)} rows for {len(report.ranks)} ranks; each rank is in summary.csv."
