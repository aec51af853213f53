"""Sections of summary.html about each rank and about the report itself. One with nothing to say of a report is None.

`shown` are the ranks that figures and tables hold where there are too many for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.findings import count_checks
from traceops.core.rank_text import who
from traceops.measure.ledger import IDLE_BUCKETS
from traceops.render.document import Block, Chart, Section, Span, TableBlock, Term, Terms, bold, fold, soft, spans, text
from traceops.render.finding_blocks import checks_block
from traceops.render.report import detail_tables, figures, rank_tables
from traceops.render.report.copies import copies_table
from traceops.render.report.coverage import KERNELS_UNJUDGED
from traceops.render.report.rank_groups import MOST_RANKS, groups_text
from traceops.render.report.terms import COLUMNS, TERMS
from traceops.report.model import Report

_OWN_BREAKDOWN = (
    "the breakdown above is traceops' own, by HTA's definitions: HTA has no answer for a trace without GPU activity, "
    "counts CPU operators and stream waits that carry a stream number as GPU work, and takes kernels that it does not "
    "know (RCCL, MSCCL, symmetric memory) for computation."
)


def ledger(report: Report, shown: Sequence[int]) -> Section:
    """Where a step goes."""
    blocks, words = list[Block](), report.summary.step_words
    if report.steps:
        split = any(row.comm_wait_ms is not None for row in report.ranks)
        apart = (
            ""
            if split
            else " Waiting and transfer cannot be told apart here, so all exposed communication counts as unmatched."
        )
        blocks += [
            soft(f"Every microsecond of {words.a} is in exactly one bucket. {KERNELS_UNJUDGED}{apart}"),
            TableBlock(rank_tables.buckets_table(report)),
            *_ledger_charts(report, shown),
        ]
    else:
        blocks.append(text("The traces hold no complete step."))
    blocks.append(TableBlock(rank_tables.ranks_table(report, list(shown))))
    if own := _own_breakdown(report):
        blocks.append(
            soft(
                f"Idle, compute, non-compute and overlap of {who(own, 12)} are traceops' own, by HTA's definitions; ",
                Span("why", href="#hta"),
                ".",
            )
        )
    return Section("ledger", words.choose("Step ledger", "Ledger of the window"), tuple(blocks))


def steps(report: Report, shown: Sequence[int]) -> Section | None:
    """How long each step took."""
    if len({row.step for row in report.steps if row.step is not None}) < 2 or not report.ranks:
        return None
    return Section(
        "steps",
        "Steps",
        (
            soft(
                "Duration of each step on each rank. The colours span at least ±20 % of the median, so even steps "
                "look even."
            ),
            Chart(
                "steps",
                "Heat map: duration of each step on each rank, ms; the folded table has them by step",
                figures.steps_figure(report, list(shown)),
            ),
            fold("Steps as a table", TableBlock(rank_tables.steps_table(report), "narrow")),
        ),
    )


def idle(report: Report, shown: Sequence[int]) -> Section:
    """Why the devices were idle."""
    words = report.summary.step_words
    idles = any(row.bucket_ms(bucket) for row in report.ranks for bucket in IDLE_BUCKETS)
    drawn: Block = text(f"No idle time was found in {words.a}.")
    if report.steps and idles:
        drawn = Chart(
            "idle",
            f"Stacked bars: why each rank's device was idle, ms {words.per}; the table below has the numbers",
            figures.idle_figure(report, list(shown)),
        )
    return Section("idle", "Idle causes", (drawn, TableBlock(rank_tables.idle_table(report, list(shown)))))


def kernels(report: Report, shown: Sequence[int]) -> Section:
    """Which kernels take the device's time."""
    table = detail_tables.kernels_table(report)
    none = text("The traces hold no kernels or operators.")
    operators = detail_tables.operators_table(report)
    more = (TableBlock(operators),) if operators is not None else ()
    return Section("kernels", "Kernels", (TableBlock(table) if table.rows else none, *more))


def blocking_calls(report: Report, shown: Sequence[int]) -> Section | None:
    """Calls that wait for the device."""
    table = detail_tables.blocking_table(report)
    if table is None:
        return None
    return Section("blocking", "Calls that wait for the device", (TableBlock(table),), "Blocking calls")


def copies(report: Report, shown: Sequence[int]) -> Section | None:
    """Copies between host and device."""
    table = copies_table(report)
    if table is None:
        return None
    return Section("copies", "Copies between host and device", (TableBlock(table),), "Copies")


def hta(report: Report, shown: Sequence[int]) -> Section:
    """HTA's six analyses in its own columns."""
    own, tables = _own_breakdown(report), detail_tables.hta_tables(report, list(shown))
    blocks: list[Block] = [text(f"For {who(own, 12)} {_OWN_BREAKDOWN}")] if own else []
    if tables:
        blocks.append(
            fold(
                ", ".join(table.caption for table in tables),
                soft(
                    "HolisticTraceAnalysis' own results in its own columns, times in µs. It leaves out the last "
                    "profiler step."
                ),
                *(TableBlock(table, "narrow") for table in tables),
            )
        )
    else:
        blocks.append(text("HTA has no results for these traces."))
    return Section("hta", "HTA's tables", tuple(blocks), "HTA")


def checks(report: Report, shown: Sequence[int]) -> Section:
    """What each rule says."""
    counts = count_checks(report.checks)
    summary = spans(
        f"{counts.fired} fired, {counts.clear} clear, ",
        bold(f"{counts.not_evaluated} not evaluated"),
        f" of {counts.fired + counts.clear + counts.not_evaluated} rules",
    )
    return Section(
        "checks", "Checks", (fold(summary, checks_block(report.checks, "What each rule says about this run")),)
    )


def definitions(report: Report, shown: Sequence[int]) -> Section:
    """What the numbers mean."""
    buckets = [Term(term.label, term.definition, key, term.colour) for key, term in TERMS.items()]
    columns = [Term(label, said) for label, said in COLUMNS.items()]
    return Section(
        "definitions",
        "What the numbers mean",
        (
            Terms((*buckets, *columns)),
            soft(
                "– means not known, which is not zero. Marked cells are the worst of their column, where ranks differ "
                "by more than 1 %."
            ),
        ),
        "Definitions",
    )


def _ledger_charts(report: Report, shown: Sequence[int]) -> list[Block]:
    if not report.ranks:
        return []
    total, words = len(report.ranks), report.summary.step_words
    blocks: list[Block] = []
    if said := groups_text(report):
        blocks.append(text(said))
    chart: Block = Chart(
        "ledger",
        f"Stacked bars: where each rank's {words.noun} goes, ms {words.per}; the table below has the numbers",
        figures.ledger_figure(report, list(shown)),
    )
    if total <= MOST_RANKS:
        return [*blocks, chart]
    return [
        *blocks,
        chart,
        text(
            f"All {total} ranks: boxes from the lower to the upper quartile with the median, whiskers to the least "
            "and the most."
        ),
        Chart(
            "distribution",
            f"Boxes: how each bucket spreads over all ranks, ms {words.per}",
            figures.distribution_figure(report),
        ),
    ]


def _own_breakdown(report: Report) -> list[int]:
    """Ranks whose idle, compute and overlap are not HTA's."""
    return [row.rank for row in report.ranks if row.breakdown_source == "traceops"]
