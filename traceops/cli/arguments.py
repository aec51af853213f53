"""What arguments of several commands mean: formats, folders for output, and the exit code."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from traceops.core.errors import InputError, UsageError
from traceops.core.files import FORMATS
from traceops.core.findings import SEVERITIES, Finding, Severity


def report_formats(text: str) -> tuple[str, ...]:
    """The formats in ``html,csv,json``. Raises UsageError for any other."""
    formats = tuple(part.strip() for part in text.split(",") if part.strip())
    if not formats or not set(formats) <= set(FORMATS):
        known = f"{', '.join(FORMATS[:-1])} and {FORMATS[-1]}"
        raise UsageError(f"--format {text}: takes {known}, separated by commas")
    return formats


def fails(findings: Iterable[Finding], fail_on: Severity | None) -> int:
    """The exit code that --fail-on asks for: 1 for a finding at least that severe."""
    return reach((finding.severity for finding in findings), fail_on)


def reach(severities: Iterable[Severity], fail_on: Severity | None) -> int:
    """1 where one of them is at least as severe as --fail-on says."""
    if fail_on is None:
        return 0
    bound = SEVERITIES.index(fail_on)
    return int(any(SEVERITIES.index(severity) >= bound for severity in severities))


def make_writable(folder: Path) -> None:
    """Make a folder for output, before anything takes time. Raises InputError where it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}); choose another with -o DIR") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} is not writable; choose another with -o DIR")


# Files that traceops itself wrote, given where a run or report is meant.

_OF_REPORT = ("report.json", "summary.html", "summary.csv", "ranks.csv", "findings.json")


def folder_of(path: str) -> str:
    """The run or report folder that is meant by a file of it (run.json, summary.html) or a run's name; else the path.
    Raises UsageError for a script, which is recorded first, and for a log."""
    given = Path(path)
    if (by := {".py": "", ".sh": "bash "}.get(given.suffix)) is not None and given.is_file():
        raise UsageError(f"{path} is a script; record it first: traceops run -- {by}{path}")
    if not given.exists() and (named := Path("profile", path)).joinpath("run.json").is_file():
        return str(named)
    if given.name == "run.json" and given.is_file():
        return str(given.parent)
    if given.name == "manifest.json" and given.is_file() and (given.parent.parent / "run.json").is_file():
        return str(given.parent.parent)
    if given.name == "summary.html" and given.with_name("report.json").is_file():
        return str(given.parent)
    return path


def run_of(path: str) -> str:
    """The run that a report, or a file of it, was made from, if it is still there; else the path as it is."""
    given = Path(path)
    report = given / "report.json" if given.is_dir() else given if given.name == "report.json" else None
    if report is None or not report.is_file() or (report.parent / "run.json").is_file():
        return path
    if (source := _source_of(report)) is None or not source.exists():
        return path
    if source.is_relative_to(report.parent.resolve()):
        return path  # traces that lie with their report
    run = next((one for one in source.parents if (one / "run.json").is_file()), source.parent)
    return str(run) if given.is_absolute() else os.path.relpath(run)


_LEAST_OF_REPORT = 1 << 20  # bytes in which a report names the first trace, and a table of runs the first run
_SOURCES = {
    "report.json": re.compile(rb'"trace": ("(?:[^"\\\\]|\\\\.)*")'),
    "runs.json": re.compile(rb'"path": ("(?:[^"\\\\]|\\\\.)*")'),
}


def report_folder(path: str, name: str) -> Path:
    """`output_folder`, or its subfolder PARENT/NAME where that has the report of something else that is still there. So
    profile/x and other/x do not overwrite each other's reports."""
    folder = output_folder(path, name)
    if "://" in path:
        return folder
    root = Path(path).resolve()
    others = (source for file in _SOURCES if (source := _source_of(folder / file)) is not None)
    if all(not other.exists() or other.resolve().is_relative_to(root) for other in others):
        return folder
    return folder.parent / root.parent.name / folder.name


def _source_of(report: Path) -> Path | None:
    """The first trace or run that a report was made of; None where there is none, or it does not say."""
    try:
        with report.open("rb") as file:
            found = _SOURCES[report.name].search(file.read(_LEAST_OF_REPORT))
        return Path(json.loads(found[1])) if found else None
    except (OSError, ValueError):
        return None


def output_folder(path: str, name: str) -> Path:
    """Where a report goes: the last 'profile' in the path becomes 'reports', other paths go to reports/NAME."""
    local = Path(path)
    parts = list(local.parts)
    if "://" not in path and "profile" in parts[:-1] and local.is_dir():
        at = len(parts) - 1 - parts[::-1].index("profile")
        parts[at] = "reports"
        return Path(*parts)
    return Path("reports", name if name not in ("", ".", "..") else "traces")
