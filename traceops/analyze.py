"""From a folder of traces to a Report: discover, map over ranks, reduce, judge."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path

from traceops.analyses.bandwidth import judge_low, judge_siblings
from traceops.analyses.comm_pattern import judge_late_start, judge_small
from traceops.analyses.communication import judge_exposed
from traceops.analyses.crossrank import CrossRank, measure_across
from traceops.analyses.idle import judge_idle
from traceops.analyses.judge_clocks import judge_clocks
from traceops.analyses.judge_stragglers import judge_stragglers
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
from traceops.hangs.included import evidence_hint, included_diagnosis
from traceops.load.discover import Discovery, TraceFile, Window, discover
from traceops.load.source import is_remote
from traceops.model import Report
from traceops.run_info import rank_host, run_block, world_size
from traceops.summary import RankSummary, summarize

_POOL_WORTH_BYTES = 4 << 20  # below this, starting processes takes longer than the work

Progress = Callable[[int, int, TraceFile], None]


def analyze(
    path: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    with_hta: bool = False,
) -> Report:
    """Analyse the latest capture window under `path`: a run folder, a folder of traces, one trace, a remote path.

    `with_hta`: HTA's own code computes HTA's tables. Raises InputError where nothing can be read. Damaged files
    cost themselves only and are findings.
    """
    found = find_traces(os.fspath(path))
    return analyze_window(found, found.windows[-1], jobs=jobs, progress=progress, with_hta=with_hta)


def find_traces(path: str) -> Discovery:
    """`discover`, whose error says so where `path` holds evidence of a hang in place of traces."""
    try:
        return discover(path)
    except InputError as error:
        if hint := evidence_hint(path):
            raise InputError(f"{error}{hint}") from error
        raise


def analyze_window(
    found: Discovery,
    window: Window,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    with_hta: bool = False,
) -> Report:
    """Analyse one capture window of what `discover` found."""
    ranks, failed = summarize_all(window.files, jobs, progress, with_hta=with_hta)
    usable = [summary for summary in ranks if summary.event_count]
    problems = [*found.problems, *failed]
    problems += [(s.path, "; ".join(s.damage) or "it holds no events") for s in ranks if not s.event_count]
    if not usable:
        listed = "\n".join(f"  {path}: {what}" for path, what in problems[:20])
        raise InputError(
            f"{found.root}: none of the traces holds an event that could be read:\n{listed}{evidence_hint(found.root)}"
        )
    found = replace(found, problems=tuple(problems))
    hosts = {summary.rank: rank_host(found, summary) for summary in usable}
    run = measure_across(usable, world_size(found, usable), hosts)
    hang, of_hang = included_diagnosis(found.root)
    return assemble(found, run, run_block(found, usable), [*of_hang, *judge(found, usable, run)], hang)


def judge(found: Discovery, ranks: Sequence[RankSummary], run: CrossRank) -> list[Verdict]:
    """The verdict of every rule that needs traces, in no particular order."""
    slowdown = profiler_slowdown(found.manifest)
    single_file = not is_remote(found.root) and Path(found.root).is_file()
    return [
        judge_missing(world_size(found, ranks), [s.rank for s in ranks], single_file),
        judge_damage(ranks, found.problems),
        judge_steps(ranks),
        judge_backward_sync(ranks, found.manifest),
        judge_profiler(found.manifest),
        judge_clocks(run),
        *judge_stragglers(run, slowdown),
        judge_exposed(run),
        judge_small(run),
        judge_late_start(run),
        *judge_idle(run, slowdown),
        judge_low(run),
        judge_siblings(run),
    ]


def summarize_all(
    files: Sequence[TraceFile],
    jobs: int | None = None,
    progress: Progress | None = None,
    *,
    with_hta: bool = False,
) -> tuple[list[RankSummary], list[tuple[str, str]]]:
    """The map over ranks, in processes where that pays: summaries in rank order, and files that failed."""
    jobs = min(jobs or os.cpu_count() or 1, len(files))
    size = sum(Path(f.path).stat().st_size for f in files if not is_remote(f.path) and Path(f.path).exists())
    done: list[RankSummary] = []
    failed: list[tuple[str, str]] = []
    map_one = partial(summarize, with_hta=True) if with_hta else summarize
    if jobs == 1 or (size < _POOL_WORTH_BYTES and not is_remote(files[0].path)):
        for number, file in enumerate(files, 1):
            _collect(partial(map_one, file), file, done, failed)
            if progress:
                progress(number, len(files), file)
        return done, failed
    if with_hta:
        from traceops.hta_bridge import preload

        preload()
    unfinished = _map_in_pool(map_one, files, jobs, done, failed, progress)
    # A process that dies takes the whole pool with it: try what is left each in a process of its own.
    for file in unfinished:
        if _map_in_pool(map_one, [file], 1, done, failed, progress):
            failed.append((file.path, "its process was killed (out of memory?); try --jobs 1"))
    return sorted(done, key=lambda summary: summary.rank), sorted(failed)


def _map_in_pool(
    map_one: Callable[[TraceFile], RankSummary],
    files: Sequence[TraceFile],
    jobs: int,
    done: list[RankSummary],
    failed: list[tuple[str, str]],
    progress: Progress | None,
) -> list[TraceFile]:
    """Summarise files in processes; returns those whose result was lost because a process died."""
    lost: list[TraceFile] = []
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        pending = {pool.submit(map_one, file): file for file in files}
        try:
            for future in as_completed(pending):
                try:
                    _collect(future.result, pending[future], done, failed)
                except BrokenProcessPool:
                    lost.append(pending[future])
                if progress:
                    progress(len(done) + len(failed), len(files), pending[future])
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(lost, key=lambda file: file.rank)


def _collect(
    result: Callable[[], RankSummary], file: TraceFile, done: list[RankSummary], failed: list[tuple[str, str]]
) -> None:
    """One rank's result, or what is wrong with its file: no file hides the others."""
    try:
        done.append(result())
    except InputError as error:
        failed.append((file.path, str(error).removeprefix(f"{file.path}: ")))
    except MemoryError:
        failed.append((file.path, "there was not enough memory to read it; try --jobs 1"))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # a trace we did not foresee
        failed.append(
            (file.path, f"it could not be analysed ({type(error).__name__}: {error}); please report this")
        )
