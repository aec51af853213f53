"""What each host of several does: a section of the page, and rows on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.rank_text import ranks_text
from traceops.core.step_words import StepWords
from traceops.core.units import fixed_text
from traceops.render.cells import Cell, Column, Table, build_table, name
from traceops.render.document import Section, TableBlock, soft
from traceops.report.model import Report
from traceops.report.rows import HostSummary

_MOST_HOSTS = 8  # on the terminal


def hosts(report: Report, shown: Sequence[int]) -> Section | None:
    """The table of hosts; None where there are not several."""
    if not report.hosts:
        return None
    words = report.summary.step_words
    note = soft(
        f"Means over a host's ranks, ms {words.per}. Inside: collectives whose members are all on this host. "
        "Between: those with members on other hosts too. Their transfer and waiting count whether something hides "
        "them or not."
    )
    return Section("hosts", "By host", (note, TableBlock(hosts_table(report.hosts, words))), "Hosts")


def hosts_table(rows: Sequence[HostSummary], words: StepWords) -> Table:
    """A row a host."""
    columns = [
        Column("host", "Host", number=False, make=lambda row: name(row.host)),
        Column("ranks", "Ranks", number=False, make=lambda row: Cell(ranks_text(row.ranks))),
        Column("step_ms", words.heading, worst="max"),
        Column("compute_ms", "Compute ms", worst="max"),
        Column("comm_transfer_ms", "Transfer ms", "that nothing hides", worst="max"),
        Column("comm_wait_ms", "Waiting ms", "that nothing hides"),
        Column("idle_input_ms", "Input ms", worst="max"),
        Column("idle_host_ms", "Launched late ms", worst="max"),
        Column("inside_transfer_ms", "Inside: transfer ms"),
        Column("inside_wait_ms", "waiting ms"),
        Column("inside_busbw_gbs", "bus GB/s", decimals=1),
        Column("between_transfer_ms", "Between: transfer ms"),
        Column("between_wait_ms", "waiting ms"),
        Column("between_busbw_gbs", "bus GB/s", decimals=1),
        Column("caused_wait_ms", "Caused waiting ms", "of other ranks for its ranks, all together", worst="max"),
    ]
    return build_table("Ranks by host", columns, list(rows), file="hosts.csv")


def host_cells(report: Report) -> tuple[list[tuple[str, ...]], str]:
    """What the terminal shows of hosts: those that others wait for first; and what is left out, in words."""
    rows = sorted(report.hosts or (), key=lambda row: -(row.late_share or 0.0))[:_MOST_HOSTS]
    cells: list[tuple[str, ...]] = [
        (
            row.host,
            ranks_text(row.ranks),
            fixed_text(row.step_ms, 2),
            fixed_text(row.compute_ms, 2),
            fixed_text(row.comm_wait_ms, 2),
            fixed_text(row.inside_transfer_ms, 2),
            fixed_text(row.between_transfer_ms, 2),
            "–" if row.late_share is None else f"{100 * row.late_share:.0f} %",
        )
        for row in rows
    ]
    count = len(report.hosts or ())
    return cells, f"{len(rows)} of {count} hosts; all are in hosts.csv" if len(rows) < count else ""
