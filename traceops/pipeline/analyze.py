"""From a folder of traces to a Report: discover, map over ranks, reduce, judge, conclude."""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceops.core.errors import ODD_VALUE, InputError, UsageError, odd_value_text
from traceops.core.settings_file import only, read_settings
from traceops.measure.activity import own_pattern
from traceops.pipeline.mapping.ranks import MapOptions, Progress, summarize_all
from traceops.traces.discover import Discovery, Window, discover

if TYPE_CHECKING:
    from traceops.pipeline.conclude import Analysis
    from traceops.report.model import Report

_KERNELS = "communication_kernels"


def own_kernels(start: Path | None = None) -> tuple[str, ...]:
    """Patterns of kernels that communicate, beside those that are known; () without settings. Raises UsageError naming
    the file and what is wrong in it."""
    if (found := read_settings(start)) is None:
        return ()
    table, source = found
    own = table.get("analyze", {})
    if not isinstance(own, dict):
        raise UsageError(f"{source}: analyze must be a table")
    only(own, (_KERNELS, "hta"), f"{source}: analyze")
    if not isinstance(own.get("hta", True), bool):
        raise UsageError(f"{source}: analyze.hta must be true or false")
    patterns = own.get(_KERNELS, [])
    if not isinstance(patterns, list) or not all(isinstance(one, str) and one for one in patterns):
        raise UsageError(f"{source}: analyze.{_KERNELS} must be a list of regular expressions, in quotes")
    try:
        own_pattern(tuple(patterns))
    except ValueError as error:
        raise UsageError(f"{source}: analyze.{_KERNELS}: {error}") from error
    return tuple(patterns)


def hta_checks(environ: Mapping[str, str]) -> bool:
    """Whether HTA may check the tables: not where TRACEOPS_HTA is 0, or traceops.toml's analyze.hta false."""
    found = read_settings()
    return environ.get("TRACEOPS_HTA") != "0" and (found is None or found[0].get("analyze", {}).get("hta", True))


def analyze(
    path: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    with_hta: bool = False,
    cache: bool = True,
    executor: str | Executor | None = None,
    evidence: Sequence[str] = (),
) -> Report:
    """Analyse the latest capture window under `path`: a run folder, a folder of traces or summaries, one such
    file, a remote path.

    `jobs`: ranks that are read at a time, one a core if None. `executor` reads them: one of concurrent.futures,
    `dask://HOST:PORT` or `mpi`; processes of this machine if None. `cache`: summaries of traces that were read
    before are used. `with_hta`: HTA's own code computes HTA's tables. `progress` is called with `mapping.ranks.Done`.
    `evidence`: files of the machines besides those in the run folder (topology matrix, NCCL log, doctor.json).

    Raises InputError where nothing can be read, UsageError for an executor that cannot be had, or HTA. Damaged files
    cost themselves only and are findings.
    """
    found = find_traces(os.fspath(path))
    options = MapOptions(jobs, executor, cache, with_hta, progress, load_reduce, own_kernels())
    return analyze_window(found, found.latest, options, evidence)


def find_traces(path: str) -> Discovery:
    """`discover`, whose error says so where `path` holds evidence of a hang in place of traces."""
    try:
        return discover(path)
    except InputError as error:
        from traceops.hangs.in_report import evidence_hint

        if hint := evidence_hint(path):
            raise InputError(f"{error}{hint}") from error
        raise


def analyze_window(
    found: Discovery, window: Window, options: MapOptions | None, evidence: Sequence[str] = ()
) -> Report:
    """Analyse one capture window of what `discover` found; `evidence` as in `analyze`."""
    return run_pipeline(found, window, options, evidence).report


def run_pipeline(
    found: Discovery, window: Window, options: MapOptions | None = None, evidence: Sequence[str] = ()
) -> Analysis:
    """The pipeline, whoever asks: summarize the ranks of a window, compare them, judge, assemble. Raises NoEventsError
    where no rank has an event, and InputError as `analyze` does."""
    ranks, failed = summarize_all(window.files, options or MapOptions())
    from traceops.pipeline.conclude import conclude

    try:
        return conclude(found, ranks, failed, evidence)
    except ODD_VALUE as error:
        if not found.manifest or not _while_reading_run_json(error):
            raise
        problem = (f"{found.root}/run.json", odd_value_text(error))
        return conclude(replace(found, manifest={}, problems=(*found.problems, problem)), ranks, failed, evidence)


def _while_reading_run_json(error: Exception) -> bool:
    """Whether what raised this, or a caller of it in the same module, was given run.json's values to read."""
    frames = [(str(frame.f_globals.get("__name__")), frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [own for own in reversed(frames) if own[0].partition(".")[0] not in sys.stdlib_module_names]
    own = itertools.takewhile(lambda named: named[0] == ours[0][0], ours)
    given = {name for _, frame in own for name in frame.f_code.co_varnames[: frame.f_code.co_argcount]}
    return bool(given & {"manifest", "discovery"})


def load_reduce() -> None:
    """Import what follows the map; best done while workers are at it, who need none of it."""
    import traceops.pipeline.conclude  # noqa: F401
