"""One capture to compare: its report, from a run folder, traces, a report folder or report.json."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from traceops.compare.model import CaptureInfo
from traceops.compare.statistics import Float
from traceops.errors import InputError
from traceops.load.discover import PAIRS
from traceops.load.source import is_remote, open_binary

SCHEMA_VERSION = 1


class _Step(msgspec.Struct):
    rank: int
    duration_ms: float
    step: int | None = None


class _Unprofiled(msgspec.Struct):
    rank: int
    index: int
    duration_ms: float


class _Shape(msgspec.Struct):
    """What must be right in a report.json for it to be compared."""

    run: dict[str, Any]
    summary: dict[str, Any]
    ranks: list[dict[str, Any]]
    steps: list[_Step]
    findings: list[dict[str, Any]]
    collectives: list[dict[str, Any]]
    schema_version: int = SCHEMA_VERSION
    unprofiled_steps: list[_Unprofiled] = []
    inventory: dict[str, list[dict[str, Any]]] = {}


@dataclass(frozen=True)
class Capture:
    """One capture: where it is from, and its report as the object that report.json holds."""

    info: CaptureInfo
    report: dict[str, Any]

    @property
    def run(self) -> dict[str, Any]:
        """What is known of the run."""
        run: dict[str, Any] = self.report["run"]
        return run


def read_capture(path: str, *, jobs: int | None = None) -> Capture:
    """A capture from report.json, a folder that holds one, or anything `traceops analyze` takes.

    Traces are analysed anew: a report beside them may be older. Raises InputError naming the file.
    """
    local = None if is_remote(path) else Path(path)
    if local is not None and local.is_dir() and not _has_traces(local) and (local / "report.json").is_file():
        path = str(local / "report.json")
    if path.endswith("report.json") or (path.endswith((".json", ".json.gz")) and _is_report(path)):
        return capture_of(_load(path), path)
    from traceops.analyze import analyze
    from traceops.report.json import to_json_object

    return capture_of(to_json_object(analyze(path, jobs=jobs)), path)


def capture_of(report: Any, path: str) -> Capture:
    """A capture from the object that a report.json holds. Raises InputError where it is none."""
    try:
        shape = msgspec.convert(report, _Shape)
    except msgspec.ValidationError as error:
        raise InputError(f"{path} is no report.json of traceops: {error}") from error
    if shape.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {shape.schema_version}, this traceops reads {SCHEMA_VERSION}: "
            "analyse its traces again, or install the version that wrote it"
        )
    run = shape.run
    git = run.get("git") if isinstance(run.get("git"), dict) else {}
    assert isinstance(git, dict)
    started = run.get("started_ns")
    info = CaptureInfo(
        name=str(run.get("name") or Path(path).name),
        path=path,
        started_ns=started if isinstance(started, int) else None,
        commit=git.get("commit") if isinstance(git.get("commit"), str) else None,
        dirty=git.get("dirty") if isinstance(git.get("dirty"), bool) else None,
        steps=len({row.step for row in shape.steps if row.step is not None}),
        unprofiled_steps=len({row.index for row in shape.unprofiled_steps}),
    )
    return Capture(info, report)


def pair_folder(path: str) -> tuple[list[str], list[str]] | None:
    """The run folders base_* and head_* of a series that `traceops run --against` made; None for another path."""
    if is_remote(path) or not Path(path, PAIRS).is_file():
        return None
    try:
        order = json.loads(Path(path, PAIRS).read_text()).get("order")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"{Path(path, PAIRS)} cannot be read ({error}); name the sides: --base … --head …"
        ) from error
    names = [name for name in order if isinstance(name, str)] if isinstance(order, list) else []
    base = [str(Path(path, name)) for name in names if name.startswith("base_")]
    head = [str(Path(path, name)) for name in names if name.startswith("head_")]
    if not base or not head:
        raise InputError(f"{Path(path, PAIRS)} names no capture of both sides yet; let the series finish")
    return base, head


def step_series(capture: Capture, *keys: str) -> Float:
    """The sum of some columns of a step, mean over ranks, one number a step in order; empty if not known."""
    by_step: dict[int, list[float]] = defaultdict(list)
    for row in capture.report["steps"]:
        values = [row.get(key) for key in keys]
        if row["step"] is not None and all(_is_number(value) for value in values):
            by_step[row["step"]].append(float(sum(values)))
    return _over_ranks(by_step)


def unprofiled_series(capture: Capture) -> Float:
    """Steps without the profiler in ms, mean over ranks, in order; empty if none were timed."""
    by_index: dict[int, list[float]] = defaultdict(list)
    for row in capture.report.get("unprofiled_steps") or ():
        by_index[row["index"]].append(float(row["duration_ms"]))
    return _over_ranks(by_index)


def step_numbers(capture: Capture) -> list[int]:
    """Numbers of the profiled steps, in the order of `step_series`."""
    rows = capture.report["steps"]
    counts: dict[int, int] = defaultdict(int)
    for row in rows:
        if row["step"] is not None:
            counts[row["step"]] += 1
    return [step for step in sorted(counts) if counts[step] == max(counts.values())]


def _over_ranks(by_step: dict[int, list[float]]) -> Float:
    """Steps that as many ranks as any have: one that some ranks lack is another step."""
    most = max((len(values) for values in by_step.values()), default=0)
    return np.array([np.mean(by_step[step]) for step in sorted(by_step) if len(by_step[step]) == most])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _has_traces(folder: Path) -> bool:
    return (folder / "run.json").is_file() or any(folder.glob("**/*trace.json*"))


def _is_report(path: str) -> bool:
    """Whether a JSON file says early that it is a report, and not a trace."""
    try:
        with open_binary(path) as file:
            head = file.read(4096)
    except InputError:
        return False
    return b'"schema_version"' in head and b'"traceops"' in head


def _load(path: str) -> Any:
    with open_binary(path) as file:
        try:
            return json.load(file)
        except (ValueError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"{path} is not valid JSON ({error}); write it again with traceops analyze"
            ) from error
