"""From the summaries of a run's ranks to a Report: reduce, judge, assemble.

A module of its own because of what it imports: processes that read traces are forked before it is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from traceops.across.agreed_steps import with_agreed_steps
from traceops.across.cross_rank import CrossRank, measure_across
from traceops.across.loading import loader_paces
from traceops.across.plain_step import plain_step
from traceops.compute.measure import at_pace
from traceops.core.errors import ODD_VALUE, InputError, odd_value_text
from traceops.fabric.discover import run_fabric
from traceops.hangs.in_report import diagnosis_of_run, evidence_hint
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.pipeline.assemble import assemble
from traceops.pipeline.observed_run import observed_run, undisturbed_run
from traceops.pipeline.one_run import of_one_run, with_same_steps
from traceops.pipeline.run_info import of_own_window, own_gpus, rank_hosts, run_block, without_profiler_ms, world_size
from traceops.report.model import Report
from traceops.rules.inputs import Inputs
from traceops.rules.registry import judge
from traceops.traces.discover import Discovery
from traceops.traces.run_manifest import recorded_steps


class Analysis(Struct, frozen=True):
    """What was found in a run, and the measured ranks that it was found in: those whose traces hold events."""

    report: Report
    run: CrossRank


class NoEventsError(InputError):
    """None of the traces holds an event that could be read."""


def conclude(
    found: Discovery, ranks: Sequence[RankSummary], failed: Sequence[tuple[str, str]], evidence: Sequence[str] = ()
) -> Analysis:
    """What is found in ranks in order, and in the files that `failed` with what is wrong with them. evidence: files
    besides those of the run folder that tell of its machines. Raises NoEventsError where no rank has an event,
    InputError where a file of `evidence` is of no use."""
    usable = [summary for summary in ranks if summary.event_count]
    problems = [*found.problems, *failed]
    problems += [(s.path, "; ".join(s.damage) or "it holds no events") for s in ranks if not s.event_count]
    if not usable:
        listed = "\n".join(f"  {path}: {what}" for path, what in problems[:20])
        raise NoEventsError(f"{found.root}: none of the traces can be used:\n{listed}{evidence_hint(found.root)}")
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
