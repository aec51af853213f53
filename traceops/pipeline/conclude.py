"""From the summaries of all ranks to a Report: reduce, judge, assemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceops.across.communication import exposed_pct, judge_exposed
from traceops.across.cross_rank import CrossRank, measure_across
from traceops.core.errors import InputError
from traceops.fabric.circumstances import Circumstances
from traceops.fabric.discover import run_fabric
from traceops.hangs.included import evidence_hint, included_diagnosis
from traceops.measure.summary import RankSummary
from traceops.pipeline.assemble import assemble
from traceops.pipeline.report import Report
from traceops.pipeline.run_info import rank_hosts, run_block, world_size
from traceops.rules.bandwidth import judge_low, judge_siblings
from traceops.rules.clocks import judge_clocks
from traceops.rules.comm_pattern import judge_late_start, judge_small
from traceops.rules.fabric import judge_fabric
from traceops.rules.findings import Verdict
from traceops.rules.idle import judge_idle
from traceops.rules.stragglers import judge_stragglers
from traceops.rules.validity import (
    judge_backward_sync,
    judge_damage,
    judge_missing,
    judge_profiler,
    judge_steps,
    profiler_slowdown,
)
from traceops.traces.discover import Discovery
from traceops.traces.source import is_remote

# Hangs that a broken link explains as well as anything else does.
_STUCK = ("TO-H003", "TO-H005", "TO-H006")


def conclude(
    found: Discovery,
    ranks: Sequence[RankSummary],
    failed: Sequence[tuple[str, str]],
    evidence: Sequence[str] = (),
) -> Report:
    """The report on ranks in order, and on the files that `failed` with what is wrong with them.

    evidence: files besides those of the run folder that tell of its machines.
    Raises InputError where no rank has an event, or a file of `evidence` is of no use.
    """
    usable = [summary for summary in ranks if summary.event_count]
    problems = [*found.problems, *failed]
    problems += [(s.path, "; ".join(s.damage) or "it holds no events") for s in ranks if not s.event_count]
    if not usable:
        listed = "\n".join(f"  {path}: {what}" for path, what in problems[:20])
        raise InputError(
            f"{found.root}: none of the traces holds an event that could be read:\n{listed}{evidence_hint(found.root)}"
        )
    found = replace(found, problems=tuple(problems))
    fabric = run_fabric(found.root, evidence)
    run = measure_across(usable, world_size(found, usable), rank_hosts(found, usable), fabric)
    hang, of_hang = included_diagnosis(found.root)
    verdicts = [*of_hang, *judge(found, usable, run)]
    verdicts += judge_fabric(fabric, _circumstances(run, verdicts))
    return assemble(found, run, run_block(found, usable), verdicts, hang)


def _circumstances(run: CrossRank, verdicts: Sequence[Verdict]) -> Circumstances:
    """What the traces say that gives the fabric's findings their weight."""
    low = [f for v in verdicts if v.rule == "TO-C001" for f in v.findings if f.severity != "info"]
    return Circumstances(
        device=run.device,
        slow=low[0].severity if low else None,
        exposed_pct=exposed_pct(run),
        hung=any(v.rule in _STUCK and v.findings for v in verdicts),
        lost_ms=low[0].impact_ms if low else None,
    )


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
