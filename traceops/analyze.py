"""From a folder of traces to a Report: discover, map over ranks, reduce, judge."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
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
from traceops.load.discover import Discovery, Window, discover
from traceops.load.source import is_remote
from traceops.mapping.ranks import Progress, summarize_all
from traceops.model import Report
from traceops.run_info import rank_hosts, run_block, world_size
from traceops.summary import RankSummary


def analyze(
    path: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    with_hta: bool = False,
    cache: bool = True,
    executor: str | Executor | None = None,
) -> Report:
    """Analyse the latest capture window under `path`: a run folder, a folder of traces or summaries, one such
    file, a remote path.

    `jobs`: ranks that are read at a time, one a core if None. `executor` reads them: one of concurrent.futures,
    `dask://HOST:PORT` or `mpi`; processes of this machine if None. `cache`: summaries of traces that were read
    before are used. `with_hta`: HTA's own code computes HTA's tables. `progress` is called with `mapping.ranks.Done`.

    Raises InputError where nothing can be read, UsageError for an executor that cannot be had. Damaged files
    cost themselves only and are findings.
    """
    found = find_traces(os.fspath(path))
    return analyze_window(
        found,
        found.windows[-1],
        jobs=jobs,
        progress=progress,
        with_hta=with_hta,
        cache=cache,
        executor=executor,
    )


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
    cache: bool = True,
    executor: str | Executor | None = None,
) -> Report:
    """Analyse one capture window of what `discover` found; see `analyze`."""
    ranks, failed = summarize_all(
        window.files, jobs, progress, with_hta=with_hta, cache=cache, executor=executor
    )
    usable = [summary for summary in ranks if summary.event_count]
    problems = [*found.problems, *failed]
    problems += [(s.path, "; ".join(s.damage) or "it holds no events") for s in ranks if not s.event_count]
    if not usable:
        listed = "\n".join(f"  {path}: {what}" for path, what in problems[:20])
        raise InputError(
            f"{found.root}: none of the traces holds an event that could be read:\n{listed}{evidence_hint(found.root)}"
        )
    found = replace(found, problems=tuple(problems))
    run = measure_across(usable, world_size(found, usable), rank_hosts(found, usable))
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
