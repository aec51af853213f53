"""Puts measurements and verdicts together into a Report, rounded for people and programs to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import UNSET

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.across.plain_step import PlainStep
from traceops.across.undisturbed import Undisturbed
from traceops.core.arrays import mean_ms
from traceops.core.redacted_fields import redact_fields
from traceops.core.rule import Verdict
from traceops.core.units import stored
from traceops.measure.hta_agreement import agreement_of_ranks
from traceops.measure.ledger import BUCKETS
from traceops.pipeline.assemble_collectives import collective_rows
from traceops.pipeline.assemble_cross import cross_rank_tables, what_if_rows
from traceops.pipeline.assemble_detail import step_details
from traceops.pipeline.assemble_experts import expert_rows
from traceops.pipeline.assemble_hosts import host_rows
from traceops.pipeline.assemble_inventory import inventory, peak_memory, step_counts, unprofiled_steps
from traceops.pipeline.assemble_memory import memory_rows
from traceops.pipeline.assemble_passes import pass_rows
from traceops.pipeline.assemble_pipelines import pipeline_rows
from traceops.pipeline.assemble_roles import role_rows
from traceops.pipeline.assemble_speed import with_speed
from traceops.pipeline.assemble_summary import summary_of
from traceops.pipeline.assemble_tables import blocking_rows, copy_rows, hta_rows, kernel_rows
from traceops.pipeline.assemble_whole import undisturbed_rows, whole_run_rows
from traceops.pipeline.flame import flame_file, flame_graph
from traceops.pipeline.observed_run import ObservedRun
from traceops.pipeline.run_info import rank_hosts
from traceops.pipeline.without_time import without_time
from traceops.report.model import Report
from traceops.report.rows import RankRow, StepRow
from traceops.report.run import Run
from traceops.rules import root_rules
from traceops.rules.explained import merge_overlapping
from traceops.rules.results import checks, most_important_first
from traceops.traces.discover import Discovery

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis

_MOST_FLAMES = 64


def assemble(
    found: Discovery,
    run: CrossRank,
    run_info: Run,
    verdicts: Sequence[Verdict],
    hang: Diagnosis | None = None,
    seen: ObservedRun | None = None,
    plain: PlainStep | None = None,
    undisturbed: Undisturbed | None = None,
    own_ms: float | None = None,
) -> Report:
    """Everything the renderers need, in the units and keys of report.json. own_ms: a step without the profiler."""
    of_hang = root_rules.in_order_of_roots(hang, verdicts)
    others = [f for verdict in verdicts if verdict.rule not in root_rules.BY_ID for f in verdict.findings]
    rank_rows, judged = _rank_rows(found, run), checks(verdicts)
    report = Report(
        run=run_info,
        summary=with_speed(summary_of(found, run, rank_rows, judged, seen, own_ms), run_info, run),
        ranks=rank_rows,
        hosts=host_rows(run, rank_rows) or UNSET,
        steps=tuple(row for times in run.ranks for row in _step_rows(times)),
        collectives=collective_rows(run),
        findings=(*of_hang, *most_important_first(merge_overlapping(others))),
        checks=tuple(judged),
        what_if=what_if_rows(run),
        pipelines=pipeline_rows(run),
        roles=role_rows(run),
        experts=expert_rows(run),
        passes=pass_rows(run),
        tables=msgspec.structs.replace(
            cross_rank_tables(run),
            kernels=kernel_rows(run),
            blocking_calls=blocking_rows(run),
            copies=copy_rows(run),
            hta=hta_rows(run),
        ),
        inventory=inventory(run),
        unprofiled_steps=unprofiled_steps(found, [times.summary for times in run.ranks]),
        whole_run=UNSET if seen is None else whole_run_rows(seen, plain, found.manifest) or UNSET,
        memory=UNSET if seen is None else memory_rows(seen.memory, seen.snapshots, seen.recorded) or UNSET,
        undisturbed=UNSET if undisturbed is None else undisturbed_rows(undisturbed, run.step_ms, found.manifest),
        flames=() if seen is None else _flames(seen),
        hang=hang,
        fabric=run.fabric,
        detail=step_details(run, [finding for verdict in verdicts for finding in verdict.findings], rank_rows),
        hta_agreement=agreement_of_ranks(times.summary.hta_agreement for times in run.ranks),
    )
    if run.unit == "none":
        report = without_time(report)
    return redact_fields(report, "summary", "findings", "checks")  # run and hang are already


def _flames(seen: ObservedRun) -> tuple[tuple[str, str], ...]:
    made = ((flame_file(one.rank), flame_graph(one)) for one in seen.observed[:_MOST_FLAMES])
    return tuple((name, text) for name, text in made if text is not None)


def _rank_rows(found: Discovery, run: CrossRank) -> tuple[RankRow, ...]:
    hosts = rank_hosts(found, [times.summary for times in run.ranks])
    peaks, caused = peak_memory(found), sum(times.caused_wait_ns or 0 for times in run.ranks)
    return tuple(
        _rank_row(run, times, hosts[times.summary.rank], caused, peaks.get(times.summary.rank, (None, None)))
        for times in run.ranks
    )


def _rank_row(
    run: CrossRank, times: RankTimes, host: str | None, caused: int, peak: tuple[int | None, int | None]
) -> RankRow:
    """Of one rank; `caused` is what all ranks waited for each other, ns, `peak` the rank's memory, bytes."""
    summary, breakdown = times.summary, times.summary.breakdown
    steps = max(len(times.duration), 1)
    return RankRow(
        rank=summary.rank,
        host=host,
        steps=len(times.duration),
        step_time_ms=_round(float(np.median(times.duration)) / 1e6) if len(times.duration) else None,
        typical_step_ms=_round(times.step_ms) if len(times.duration) else None,
        idle_pct=breakdown.idle_pct,
        compute_pct=breakdown.compute_pct,
        non_compute_pct=breakdown.non_compute_pct,
        overlap_pct=breakdown.overlap_pct,
        breakdown_source="hta" if breakdown.source == "hta" else "traceops",
        breakdown_note=breakdown.why_not_hta,
        exposed_comm_ms=_round(mean_ms(summary.ledger.buckets["comm"][times.typical])),
        wait_ms=_per_step(times.wait_ns, steps),
        transfer_ms=_per_step(times.transfer_ns, steps),
        caused_wait_ms=_per_step(times.caused_wait_ns, steps),
        late_share=None if times.caused_wait_ns is None or not caused else _round(times.caused_wait_ns / caused),
        **{f"{bucket}_ms": _bucket_ms(run, times, bucket) for bucket in BUCKETS},
        input_ms=_round(summary.host.input_ms / steps),
        peak_memory_bytes=peak[0],
        peak_reserved_bytes=peak[1],
        events=summary.event_count,
        trace=summary.path,
        damage="; ".join(summary.damage),
    )


def _step_rows(times: RankTimes) -> Iterator[StepRow]:
    counts = step_counts(times)
    durations = times.duration.tolist()
    buckets = [[ns / 1e6 for ns in times.buckets[bucket].tolist()] for bucket in BUCKETS]
    for number, duration, ms, own in zip(
        times.summary.step_numbers.tolist(), durations, zip(*buckets, strict=True), counts, strict=True
    ):
        yield StepRow(
            rank=times.summary.rank,
            step=None if number < 0 else number,
            duration_ms=duration / 1e6,
            **dict(zip(BUCKETS, ms, strict=True)),
            **own,
        )


def _bucket_ms(run: CrossRank, times: RankTimes, bucket: str) -> float | None:
    if bucket in ("comm_wait", "comm_transfer") and not run.split and len(times.summary.comm.start):
        return None  # cannot be told apart, which is not the same as none
    return _round(times.mean_ms(bucket))


def _per_step(ns: int | None, steps: int) -> float | None:
    return None if ns is None else _round(ns / 1e6 / steps)


def _round(value: float | None) -> float | None:
    return None if value is None else stored(value)
