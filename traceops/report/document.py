"""A Report as the document that report.json holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from traceops.core import documents as write
from traceops.core.claims import first_phrase
from traceops.core.documents import READABLE_VERSIONS, redact_fields
from traceops.core.errors import FileError, InputError
from traceops.fabric.json_types import FabricJson
from traceops.hangs.json_types import HangJson
from traceops.report.model import Report, ReportBase, ReportDocument
from traceops.traces.source import is_remote, open_binary, read_whole
from traceops.traces.windows import SUFFIX


def document_of(report: Report) -> ReportDocument:
    """What report.json holds of a report."""
    hang: HangJson | None = None
    if report.hang is not None:
        from traceops.report.hang_json import hang_json  # most runs do not hang

        hang = hang_json(report.hang)
    fabric: FabricJson | None = None
    if report.fabric is not None:
        from traceops.fabric.to_json import fabric_json  # most runs come without a fabric

        fabric = fabric_json(report.fabric)
    shared = {name: getattr(report, name) for name in ReportBase.__struct_fields__}
    return ReportDocument(**shared, hang=hang, fabric=fabric, reference=report.tables.reference)


def to_json_object(report: Report) -> dict[str, Any]:
    """The object report.json holds: JSON types only, null where a number is not known."""
    value: dict[str, Any] = msgspec.json.decode(write.json_bytes(document_of(report)))
    return value


# Reading report.json back, of this schema version and of earlier ones.

# Parts of a report with words that somebody else wrote: the others are numbers and names of kernels.
WITH_WORDS = ("run", "summary", "findings", "checks", "hang")


def load_object(path: str) -> Any:
    """The object of a report.json, local or remote, gzipped or not, for `report_of` to check. Raises InputError where
    the file cannot be read or is not JSON."""
    try:
        return json.loads(read_whole(path))
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"is not valid JSON ({error}); write it again with traceops analyze") from error


def report_file(path: str) -> str | None:
    """The report.json that a path names: itself, or the one in a folder without traces. None for all else."""
    local = None if is_remote(path) else Path(path)
    if local is not None and local.is_dir() and (local / "report.json").is_file():
        traces = (local / "run.json").is_file() or any(
            any(local.glob(pattern)) for pattern in ("**/*trace.json*", f"**/*{SUFFIX}")
        )
        path = path if traces else str(local / "report.json")
    named = path.endswith("report.json") or (path.endswith((".json", ".json.gz")) and _is_report(path))
    return path if named else None


WANTED = "report.json of traceops"


def report_of(value: Any, path: str, wanted: str = WANTED) -> ReportDocument:
    """The report of a decoded report.json, which came from `path`; `wanted` is what it is said not to be. Raises
    InputError saying what is wrong with it. Keys that this version does not know are left out, those that it misses are
    at their defaults."""
    version = value.get("schema_version") if isinstance(value, dict) else None
    if isinstance(version, int) and version not in READABLE_VERSIONS:
        raise FileError(
            path,
            f"has schema version {version}, this traceops reads {' and '.join(map(str, READABLE_VERSIONS))}: "
            "analyse its traces again, or install the version that wrote it",
        )
    try:
        return redact_fields(msgspec.convert(_known(value), ReportDocument), *WITH_WORDS)
    except msgspec.ValidationError as error:
        said = str(error).encode("ascii", "backslashreplace").decode()
    except (OverflowError, RecursionError, UnicodeError) as error:
        said = first_phrase("views", "report", "unusable_value", why=str(error))
    raise FileError(path, f"is no {wanted}: {said}")


def _known(value: Any) -> Any:
    """Without a hang or fabric that lacks what this version says of one: an earlier traceops found less."""
    if not isinstance(value, dict):
        return value
    known = dict(value)
    for key, kind in (("hang", HangJson), ("fabric", FabricJson)):
        try:
            msgspec.convert(value.get(key), kind | None)
        except (msgspec.ValidationError, OverflowError, RecursionError, UnicodeError):
            known[key] = None
    return known


def _is_report(path: str) -> bool:
    """Whether a JSON file says early that it is a report, and not a trace."""
    try:
        with open_binary(path) as file:
            head = file.read(4096)
    except InputError:
        return False
    return b'"schema_version"' in head and b'"traceops"' in head
