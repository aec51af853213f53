"""From the summaries of all ranks to a Report: reduce, judge, assemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceops.across.cross_rank import measure_across
from traceops.core.errors import InputError
from traceops.fabric.discover import run_fabric
from traceops.hangs.in_report import diagnosis_of_run, evidence_hint
from traceops.measure.summary import RankSummary
from traceops.pipeline.assemble import assemble
from traceops.pipeline.report import Report
from traceops.pipeline.run_info import rank_hosts, run_block, world_size
from traceops.rules.inputs import Inputs
from traceops.rules.registry import judge
from traceops.traces.discover import Discovery


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
    hang, no_hang = diagnosis_of_run(found.root)
    verdicts = judge(Inputs(found, run, hang, no_hang))
    return assemble(found, run, run_block(found, usable), verdicts, hang)
