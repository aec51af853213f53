"""Perfetto's trace processor: where it is on this machine, and what it answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from traceops.core.errors import InputError, UsageError

VARIABLE = "TRACE_PROCESSOR"
NAMES = ("trace_processor_shell", "trace_processor")
_ENDINGS = (".pftrace", ".pftrace.gz", ".perfetto-trace")
_HOW = (
    "get it from https://get.perfetto.dev/trace_processor and put it on PATH, or name it in "
    f"{VARIABLE}; or pip install perfetto (traceops's extra [perfetto]), which downloads it when it is first asked"
)


def is_timeline(path: str) -> bool:
    """Whether this is a timeline that was written already: by its name, or because it stands beside a report."""
    name = Path(path).name
    return name.endswith(_ENDINGS) or name in ("timeline.json", "timeline.json.gz")


def find_processor() -> str:
    """The program: of TRACE_PROCESSOR, of PATH, or of the package `perfetto`, which downloads it once.

    Raises UsageError where none can be had.
    """
    if named := os.environ.get(VARIABLE):
        if shutil.which(named) is None:
            raise UsageError(f"{VARIABLE} names {named}, which is not a program that can be started; {_HOW}")
        return named
    for name in NAMES:
        if path := shutil.which(name):
            return path
    try:
        from perfetto.trace_processor.platform import PlatformDelegate
    except ImportError:
        raise UsageError(f"Perfetto's trace processor is not on this machine; {_HOW}") from None
    try:
        return str(PlatformDelegate().get_shell_path(None))
    except Exception as error:  # it downloads: no network, no such platform, another checksum
        raise UsageError(f"the package perfetto could not download its trace processor ({error}); {_HOW}") from error


def run_query(processor: str, timeline: Path, sql: str) -> str:
    """The answer as CSV, its header first. Raises InputError with the processor's own words where it has none."""
    if not timeline.is_file():
        raise InputError(f"{timeline} does not exist; traceops view writes one")
    with tempfile.NamedTemporaryFile("w", suffix=".sql", encoding="utf-8") as query:
        query.write(sql.rstrip().rstrip(";") + ";\n")
        query.flush()
        try:
            ended = subprocess.run(
                [processor, "-q", query.name, str(timeline)], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise UsageError(f"{processor} cannot be started ({error.strerror or error}); {_HOW}") from error
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if line.strip()][-12:]
        raise InputError("the trace processor could not answer:\n" + "\n".join(said or ["it said nothing"]))
    return ended.stdout
