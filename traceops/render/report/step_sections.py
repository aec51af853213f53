"""Where a step of each rank goes: the sections about the ledger, steps, idle time, kernels, calls, copies and HTA's
tables, each with its tables. `shown` are the ranks that figures and tables hold where there are too many for all. A
section with nothing to show is None."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from statistics import median
from typing import Any

from msgspec import Struct

from traceops.core.rank_text import who
from traceops.core.text import short_name
from traceops.core.units import percent_text
from traceops.measure.hta_tables import SEQUENCE_COLUMNS
from traceops.measure.ledger import BUCKETS, IDLE_BUCKETS
from traceops.render.cells import Cell, Column, Table, blank_or, build_table, name, number, rows_of, share, table_of
from traceops.render.document import Block, Chart, Section, Span, TableBlock, fold, soft, text
from traceops.render.report import figures
from traceops.render.report.compute import kernels_sentence
from traceops.render.report.rank_groups import MOST_RANKS, group_label, groups_text, rank_column
from traceops.render.report.terms import BUBBLE, KINDS, NOT_TOLD_APART, TERMS, meanings, say, section_of
from traceops.report.model import Report
from traceops.report.rows import RankRow
from traceops.report.step_times import WorstRank
from traceops.words.catalogue import texts

MOST_STEPS = 100
MOST_KERNELS = 15
MOST_CALLS = 40
MOST_HTA_ROWS = 200
_MOST_COPIES = 25
_MOST_SEQUENCES, _MOST_OF_SEQUENCE = 25, 6
_ONLY_HTAS = ("hta_frequent_sequences", "hta_cupti_counters")  # without HTA's own code there are none
_LEAST_COPY_MS = 0.01  # on the device a step: shorter ones are in the file only
_APART_PCT = 1.0  # percentage points
_APART_OF_STEP = 0.005
_HTA_UNITS = {"idle_time": "µs", "sum": "µs", "percentage": "%"}  # where the name does not say it


def ledger(report: Report, shown: Sequence[int]) -> Section:
    """Where a step goes."""
    blocks, words, total = list[Block](), report.summary.step_words, len(report.ranks)
    if report.steps:
        together = all(row.comm_wait_ms is None for row in report.ranks)
        blocks += [
            soft(say("ledger", "intro", words, kernels=kernels_sentence(report), together=together)),
            TableBlock(buckets_table(report)),
        ]
    else:
        blocks.append(text(say("ledger", "none")))
    if report.steps and report.ranks:
        blocks += [text(groups)] if (groups := groups_text(report)) else []
        blocks.append(Chart("ledger", say("ledger", "chart", words), figures.ledger_figure(report, list(shown))))
        if total > MOST_RANKS:
            spread = Chart("distribution", say("ledger", "spread_chart", words), figures.distribution_figure(report))
            blocks += [text(say("ledger", "spread", ranks=total)), spread]
    blocks.append(TableBlock(ranks_table(report, list(shown))))
    if own := _own_breakdown(report):
        blocks.append(soft(say("ledger", "own", own=who(own, 12), why=True), Span("why", href="#hta"), "."))
    pct = {bucket: part for bucket in BUCKETS if (part := report.summary.ledger_pct.of(bucket))}
    largest = sorted(pct, key=lambda bucket: -pct[bucket])[:3]
    named = ", ".join(f"{TERMS[bucket].label} {percent_text(pct[bucket])}" for bucket in largest)
    return section_of("ledger", blocks, words, largest=named)


def steps(report: Report, shown: Sequence[int]) -> Section | None:
    """How long each step took."""
    if len({row.step for row in report.steps if row.step is not None}) < 2 or not report.ranks:
        return None
    chart = Chart("steps", say("steps", "chart"), figures.steps_figure(report, list(shown)))
    # Show how long each step took over all ranks, and on which rank longest.
    by_step: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for row in report.steps:
        if row.step is not None:
            by_step[row.step].append((float(row.duration_ms), int(row.rank)))
    rows = [
        _StepRow(step, min(took)[0], median(ms for ms, _ in took), *max(took))
        for step, took in sorted(by_step.items())[-MOST_STEPS:]
    ]
    table = fold(say("steps", "fold"), TableBlock(table_of("steps", rows, total=len(by_step)), "narrow"))
    took = [row.duration_ms for row in report.steps]
    return section_of("steps", (soft(say("steps", "intro")), chart, table), step_low=min(took), step_high=max(took))


def idle(report: Report, shown: Sequence[int]) -> Section:
    """Why the devices were idle."""
    words = report.summary.step_words
    idles = any(row.bucket_ms(bucket) for row in report.ranks for bucket in IDLE_BUCKETS)
    drawn: Block = text(say("idle", "none", words))
    if report.steps and idles:
        drawn = Chart("idle", say("idle", "chart", words), figures.idle_figure(report, list(shown)))
    most = max(report.ranks, key=lambda row: row.idle_ms, default=None)
    facts = {} if most is None else {"idle": most.idle_ms, "idle_by": most.rank}
    return section_of("idle", (drawn, TableBlock(idle_table(report, list(shown)))), words, **facts)


def kernels(report: Report, shown: Sequence[int]) -> Section:
    """Which kernels take the device's time."""
    rows, operators = report.tables.kernels, operators_table(report)
    first = TableBlock(kernels_table(report)) if rows else text(say("kernels", "none"))
    facts = {"kernel": rows[0].name, "kernel_pct": rows[0].share_pct} if rows else {}
    return section_of("kernels", (first, *((TableBlock(operators),) if operators is not None else ())), **facts)


def blocking_calls(report: Report, shown: Sequence[int]) -> Section | None:
    """Calls in which the host waits for the device."""
    rows = sorted(report.tables.blocking_calls, key=lambda row: -(row.total_ms or 0.0))
    if not rows:
        return None
    outside = Cell("none", say("blocking", "outside"))
    cells = {"operator": lambda row: name(str(row.operator)) if row.operator else outside}
    table = table_of("blocking_calls", rows, report.summary.step_words, make=cells, most=MOST_CALLS)
    return section_of("blocking", (TableBlock(table),), blocking=len(rows))


def copies(report: Report, shown: Sequence[int]) -> Section | None:
    """Copies between host and device by rank and kind, the most exposed first."""
    every, words, named = report.tables.copies, report.summary.step_words, texts("page", "copies")
    if not (rows := [row for row in every if row.device_ms >= _LEAST_COPY_MS]):
        return None
    cells = {
        "direction": lambda row: name(named.get(f"direction.{row.direction}", row.direction)),
        "memory": lambda row: name(row.memory),
        "purpose": lambda row: name(named.get(f"purpose.{row.purpose}", row.purpose)),
        "operator": lambda row: name(
            " in ".join(filter(None, (row.operator, row.region and f"'{row.region}'"))) or "no operator", 60
        ),
    }
    table = table_of("copies", rows, words, make=cells, most=_MOST_COPIES, total=len(every))
    most = max(row.exposed_ms for row in every)
    return section_of("copies", (TableBlock(table),), words, copies=len(every), copies_ms=most)


def hta(report: Report, shown: Sequence[int]) -> Section:
    """HTA's six analyses in its own columns."""
    own, tables = _own_breakdown(report), hta_tables(report, list(shown))
    blocks: list[Block] = [text(say("hta", "own", own=who(own, 12)))] if own else []
    blocks += [soft(say("hta", "intro"))] if tables else [text(say("hta", "none"))]
    blocks += [TableBlock(table, "narrow") for table in tables]
    return section_of("hta", blocks, hta=len(report.tables.hta.keys() - _ONLY_HTAS))


def only_htas(report: Report, shown: Sequence[int]) -> Section | None:
    """What HTA's own code finds beside its tables, where it ran: sequences of kernels, and hardware counters."""
    sequences, counters = (report.tables.hta.get(key, ()) for key in _ONLY_HTAS)
    if not (sequences or counters):
        return None
    rank = (*sequences, *counters)[0]["rank"]
    found = {"sequences": len(sequences) or None, "counters": len(counters) or None}
    blocks: list[Block] = [soft(say("only_htas", "intro", rank=rank, **found))]
    if sequences:
        rows = []
        for pattern, count, gpu_us, host_us in ([row[key] for key in SEQUENCE_COLUMNS] for row in sequences):
            operator, *kernels = pattern.split("|")
            times = {"count": count, "gpu_us": gpu_us / count, "host_us": host_us / count}
            rows.append({"operator": operator, "kernels": kernels, **times})
        cells = {"operator": lambda row: name(row["operator"]), "kernels": lambda row: _sequence_cell(row["kernels"])}
        blocks.append(TableBlock(table_of("hta_sequences", rows, make=cells, most=_MOST_SEQUENCES)))
    table = _in_htas_columns(say("only_htas", "counters"), "hta_cupti_counters", report, [rank])
    blocks += [TableBlock(table, "narrow")] if table is not None else []
    return section_of("only_htas", blocks, **found)


def _sequence_cell(kernels: Sequence[str]) -> Cell:
    """Kernels in their order, one that repeats once with its count; all names unfold."""
    runs = [(kernel, len(list(same))) for kernel, same in groupby(kernels)]
    told = [short_name(kernel, 40) + (f" × {times}" if times > 1 else "") for kernel, times in runs]
    more = [f"{len(told) - _MOST_OF_SEQUENCE} more"] if len(told) > _MOST_OF_SEQUENCE + 1 else []
    shown = told[:_MOST_OF_SEQUENCE] + more if more else told
    return Cell(" → ".join(shown), "", "name", "\n".join(kernels))


def _own_breakdown(report: Report) -> list[int]:
    """Ranks whose idle, compute and overlap are not HTA's."""
    return [row.rank for row in report.ranks if row.breakdown_note]


# Tables about ranks and steps.


class _BucketRow(Struct, frozen=True):
    """A bucket of the run's ledger, and the rank that spends most on it."""

    bucket: str
    ms: float | None
    pct: float | None
    worst: WorstRank | None = None


class _StepRow(Struct, frozen=True):
    """A step over all ranks, ms."""

    step: int
    least: float
    median: float
    most: float
    slowest: int


def buckets_table(report: Report) -> Table:
    """The ledger of the run: a row a bucket with its meaning."""
    ms, pct, rows = report.summary.ledger_ms, report.summary.ledger_pct, []
    for bucket in BUCKETS:
        worst = report.summary.ledger_worst_rank.get(bucket)
        rows.append(_BucketRow(bucket, ms.of(bucket), pct.of(bucket), worst))
        rows += [_BucketRow(*part) for part in bubble_parts(report) if bucket == "comm_wait"]
    terms = TERMS | BUBBLE
    cells = {
        "bucket": lambda row: Cell(terms[row.bucket].label, row.bucket, "swatch", colour=terms[row.bucket].colour),
        "pct": lambda row: share(row.pct, terms[row.bucket].colour),
        "worst": lambda row: blank_or(row.worst and row.worst.ms, 2),
        # The row that the rank is in: of ranks that are alike, one is the worst by chance.
        "worst_rank": lambda row: Cell(group_label(report, row.worst.rank).removeprefix("rank ") if row.worst else ""),
        "meaning": lambda row: Cell(terms[row.bucket].definition, css="meaning"),
    }
    alone = ("worst", "worst_rank") if len(report.ranks) < 2 else ()
    return table_of("ledger", rows, report.summary.step_words, make=cells, without=alone)


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

    def host(row: RankRow) -> Cell:
        host = row.host or ""
        return Cell(host if len(host) <= 24 else f"{host[:23]}…", host, "host") if host else number(None)

    apart, words = _apart(report), report.summary.step_words
    least = {"typical_step_ms": apart, "idle_pct": _APART_PCT, "compute_pct": _APART_PCT, "caused_wait_ms": apart}
    return table_of(
        "ranks", rows_of(report.ranks, shown), words, make={"host": host}, columns=[rank_column(report)],
        apart=least | {"late_share": 10}, facts=meanings(words), note=_cut(report, shown),
        summarize=report.ranks if len(report.ranks) > 2 else (),
    )  # fmt: skip


def idle_table(report: Report, shown: Sequence[int]) -> Table:
    """Idle time of each shown rank by cause, ms per step."""
    named = [("idle_ms", "All idle", say("idle", "all"))]
    for bucket in IDLE_BUCKETS:
        term = TERMS[bucket]
        named.append((f"{bucket}_ms", term.label.removeprefix("Idle: ").capitalize(), term.definition))
    named.append(("input_ms", "In data loading", say("idle", "input")))
    apart, every = _apart(report), report.ranks if len(report.ranks) > 2 else ()
    columns = [Column(key, label, title, unit="ms", worst="max", apart=apart) for key, label, title in named]
    caption, note = say("idle", "caption", report.summary.step_words), _cut(report, shown)
    rows = rows_of(report.ranks, shown)
    return build_table(caption, (rank_column(report), *columns), rows, note=note, summarize=every)


def _apart(report: Report) -> float:
    """Differences between ranks smaller than this, in ms, mark no worst one."""
    return _APART_OF_STEP * float(report.summary.step_time_ms.median or 0.0)


def _cut(report: Report, shown: Sequence[int]) -> str:
    return say("ledger", "cut", rows=len(shown), every=len(report.ranks)) if len(report.ranks) > MOST_RANKS else ""


# Tables about kernels, operators and HTA's results.


def kernels_table(report: Report) -> Table:
    """The kernels that take most time over all ranks."""
    cpu = report.run.device_type == "cpu"
    facts = {"grid": "Input shapes", "call": "call"} if cpu else {"grid": "Grid", "call": "launch"}
    cells = {
        "name": lambda row: name(str(row.name)),
        "kind": lambda row: Cell(str(row.kind), "", "swatch", colour=_kind_colour(row.kind)),
        "share_pct": lambda row: share(row.share_pct, _kind_colour(row.kind)),
        "grid": lambda row: _shapes_cell(row.grid),
    }
    alone = ("worst_rank", "worst_rank_total_ms", "least_rank_total_ms") if len(report.ranks) < 2 else ()
    rows, words = report.tables.kernels, report.summary.step_words
    return table_of("kernels", rows, words, make=cells, without=alone, facts=facts, most=MOST_KERNELS)


def operators_table(report: Report) -> Table | None:
    """What the average rank calls in a step, by operator and input shapes; None where the report does not hold it."""
    rows = report.inventory.operators if report.inventory is not None else ()
    if not rows:
        return None
    whole, host = sum(row.device_ms_per_step for row in rows), sum(row.host_ms_per_step for row in rows)
    by_time = sorted(rows, key=lambda row: (-row.device_ms_per_step, -row.host_ms_per_step))
    cells = {
        "name": lambda row: name(row.name),
        "shapes": lambda row: _shapes_cell(row.shapes),
        "device_share": lambda row: number(100.0 * row.device_ms_per_step / whole, 1),
        "host_share": lambda row: number(100.0 * row.host_ms_per_step / host, 1),
    }
    none = [key for key, total in (("device_share", whole), ("host_share", host)) if total <= 0]
    return table_of("operators", by_time, report.summary.step_words, make=cells, without=none, most=MOST_KERNELS)


def hta_tables(report: Report, shown: Sequence[int]) -> list[Table]:
    """HTA's temporal breakdown, idle time and kernel types, in HTA's own columns."""
    made = (_in_htas_columns(caption, key, report, shown) for key, caption in texts("page", "hta_tables").items())
    return [table for table in made if table is not None]


def _in_htas_columns(caption: str, key: str, report: Report, shown: Sequence[int]) -> Table | None:
    every = report.tables.hta.get(key, ())
    if not (rows := rows_of(every, shown)):
        return None
    columns = [
        Column(
            field, field, unit=_HTA_UNITS.get(field, ""), number=not isinstance(value, str),
            decimals=0 if field in ("rank", "stream", "count") else None,
        )
        for field, value in rows[0].items()
    ]  # fmt: skip
    return build_table(caption, columns, rows, file=f"{key}.csv", most=MOST_HTA_ROWS, total=len(every))


def _shapes_cell(shapes: str | None) -> Cell:
    return name(shapes, 60) if shapes else number(None)


def _kind_colour(kind: Any) -> str:
    term = KINDS.get(str(kind))
    return term.colour if term else "#7A7A7A"
