"""Writes a report in every format that is asked for, each file whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traceops.core.documents import json_document
from traceops.core.errors import InputError
from traceops.core.files import FORMATS, locked_folder, write_all_whole
from traceops.core.rule import Verdict
from traceops.render.writers.csv import CSV_FILES, render_csv_files
from traceops.report.document import document_of
from traceops.report.model import Report
from traceops.rules.explained import fabric_findings, judged_checks
from traceops.rules.failures import in_order_of_roots

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis

FLAMES = "flame.rank_*.speedscope.json"


def write_report(
    report: Report, folder: Path, formats: tuple[str, ...] = FORMATS, plotlyjs: str = "none",
    over: tuple[Path, os.stat_result] | None = None,
) -> list[Path]:  # fmt: skip
    """Write the chosen formats into `folder`, each file whole or not at all; returns the paths written. Files of an
    earlier report in the folder that this one does not have are removed, others are left. over: a file that has to be
    as it was, or nothing is written. Raises InputError where the folder cannot be written to."""
    contents: dict[str, str | bytes] = {}
    if "json" in formats:
        contents["report.json"] = json_document(document_of(report))
    if "csv" in formats:
        contents |= render_csv_files(report)
    if "html" in formats:
        from traceops.render.report.html import render_html

        contents["summary.html"] = render_html(report, plotlyjs=plotlyjs, files=contents)
        contents |= dict(report.flames)
    earlier = {path.name for path in folder.glob(FLAMES)} if folder.is_dir() else set()
    return write_files(contents, {*CSV_FILES, "report.json", "summary.html", *earlier}, folder, over)


def write_diagnosis(
    diagnosis: Diagnosis, verdicts: Sequence[Verdict], folder: Path, formats: tuple[str, ...]
) -> list[Path]:
    """Write a hang's page, hang.json and CSV files into `folder`, as `write_report` does; the page comes first.
    `verdicts` are those of `judge_diagnosis`."""
    from traceops.render.hang.tables import HANG_CSV_FILES, render_hang_csv_files

    found = [*in_order_of_roots(diagnosis, verdicts), *diagnosis.machine, *fabric_findings(verdicts)]
    checked = judged_checks(verdicts)
    contents: dict[str, str | bytes] = {}
    if "html" in formats:
        from traceops.render.hang.html import render_hang_html

        contents["hang.html"] = render_hang_html(diagnosis, found, checked)
    if "json" in formats:
        from traceops.report.hang_json import hang_document

        contents["hang.json"] = json_document(hang_document(diagnosis, found, checked))
    if "csv" in formats:
        contents |= render_hang_csv_files(diagnosis)
    return write_files(contents, {"hang.html", "hang.json", *HANG_CSV_FILES}, folder)


def write_files(
    contents: Mapping[str, str | bytes], own: set[str], folder: Path, over: tuple[Path, os.stat_result] | None = None
) -> list[Path]:
    """Write texts (in UTF-8) and bytes by file name: all of them, or the folder stays as it was. What else is in `own`
    is of an earlier report and goes. over: as in `write_report`. Returns the paths written. Raises InputError where the
    folder cannot be written to, or another process keeps writing to it."""
    data = {
        name: content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        for name, content in contents.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked_folder(folder):
            if over is not None and not _is_still(*over):
                return []
            write_all_whole(folder, data, own - contents.keys())
    except OSError as error:
        raise InputError(
            f"the report cannot be written to {error.filename or folder} ({error.strerror or error}); nothing was "
            "changed: choose another place with -o DIR"
        ) from error
    return [folder / name for name in contents]


def _is_still(path: Path, before: os.stat_result) -> bool:
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
