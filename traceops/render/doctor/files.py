"""The files of a checkup."""

from __future__ import annotations

from pathlib import Path

from traceops.core.file_formats import FORMATS
from traceops.doctor.document import document_of
from traceops.doctor.model import Checkup
from traceops.render import write_files
from traceops.report.write import json_text


def write_doctor(checkup: Checkup, folder: Path, formats: tuple[str, ...] = FORMATS) -> list[Path]:
    """Write doctor.html, doctor.json and the CSV files into `folder`, each whole or not at all; the page comes first.

    Files of an earlier checkup in the folder that this one does not have are removed, others are left.
    Raises InputError where the folder cannot be written to.
    """
    from traceops.render.doctor.rows import DOCTOR_CSV_FILES, render_doctor_csv

    contents: dict[str, str | bytes] = {}
    if "html" in formats:
        from traceops.render.doctor.html import render_doctor_html

        contents["doctor.html"] = render_doctor_html(checkup)
    if "json" in formats:
        contents["doctor.json"] = json_text(document_of(checkup))
    if "csv" in formats:
        contents |= render_doctor_csv(checkup)
    return write_files(contents, {"doctor.html", "doctor.json", *DOCTOR_CSV_FILES}, folder)
