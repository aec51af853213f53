"""From a folder of traces to a Report: discover, map over ranks, reduce, judge, conclude."""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from traceops.across.agreed_steps import with_agreed_steps
from traceops.across.cross_rank import CrossRank, measure_across
from traceops.across.loading import loader_paces
from traceops.across.plain_step import plain_step
from traceops.compute.measure import at_pace
from traceops.core.errors import ODD_VALUE, InputError, UsageError, odd_value_text
from traceops.core.settings_file import only, read_settings
from traceops.fabric.discover import run_fabric
from traceops.hangs.in_report import diagnosis_of_run, evidence_hint
from traceops.measure.activity import own_pattern
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.pipeline.assemble import assemble
from traceops.pipeline.mapping.ranks import MapOptions, Progress, summarize_all
from traceops.pipeline.observed_run import observed_run, undisturbed_run
from traceops.pipeline.one_run import of_one_run, with_same_steps
from traceops.pipeline.run_info import of_own_window, own_gpus, rank_hosts, run_block, without_profiler_ms, world_size
from traceops.report.model import Report
from traceops.rules.inputs import Inputs
from traceops.rules.registry import judge
from traceops.traces.discover import Discovery, Window, discover
from traceops.traces.run_manifest import recorded_steps

# What the user's settings say of analysing: [analyze] in traceops.toml.


_KERNELS = "communication_kernels"


def own_kernels(start: Path | None = None) -> tuple[str, ...]:
    """Patterns of kernels that communicate, beside those that are known; () without settings.

    Raises UsageError naming the file and what is wrong in it.
    """
    found = read_settings(start)
    if found is None:
        return ()
    table, source = found
    own = table.get("analyze", {})
    if not isinstance(own, dict):
        raise UsageError(f"{source}: analyze must be a table")
    only(own, (_KERNELS,), f"{source}: analyze")
    patterns = own.get(_KERNELS, [])
    if not isinstance(patterns, list) or not all(isinstance(one, str) and one for one in patterns):
        raise UsageError(f"{source}: analyze.{_KERNELS} must be a list of regular expressions, in quotes")
    try:
        own_pattern(tuple(patterns))
    except ValueError as error:
        raise UsageError(f"{source}: analyze.{_KERNELS}: {error}") from error
    return tuple(patterns)


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
    """The pipeline, whoever asks: summarize the ranks of a window, compare them, judge, assemble.

    Raises NoEventsError where no rank has an event, and InputError as `analyze` does.
    """
    ranks, failed = summarize_all(window.files, options or MapOptions())
    from traceops.pipeline.analyze import conclude

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
    import traceops.pipeline.analyze  # noqa: F401


class Analysis(Struct, frozen=True):
    """What was found in a run, and the measured ranks that it was found in: those whose traces hold events."""

    report: Report
    run: CrossRank


class NoEventsError(InputError):
    """None of the traces holds an event that could be read."""


def conclude(
    found: Discovery, ranks: Sequence[RankSummary], failed: Sequence[tuple[str, str]], evidence: Sequence[str] = ()
) -> Analysis:
    """What is found in ranks in order, and in the files that `failed` with what is wrong with them.

    evidence: files besides those of the run folder that tell of its machines.
    Raises NoEventsError where no rank has an event, InputError where a file of `evidence` is of no use.
    """
    usable = [summary for summary in ranks if summary.event_count]
    problems = [*found.problems, *failed]
    problems += [(s.path, "; ".join(s.damage) or "it holds no events") for s in ranks if not s.event_count]
    if not usable:
        listed = "\n".join(f"  {path}: {what}" for path, what in problems[:20])
        raise NoEventsError(
            f"{found.root}: none of the traces holds an event that could be read:\n{listed}{evidence_hint(found.root)}"
        )
    one = of_one_run(usable, rank_hosts(found, usable), found.manifest)
    usable, other_steps = with_same_steps(one.ranks, recorded_steps(found.manifest, found.root))
    usable = with_agreed_steps(usable, world_size(found, one.ranks))
    fabric = run_fabric(found.root, evidence)
    seen = observed_run(found, usable)
    paces = loader_paces(usable, seen.whole)
    hosts, gpus = rank_hosts(found, usable), own_gpus(found.manifest)
    usual_ms = () if seen.whole is None else tuple(seen.whole.usual_ms.tolist())
    run = measure_across(usable, world_size(found, usable), hosts, fabric, paces, gpus, usual_ms)
    try:
        hang, no_hang = diagnosis_of_run(found.root)
    except ODD_VALUE as error:
        hang, no_hang = None, f"the evidence of a hang: {odd_value_text(error)}"
    steps = numbered_steps(usable)
    on_gpu = any(summary.on_gpu for summary in usable)
    found = replace(
        found,
        manifest=of_own_window(found.manifest, steps, seen.whole, on_gpu=on_gpu),
        problems=(*problems, *one.left_out),
        doubts=(*found.doubts, *one.doubts),
        notes=(*found.notes, *seen.notes),
    )
    plain = plain_step(seen.whole, found.manifest, on_gpu=on_gpu)
    own_ms = without_profiler_ms(found.manifest, steps, seen.whole, plain)
    undisturbed, light_notes = undisturbed_run(found, run, plain)
    found = replace(found, notes=(*found.notes, *light_notes))
    first_ms = found.manifest.get("unprofiled_step_ms")
    run = _at_pace(run, (own_ms, first_ms, None if undisturbed is None else undisturbed.step_ms))
    known = Inputs(
        found,
        run,
        hang,
        no_hang,
        observed=seen.observed,
        whole=seen.whole,
        machine=seen.machine,
        undisturbed=undisturbed,
        memory=seen.memory,
        other_steps=other_steps,
        plain=plain,
        own_ms=own_ms,
        rounds=seen.rounds,
    )
    return Analysis(assemble(known, run_block(found, usable), judge(known), seen), run)


def _at_pace(run: CrossRank, steps_ms: Sequence[float | None]) -> CrossRank:
    """With what fixes of kernels do to a step, which takes so long without the profiler."""
    steps_ns = [1e6 * ms for ms in steps_ms if ms is not None]
    if not steps_ns or run.unit != "step":
        return run
    ranks = [
        times
        if times.summary.compute is None
        else replace(times, summary=replace(times.summary, compute=at_pace(times.summary.compute, steps_ns)))
        for times in run.ranks
    ]
    return replace(run, ranks=tuple(ranks))
