"""Traces of generated runs as people record them without the profiler's step marks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from generated_run import SimulatedRun, TraceStyle, write_traces

Row = dict[str, Any]
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def write_unmarked(
    run: SimulatedRun, folder: Path, change: Callable[[int, Row], list[Row]], drop_marks: bool = True
) -> Path:
    """Write the run's traces; `change` gives for each row of a rank the rows that are to be in its place."""
    for rank, path in zip(run.ranks, write_traces(run, folder, TraceStyle()), strict=True):
        trace = json.loads(path.read_text())
        trace["traceEvents"] = [
            changed
            for row in trace["traceEvents"]
            for changed in change(rank.rank, row)
            if not (drop_marks and "ProfilerStep" in str(changed.get("name")))
        ]
        path.write_text(json.dumps(trace))
    return folder


def as_is(rank: int, row: Row) -> list[Row]:
    """Only the profiler's marks are missing."""
    return [row]


def no_marks(rank: int, row: Row) -> list[Row]:
    """No optimizer, loader or backward pass either."""
    name = str(row.get("name"))
    if name.startswith("Optimizer.") or "DataLoader" in name:
        return []
    return [{**row, "name": "aten::mm"} if name.startswith("autograd") else row]


def device_only(rank: int, row: Row) -> list[Row]:
    """No record of the host."""
    return [row] if row.get("ph") != "X" or row.get("cat") in DEVICE else []


def called(name: str) -> Callable[[int, Row], list[Row]]:
    """The marks as annotations of this name, {} being the step's number."""

    def change(rank: int, row: Row) -> list[Row]:
        mark = str(row.get("name"))
        if not mark.startswith("ProfilerStep#"):
            return no_marks(rank, row)
        number = mark.partition("#")[2]
        return [{**row, "name": name.format(number)}] if row.get("cat") == "user_annotation" else []

    return change
