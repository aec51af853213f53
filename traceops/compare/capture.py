"""One capture to compare: its report, from a run folder, traces, a report folder or report.json."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, UnsetType
from msgspec.structs import replace

from traceops.compare.model import CaptureInfo
from traceops.compare.statistics import Float, rounds_of
from traceops.core.errors import FileError, InputError
from traceops.core.files import read_regular
from traceops.core.findings import Finding
from traceops.core.redaction import redact_text, redact_value
from traceops.report.document import load_object, report_file, report_of
from traceops.report.inventory import Inventory
from traceops.report.model import ReportDocument
from traceops.report.rows import Run
from traceops.report.step_times import WholeRunRows
from traceops.rules.validity import KERNELS_MISSING
from traceops.traces.discover import PAIRS
from traceops.traces.source import is_remote

_WANTED = "report.json of traceops that can be compared"


class ComparedCapture(Struct, frozen=True):
    """One capture: where it is from, and its report. `run_object` is the `run` object as the file has it."""

    info: CaptureInfo
    report: ReportDocument
    run_object: dict[str, Any]

    @property
    def run(self) -> Run:
        """What is known of the run."""
        return self.report.run


Captures = Sequence[ComparedCapture]
"""The captures of a side."""


def read_capture(path: str, *, jobs: int | None = None) -> ComparedCapture:
    """A capture from report.json, a folder that holds one, or anything `traceops analyze` takes. Traces are analysed
    anew: a report beside them may be older. Raises InputError naming the file."""
    return capture_of(*report_object(path, jobs=jobs))


def report_object(path: str, *, jobs: int | None = None) -> tuple[Any, str]:
    """The object that report.json holds, and where it is from; as `read_capture`, but nobody has checked it."""
    if (file := report_file(path)) is not None:
        return load_object(file), file
    from traceops.pipeline.analyze import analyze
    from traceops.report.document import to_json_object

    return to_json_object(analyze(path, jobs=jobs)), path


def capture_of(value: Any, path: str) -> ComparedCapture:
    """A capture from the object that a report.json holds. Raises InputError where it is none."""
    report = report_of(value, path, _WANTED)
    for at, step in enumerate(report.steps):
        if not step.duration_ms > 0:
            raise FileError(path, f"is no {_WANTED}: `$.steps[{at}].duration_ms` is 0")
    if not value.get("inventory"):  # an empty one says nothing of any step
        report = replace(report, inventory=None)
    run, git = report.run, report.run.git
    info = CaptureInfo(
        name=run.name or Path(path).name,
        path=redact_text(path),
        started_ns=run.started_ns,
        commit=git.commit if git else None,
        dirty=git.dirty if git else None,
        steps=len({row.step for row in report.steps if row.step is not None}),
        unprofiled_steps=len(_unprofiled(report)),
    )
    return ComparedCapture(info, report, redact_value(value["run"]))


def pair_folder(path: str) -> tuple[list[str], list[str]] | None:
    """The run folders base_* and head_* of a series that `traceops run --against` made; None for another path."""
    if is_remote(path) or not Path(path, PAIRS).is_file():
        return None
    try:
        order = json.loads(read_regular(Path(path, PAIRS))).get("order")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{Path(path, PAIRS)} cannot be read ({error}); name the sides: --base … --head …") from error
    names = [name for name in order if isinstance(name, str)] if isinstance(order, list) else []
    base = [str(Path(path, name)) for name in names if name.startswith("base_")]
    head = [str(Path(path, name)) for name in names if name.startswith("head_")]
    if not base or not head:
        raise InputError(f"{Path(path, PAIRS)} names no capture of both sides yet; let the series finish")
    return base, head


def step_series(capture: ComparedCapture, *keys: str) -> Float:
    """The sum of some columns of a step, mean over ranks, one number a step in order. Empty if not known, also if it is
    not known of a single rank: the mean of the others would be another number."""
    by_step: dict[int, list[float]] = defaultdict(list)
    for row in capture.report.steps:
        values = [getattr(row, key) for key in keys]
        if any(value is None for value in values):
            return np.empty(0)
        if row.step is not None:
            by_step[row.step].append(float(sum(values)))
    return _over_ranks(by_step)


def unprofiled_series(capture: ComparedCapture) -> Float:
    """Steps without the profiler in ms, mean over ranks, in order: of the whole run, else those the capture timed. Of
    the latter those behind a window are left out: how much its profiler slows them differs with torch, CUDA and
    --detach. Empty if none were timed."""
    return _unprofiled(capture.report)


def _unprofiled(report: ReportDocument) -> Float:
    by_index: dict[int, list[float]] = defaultdict(list)
    for row in report.unprofiled_steps:
        if not row.behind_window:
            by_index[row.index].append(row.duration_ms)
    timed, whole = _over_ranks(by_index), _over_ranks(steps_of_whole_run(report))
    found = whole if len(whole) > len(timed) else timed
    return rounds_of(found) if isinstance(report.whole_run, WholeRunRows) and len(found) else found


def steps_of_whole_run(report: ReportDocument) -> dict[int, list[float]]:
    """Steps of the whole run that nothing recorded but long ones at its start, of each the ranks' times; none where the
    profiler slows later ones. Of a long run each is the median of neighbours, a mean where input is late by turns."""
    found: dict[int, list[float]] = defaultdict(list)
    rows = report.whole_run
    if not isinstance(rows, WholeRunRows) or (report.run.device_type != "cpu" and rows.behind_ms is not None):
        return found
    ranks = {row.rank for row in report.ranks}
    for row in rows.timeline:
        if not row.recorded and row.first > rows.start_steps and row.rank in ranks and row.median_ms > 0:
            found[row.first].append(row.median_ms if isinstance(row.mean_ms, UnsetType) else row.mean_ms)
    return found


def on_ranks(capture: ComparedCapture, ranks: frozenset[int]) -> ComparedCapture:
    """The capture with the rows of these ranks only. Its inventory is the mean over all ranks that it has: where one of
    them is half known there is none."""
    report = replace(
        capture.report,
        steps=tuple(row for row in capture.report.steps if row.rank in ranks),
        unprofiled_steps=tuple(row for row in capture.report.unprofiled_steps if row.rank in ranks),
        ranks=tuple(row for row in capture.report.ranks if row.rank in ranks),
        inventory=None if half_known_ranks(capture) else capture.report.inventory,
    )
    return replace(capture, report=report)


def ranks_of(capture: ComparedCapture) -> frozenset[int]:
    """The ranks that have profiled steps and whole traces."""
    return frozenset(row.rank for row in capture.report.steps) - half_known_ranks(capture)


def damaged_ranks(capture: ComparedCapture) -> frozenset[int]:
    """The ranks whose traces were cut off or damaged."""
    return frozenset(row.rank for row in capture.report.ranks if row.damage)


def unseen_ranks(capture: ComparedCapture) -> frozenset[int]:
    """The ranks of which only the host was recorded though they used a GPU."""
    missing = KERNELS_MISSING.id
    return frozenset(rank for one in capture.report.findings if one.rule == missing for rank in one.ranks)


def half_known_ranks(capture: ComparedCapture) -> frozenset[int]:
    """Those of damaged traces, and those of which the GPU was not recorded where it was of others."""
    unseen = unseen_ranks(capture)
    return damaged_ranks(capture) | (unseen if len(unseen) < len(capture.report.ranks) else frozenset())


def inventories(side: Captures) -> list[Inventory]:
    """What runs in a step, of each capture whose report says so; one of an earlier traceops does not."""
    return [found for capture in side if (found := capture.report.inventory) is not None]


def findings_of_most(
    side: Captures, key: Callable[[Finding], Hashable], rules: Collection[str] | None = None
) -> dict[Hashable, Finding]:
    """Findings above info (of these rules) that more than half of a side's captures have, by `key`: the first's."""
    seen: dict[Hashable, list[Finding]] = defaultdict(list)
    for capture in side:
        serious = [f for f in capture.report.findings if f.severity != "info"]
        own = {key(f): f for f in serious if rules is None or f.rule in rules}
        for same, finding in own.items():
            seen[same].append(finding)
    return {same: found[0] for same, found in seen.items() if 2 * len(found) > len(side)}


def timed_series(capture: ComparedCapture) -> tuple[tuple[bool, Float], tuple[bool, Float]]:
    """Durations of steps in ms, mean over ranks: (False, without the profiler), (True, with it)."""
    return (False, unprofiled_series(capture)), (True, step_series(capture, "duration_ms"))


def step_numbers(capture: ComparedCapture) -> list[int]:
    """Numbers of the profiled steps, in the order of `step_series`."""
    counts: dict[int, int] = defaultdict(int)
    for row in capture.report.steps:
        if row.step is not None:
            counts[row.step] += 1
    return [step for step in sorted(counts) if counts[step] == max(counts.values())]


def _over_ranks(by_step: dict[int, list[float]]) -> Float:
    """Steps that as many ranks as any have: one that some ranks lack is another step."""
    most = max((len(values) for values in by_step.values()), default=0)
    return np.array([np.mean(by_step[step]) for step in sorted(by_step) if len(by_step[step]) == most])
