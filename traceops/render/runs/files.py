"""runs.html, runs.json and runs.csv: the same rows for people, programs and spreadsheets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from traceops.core.file_formats import FORMATS
from traceops.measure.ledger import BUCKETS
from traceops.render import write_files
from traceops.render.writers.csv import csv_text
from traceops.report.write import json_text
from traceops.runs.model import RunRow, RunsDocument

FILES = ("runs.html", "runs.json", "runs.csv")


def write_runs(rows: Sequence[RunRow], folder: Path, title: str, formats: tuple[str, ...] = FORMATS) -> list[Path]:
    """Write the chosen formats into `folder`, each file whole or not at all; returns the paths written.

    Raises InputError where the folder cannot be written to.
    """
    contents: dict[str, str | bytes] = {}
    if "html" in formats:
        from traceops.render.runs.html import render_runs_html

        contents["runs.html"] = render_runs_html(rows, title)
    if "json" in formats:
        contents["runs.json"] = json_text(RunsDocument(runs=tuple(rows)))
    if "csv" in formats:
        contents["runs.csv"] = runs_csv(rows)
    return write_files(contents, set(FILES), folder)


def runs_csv(rows: Sequence[RunRow]) -> str:
    """A row a run, a column a bucket of its ledger, its findings in one cell."""
    return csv_text([_row(row) for row in rows])


def _row(row: RunRow) -> dict[str, object]:
    own = structs.asdict(row)
    del own["ledger_ms"]
    own["findings"] = "; ".join(f"{one.rule} {one.severity} {one.count}" for one in row.findings)
    return {**own, **{f"{bucket}_ms": row.ledger_ms.of(bucket) for bucket in BUCKETS}}
