"""A sweep's result: sweep.html, sweep.json, sweep.csv, a table in Markdown, and what the terminal says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from msgspec import structs

from traceops.core.claims import phrases
from traceops.core.documents import json_text
from traceops.core.units import UNKNOWN, fixed_text, ms_text, number_text
from traceops.core.words import BUCKETS as BUCKET_WORDS
from traceops.render.cells import Cell, Column, Table, number
from traceops.render.document import Block, Code, Document, Headline, Section, TableBlock, soft, spans, text
from traceops.render.files import write_files
from traceops.render.runs.files import findings_text, markdown_lines, sections
from traceops.render.writers.csv import csv_text
from traceops.render.writers.html import write_html
from traceops.render.writers.markdown import prose
from traceops.render.writers.terminal import MARK, write_terminal
from traceops.runs.row import RunRow
from traceops.runs.sweep import PointRow, SweepDocument
from traceops.words.catalogue import texts

FILES = ("sweep.html", "sweep.json", "sweep.csv", "sweep.md")


def write_sweep(found: SweepDocument, folder: Path) -> list[Path]:
    """Write the four files, each whole or not at all; the page comes first. Raises InputError where the folder cannot
    be written to."""
    made = _table(found)
    lines = markdown_lines(made)
    sentences = [prose(verdict(found).sentence, 600), *([prose(why, 600)] if (why := why_text(found)) else [])]
    contents: dict[str, str | bytes] = {
        "sweep.html": write_html(describe(found)),
        "sweep.json": json_text(found),
        "sweep.csv": csv_text([{**row.pop("settings"), **row} for row in map(structs.asdict, ranked(found))]),
        "sweep.md": "\n".join([*(line for one in sentences for line in (one, "")), *lines, ""]),
    }
    return write_files(contents, set(FILES), folder)


def print_sweep(found: SweepDocument, file: TextIO, written: Path) -> None:
    """The table, the best, why, and where all of it lies."""
    said = verdict(found)
    blocks: list[Block] = [
        text(f"{MARK[said.level]} {said.sentence}", look=f"level-{said.level}", indent=(0, 2)),
        *([text(why, indent=(0, 2))] if (why := why_text(found)) else []),
        TableBlock(_table(found, notes=False)),
    ]
    # Each reason once, 'a, b: not trained: the time was up': a terminal has no room for a column of sentences.
    labels: dict[str, list[str]] = {}
    for point in ranked(found):
        labels.setdefault(point.reason, []).append(point.label)
    for reason, of in labels.items():
        blocks += [text(f"{', '.join(of)}: {reason.rstrip('.')}.", indent=(0, 2))] if reason else []
    write_terminal([*blocks, Code((f"Sweep: {written}",), look="")], file)


def describe(found: SweepDocument) -> Document:
    """The sweep as a document, with the table of its trainings."""
    why = why_text(found)
    own = Section("combinations", "Combinations", (TableBlock(_table(found)), *([soft(why)] if why else [])))
    return Document(
        title=f"{found.name}: sweep", heading=spans(found.name), command="traceops sweep", verdict=verdict(found),
        intro=(), sections=(own, *(sections(found.runs, linked=True) if found.runs else ())),
        footer=texts("runs", "sweep")["footer"],
    )  # fmt: skip


def verdict(found: SweepDocument) -> Headline:
    """The best combination, how far ahead it is, and what failed."""
    best = next((point for point in found.points if point.label == found.best), None)
    other = next((point for point in found.points if point.label == found.against), None)
    failed = sum(bool(point.failed) for point in found.points)
    facts: dict[str, Any] = {"count": len(found.points), "failures": failed or None, "incomplete": not found.complete}
    if best is None:
        return Headline("error", phrases("runs", "sweep", "verdict", none=True, **facts)[0])
    done = {"rate": number_text(best.samples_per_s or 0)} if found.by_samples else {"step": best.step_ms or 0.0}
    facts |= {"best": best.label, "done": phrases("runs", "sweep", "done", **done)[0]}
    if other is not None:
        behind = other.behind_pct or 0.0  # of the rate: the step's time is as much shorter
        facts |= {"same": other.label} if found.told_apart is False else {"other": other.label}
        facts |= {"more_pct": 100 / (1 - behind / 100) - 100} if found.by_samples else {"less_pct": behind}
        once = not found.told_apart and best.trained == other.trained == 1
        facts |= {"once": once, "both_once": True if once and found.told_apart is False else None}
        facts |= {"no_samples": not found.by_samples}
    said = phrases("runs", "sweep", "verdict" if other is not None else "alone", **facts)
    return Headline("warning" if failed else "info", said[0])


def why_text(found: SweepDocument) -> str:
    """'Against zero1, for as many samples: 3.1 ms less communication transfer, …'; empty where not known."""
    if not found.why:
        return ""
    differences = [(one.other_ms - one.best_ms, BUCKET_WORDS[one.bucket].metric) for one in found.why]
    less = ", ".join(f"{ms_text(ms)} ms less {name}" for ms, name in differences if ms > 0)
    more = ", ".join(f"{ms_text(-ms)} ms more {name}" for ms, name in differences if ms <= 0)
    sentence = f"{less}; but {more}" if less and more else less or more
    return phrases("runs", "sweep", "why", alike=found.by_samples, against=found.against, differences=sentence)[0]


def ranked(found: SweepDocument) -> list[PointRow]:
    """The best first, failures last."""
    return sorted(found.points, key=lambda point: (point.behind_pct is None, point.behind_pct or 0.0))


def _table(found: SweepDocument, notes: bool = True) -> Table:
    rows = [_cells(found, point) for point in ranked(found)]
    heads = [head for head in rows[0] if notes or head != "note"]
    kept = [head for head in heads if any(row[head] not in (UNKNOWN, "") for row in rows)]
    columns = tuple(Column(head, head, number=head not in (*found.varied, "findings", "note")) for head in kept)
    return Table("", columns, tuple(tuple(Cell(row[head]) for head in kept) for row in rows))


def _cells(found: SweepDocument, point: PointRow) -> dict[str, str]:
    """A row of the table; a run that finished gives its ledger."""
    place = found.points.index(point)
    folders = {trial.folder for trial in found.trials if trial.point == place}
    own = [row for row in found.runs if not row.problem and row.name in folders]
    row = own[0] if own else RunRow(name="", path="")

    def share(bucket: str) -> str:
        ms, step = row.ledger_ms.of(bucket), row.recorded_step_ms
        return fixed_text(None if ms is None or not step else 100 * ms / step, 1)

    return {
        **point.settings,
        "samples/s": number(point.samples_per_s).text,
        "step ms": number(point.step_ms).text,
        "± %": fixed_text(point.spread_pct, 1),
        "behind %": fixed_text(point.behind_pct, 1),
        "MFU %": fixed_text(row.mfu_pct, 1),
        "compute %": share("compute"),
        "transfer %": share("comm_transfer"),
        "wait %": share("comm_wait"),
        "input %": share("idle_input"),
        "overlap %": fixed_text(row.overlap_pct, 1),
        "traffic MB": fixed_text(None if row.collective_bytes is None else row.collective_bytes / 1e6, 2),
        "peak GB": fixed_text(row.peak_memory_bytes / 1e9 if row.peak_memory_bytes else None, 2),
        "trained": str(point.trained),
        "findings": findings_text(row) if own else "",
        "note": point.reason,
    }
