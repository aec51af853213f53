"""Summarises traces on the training nodes: each node reads its own ranks, so that only summaries are copied."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from traceops.core.errors import InputError
from traceops.pipeline.mapping.executors import map_files
from traceops.pipeline.mapping.ranks import write_summary
from traceops.traces.discover import TraceFile, discover


def summarize_traces(folder: Path, ranks: Collection[int]) -> tuple[int, list[str]]:
    """Write a summary beside each trace of these ranks; returns how many, and what went wrong. Ranks of other nodes,
    whose traces may lie in the same folder, see to their own."""
    try:
        found = discover(str(folder))
    except InputError as error:
        return 0, [str(error)]
    files = [file for window in found.windows for file in window.files if file.rank in ranks]
    written = _Written()
    map_files(_summarize, [file for file in files if not file.summarized], written, jobs=None)
    return written.count, written.problems


def _summarize(file: TraceFile) -> str:
    """In a worker: what went wrong, nothing if all went well."""
    try:
        write_summary(file)
    except InputError as error:
        return str(error)
    return ""


class _Written:
    def __init__(self) -> None:
        self.count = 0
        self.problems: list[str] = []

    def take(self, file: TraceFile, result: str, elsewhere: bool) -> None:
        if result:
            self.problems.append(result)
        else:
            self.count += 1

    def fail(self, file: TraceFile, what: str) -> None:
        self.problems.append(f"{file.path}: {what}")

    def tick(self) -> None:
        """There is no line of progress here."""
