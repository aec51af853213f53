"""From a folder of traces to a Report: discover, map over ranks, reduce, judge."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from traceops.analyses.communication import judge_exposed
from traceops.analyses.crossrank import CrossRank, measure_across
from traceops.analyses.idle import judge_idle
from traceops.analyses.validity import (
    judge_backward_sync,
    judge_damage,
    judge_missing,
    judge_profiler,
    judge_steps,
    profiler_slowdown,
)
from traceops.assemble import assemble
from traceops.errors import InputError
from traceops.findings import Verdict
from traceops.load.discover import Discovery, TraceFile, Window, discover
from traceops.load.source import is_remote
from traceops.model import Report
from traceops.run_info import run_block, world_size
from traceops.summary import RankSummary, summarize

_POOL_WORTH_BYTES = 4 << 20  # below this, starting processes takes longer than the work

Progress = Callable[[int, int, TraceFile], None]


def analyze(
    path: str | os.PathLike[str], *, jobs: int | None = None, progress: Progress | None = None
) -> Report:
    """Analyse the latest capture window under `path`: a run folder, a folder of traces, one trace, a remote path.

    Raises InputError where nothing can be read. Damaged files cost themselves only and are findings.
    """
    found = discover(os.fspath(path))
    return analyze_window(found, found.windows[-1], jobs=jobs, progress=progress)


def analyze_window(
    found: Discovery, window: Window, *, jobs: int | None = None, progress: Progress | None = None
) -> Report:
    """Analyse one capture window of what `discover` found."""
    ranks, failed = summarize_all(window.files, jobs, progress)
    usable = [summary for summary in ranks if summary.event_count]
    problems = [*found.problems, *failed]
    problems += [(s.path, "; ".join(s.damage) or "it holds no events") for s in ranks if not s.event_count]
    if not usable:
        listed = "\n".join(f"  {path}: {what}" for path, what in problems[:20])
        raise InputError(f"{found.root}: none of the traces holds an event that could be read:\n{listed}")
    found = replace(found, problems=tuple(problems))
    run = measure_across(usable, world_size(found, usable))
    return assemble(found, run, run_block(found, usable), judge(found, usable, run))


def judge(found: Discovery, ranks: Sequence[RankSummary], run: CrossRank) -> list[Verdict]:
    """Every rule's verdict, in no particular order."""
    single_file = not is_remote(found.root) and Path(found.root).is_file()
    return [
        judge_missing(world_size(found, ranks), [s.rank for s in ranks], single_file),
        judge_damage(ranks, found.problems),
        judge_steps(ranks),
        judge_backward_sync(ranks, found.manifest),
        judge_profiler(found.manifest),
        judge_exposed(run),
        *judge_idle(run, profiler_slowdown(found.manifest)),
    ]


def summarize_all(
    files: Sequence[TraceFile], jobs: int | None = None, progress: Progress | None = None
) -> tuple[list[RankSummary], list[tuple[str, str]]]:
    """The map over ranks, in processes where that pays: summaries in rank order, and files that failed."""
    jobs = min(jobs or os.cpu_count() or 1, len(files))
    size = sum(Path(f.path).stat().st_size for f in files if not is_remote(f.path) and Path(f.path).exists())
    done: list[RankSummary] = []
    failed: list[tuple[str, str]] = []
    if jobs == 1 or (size < _POOL_WORTH_BYTES and not is_remote(files[0].path)):
        for number, file in enumerate(files, 1):
            _collect(lambda file=file: summarize(file), file, done, failed)  # type: ignore[misc]
            if progress:
                progress(number, len(files), file)
        return done, failed
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        pending = {pool.submit(summarize, file): file for file in files}
        try:
            for number, future in enumerate(as_completed(pending), 1):
                _collect(future.result, pending[future], done, failed)
                if progress:
                    progress(number, len(files), pending[future])
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(done, key=lambda summary: summary.rank), sorted(failed)


def _collect(
    result: Callable[[], RankSummary], file: TraceFile, done: list[RankSummary], failed: list[tuple[str, str]]
) -> None:
    try:
        done.append(result())
    except InputError as error:
        failed.append((file.path, str(error).removeprefix(f"{file.path}: ")))
    except (BrokenProcessPool, MemoryError):
        failed.append((file.path, "its process ended (out of memory?); try --jobs 1"))
