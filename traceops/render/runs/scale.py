"""How a training scales: scale.html, scale.json, scale.csv, scale.md, and what the terminal says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from msgspec.structs import replace

from traceops.core.claims import phrases
from traceops.core.documents import json_text
from traceops.core.units import UNKNOWN, fixed_text, number_text
from traceops.core.words import BUCKETS as BUCKET_WORDS
from traceops.core.words import ROLES
from traceops.render.cells import Cell, Column, Table, number
from traceops.render.document import Block, Code, Document, Headline, Section, TableBlock, items, soft, spans, text
from traceops.render.files import write_files
from traceops.render.runs.files import markdown_lines, sections
from traceops.render.writers.csv import struct_csv
from traceops.render.writers.html import write_html
from traceops.render.writers.markdown import prose
from traceops.render.writers.terminal import MARK, write_terminal
from traceops.runs.scale import LostPart, ScaleDocument, SizeRow
from traceops.words.catalogue import texts

FILES = ("scale.html", "scale.json", "scale.csv", "scale.md")
_BY = {
    "replay": "replay of the measured steps with larger groups, on links like those measured",
    "trend": "the trend of the measured sizes",
    "gradients": "one GPU's step, with its gradients over NVLink beside backward",
}
_MOST_PARTS = 12


def write_scale(found: ScaleDocument, folder: Path) -> list[Path]:
    """Write the four files, each whole or not at all; the page comes first. Raises InputError where the folder cannot
    be written to."""
    lines = [prose(verdict(found).sentence, 900)]
    tables = [sizes_table(found), *(lost_table(row) for row in found.sizes if row.lost)]
    if found.predictions:
        tables.append(predictions_table(found))
    for made in tables:
        lines += ["", *markdown_lines(made)]
    contents: dict[str, str | bytes] = {
        "scale.html": write_html(describe(found)),
        "scale.json": json_text(found),
        "scale.csv": struct_csv([replace(row, lost=()) for row in found.sizes]),
        "scale.md": "\n".join([*lines, ""]),
    }
    return write_files(contents, set(FILES), folder)


def print_scale(found: ScaleDocument, file: TextIO, written: Path) -> None:
    """The sizes, what is lost, what is predicted, and where all of it lies."""
    said = verdict(found)
    blocks: list[Block] = [
        text(f"{MARK[said.level]} {said.sentence}", look=f"level-{said.level}", indent=(0, 2)),
        TableBlock(sizes_table(found)),
    ]
    largest = found.sizes[-1]
    if largest.lost:
        blocks += [text(f"{lost_text(largest)}:"), TableBlock(lost_table(largest))]
    if found.predictions:
        blocks += [text("Predicted, not measured:"), TableBlock(predictions_table(found))]
    blocks += [soft(note) for note in found.notes]
    write_terminal([*blocks, Code((f"Scaling: {written}",), look="")], file)


def describe(found: ScaleDocument) -> Document:
    """The scaling as a document."""
    words = texts("runs", "scale")
    made = [Section("sizes", "Sizes", (_named("Sizes", sizes_table(found)), *(soft(note) for note in found.notes)))]
    lost: list[Block] = []
    for row in found.sizes:
        if row.lost:
            lost += [text(f"{lost_text(row)}."), _named(f"{words['rest']}, {row.ranks} ranks", lost_table(row))]
    if lost:
        made.append(Section("lost", words["rest"], (*lost, soft(words["about"]))))
    if found.predictions:
        said = [f"{by}: {meant}" for by, meant in _BY.items() if any(row.by == by for row in found.predictions)]
        predicted = (_named("Predicted", predictions_table(found)), items(said, "notes"))
        made.append(Section("predicted", "Predicted, not measured", predicted))
    return Document(
        title=f"{found.name}: scaling", heading=spans(found.name), command="traceops scale", verdict=verdict(found),
        intro=(), sections=(*made, *sections(found.runs, linked=False)), footer=words["footer"],
    )  # fmt: skip


def verdict(found: ScaleDocument) -> Headline:
    """How well the largest size does, what most of the rest is, and which size is the best value."""
    first, last = found.sizes[0], found.sizes[-1]
    worst = next((part for part in last.lost if part.pct is not None and part.pct > 0), None)
    lost: dict[str, Any] = {}
    if worst is not None and worst.pct is not None and (last.lost_ms or 0.0) > 0:
        more = {"part_pct": worst.pct} if worst.pct <= 100.0 else {"lost": last.lost_ms, "part_ms": worst.ms}
        lost = {"part": _part(worst), **more}
    said = phrases(
        "runs", "scale", "verdict", scaling=texts("runs", "scale")[f"kind.{found.scaling}"], ranks=last.ranks,
        speedup=last.speedup, base=first.ranks, efficiency=last.efficiency_pct, low=last.low_pct, high=last.high_pct,
        best=found.best_value, fastest=found.fastest, **lost,
    )  # fmt: skip
    return Headline("info", " ".join(said))


def sizes_table(found: ScaleDocument) -> Table:
    """A row a size."""
    heads = [
        "ranks", "hosts", "captures", "samples a step", "samples/s", "step ms", "speedup", "efficiency %", "95 %",
        "more ranks", "rank-hours a million", "cost a million", "hours", "cost",
    ]  # fmt: skip
    rows = [
        (
            str(row.ranks), "–" if row.hosts is None else str(row.hosts), str(row.captures),
            "–" if row.samples_per_step is None else number_text(row.samples_per_step, 0),
            number_text(row.samples_per_s), number(row.step_ms).text,
            f"{row.speedup:.2f}", f"{row.efficiency_pct:.1f}",
            "–" if row.low_pct is None or row.high_pct is None else f"{row.low_pct:.1f}–{row.high_pct:.1f}",
            "–" if row.gain is None else texts("runs", "scale")[f"gain.{row.gain}"],
            number_text(row.rank_hours_per_million), number(row.cost_per_million).text,
            number(row.training_hours).text, number(row.training_cost).text,
        )
        for row in found.sizes
    ]  # fmt: skip
    return _table(heads, rows, words=("more ranks",))


def lost_text(row: SizeRow) -> str:
    """'4 ranks lose 12.3 ms a recorded step'."""
    lost = row.lost_ms or 0.0
    change: dict[str, Any] = {"lost": lost} if lost >= 0 else {"saved": -lost}
    return phrases("runs", "scale", "lost", ranks=row.ranks, **change)[0]


def lost_table(row: SizeRow) -> Table:
    """A row a bucket and role, and all of them."""
    rows = [(_part(part), number_text(part.ms), fixed_text(part.pct, 1)) for part in row.lost[:_MOST_PARTS]]
    if rest := row.lost[_MOST_PARTS:]:
        pct = None if rest[0].pct is None else sum(part.pct or 0.0 for part in rest)
        rows.append((f"{len(rest)} more", number_text(sum(part.ms for part in rest)), fixed_text(pct, 1)))
    whole = None if row.lost[0].pct is None else sum(part.pct or 0.0 for part in row.lost)
    rows.append(("all", number_text(row.lost_ms or 0.0), fixed_text(whole, 1)))
    return _table(["lost to", "ms", "%"], rows, words=("lost to",))


def predictions_table(found: ScaleDocument) -> Table:
    """A row a prediction; those of measured sizes show how far they are off."""
    rows = [
        (
            str(row.ranks), ", ".join(map(str, row.from_ranks)),
            row.by + (", leaves the host" if row.leaves_host else ""), number_text(row.samples_per_s),
            f"{row.efficiency_pct:.1f}", "not measured" if row.error_pct is None else f"{row.error_pct:+.1f} %",
        )
        for row in found.predictions
    ]  # fmt: skip
    heads = ["ranks", "from ranks", "by", "samples/s", "efficiency %", "against measured"]
    return _table(heads, rows, words=("by", "from ranks"))


def _part(part: LostPart) -> str:
    name = BUCKET_WORDS[part.bucket].metric
    return name if part.role is None else f"{name} ({ROLES[part.role]})"


def _table(heads: list[str], rows: Sequence[tuple[str, ...]], words: tuple[str, ...] = ()) -> Table:
    """Without columns that nobody knows."""
    kept = [place for place in range(len(heads)) if any(row[place] != UNKNOWN for row in rows)]
    columns = tuple(Column(heads[place], heads[place], number=heads[place] not in words) for place in kept)
    return Table("", columns, tuple(tuple(Cell(row[place]) for place in kept) for row in rows))


def _named(name: str, table: Table) -> TableBlock:
    """A table with a name of its own on the page."""
    return TableBlock(replace(table, caption=name))
