"""From the summaries of all ranks to a Report: reduce, judge, assemble."""

from __future__ import annotations

from collections.abc import Sequence
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
from traceops.load.discover import Discovery
from traceops.load.source import is_remote
from traceops.model import Report
from traceops.run_info import rank_hosts, run_block, world_size
from traceops.summary import RankSummary


def conclude(found: Discovery, ranks: Sequence[RankSummary], failed: Sequence[tuple[str, str]]) -> Report:
    """The report on ranks in order, and on the files that `failed` with what is wrong with them.

    Raises InputError where no rank has an event.
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
