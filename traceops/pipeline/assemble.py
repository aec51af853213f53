"""Puts measurements and verdicts together into a Report, rounded for people and programs to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from traceops.across.cross_rank import CrossRank, no_replay
from traceops.across.rank_times import RankTimes
from traceops.core.arrays import mean_ms, median, percentiles
from traceops.core.documents import copied, redact_fields
from traceops.core.findings import Check
from traceops.core.rule import Verdict
from traceops.core.units import stored
from traceops.measure.hta_tables import agreement_of_ranks
from traceops.measure.ledger import BUCKETS
from traceops.measure.steps import NO_STEP
from traceops.pipeline import assemble_cross, assemble_tables, assemble_whole
from traceops.pipeline.assemble_detail import step_details
from traceops.pipeline.observed_run import ObservedRun, of_first_steps
from traceops.pipeline.run_info import rank_hosts
from traceops.report.model import Report
from traceops.report.rows import RankRow, Run, StepRow
from traceops.report.step_times import Ledger, StepKindsRow, StepTime, UnjudgedTime, WorstRank
from traceops.report.summary import Matching, Summary
from traceops.rules import failures
from traceops.rules.coverage import unjudged_time
from traceops.rules.explained import checks, merge_overlapping, most_important_first
from traceops.rules.idle_time import recording_ms
from traceops.rules.inputs import Inputs
from traceops.rules.validity import KERNELS_MISSING
from traceops.traces.discover import Discovery
from traceops.traces.run_manifest import step_kinds

# Reports of captures that recorded no step whole: they are of no time.

_OF_STEPS = (
    "step_time_ms", "exposed_comm_ms", "wait_ms", "transfer_ms", "caused_wait_ms", "late_share", "input_ms",
    *(f"{bucket}_ms" for bucket in BUCKETS),
)  # fmt: skip


def without_time(report: Report) -> Report:
    """The same without times of a step: what was recorded is of none."""
    return msgspec.structs.replace(
        report,
        summary=msgspec.structs.replace(
            report.summary,
            step_time_ms=StepTime(),
            ledger_ms=Ledger(),
            ledger_pct=Ledger(),
            ledger_worst_rank={},
            exposed_comm_ms=None,
            unjudged=(),
            replay=None,
            no_replay=None,
        ),
        ranks=tuple(msgspec.structs.replace(row, steps=0, **dict.fromkeys(_OF_STEPS, None)) for row in report.ranks),
        hosts=UNSET,
        steps=(),
        what_if=(),
        inventory=None,
    )


_OF_DEVICE = ("idle_pct", "compute_pct", "non_compute_pct", "overlap_pct")


# The summary of a run: medians over its ranks, and what is known of how it was captured.


def summary_of(known: Inputs, rank_rows: Sequence[RankRow], judged: Sequence[Check]) -> Summary:
    found, run = known.found, known.run
    rank_rows = [row for row in rank_rows if any(row.rank == one.summary.rank for one in run.typical_ranks)]
    took = run.durations_ms if run.ranks else {}  # of which the whole window of a rank without marks is no step
    durations = [ms for number, ms in took.items() if number != NO_STEP or len(took) == 1]
    low, high = map(_round, percentiles(np.array(durations), (5, 95))) if durations else (None, None)
    ledger = {bucket: assemble_tables.known_median([row.bucket_ms(bucket) for row in rank_rows]) for bucket in BUCKETS}
    step = run.step_ms
    most = {
        name: max(((row.bucket_ms(name) or 0.0, row.rank) for row in rank_rows), default=(0.0, 0)) for name in BUCKETS
    }
    worst = {bucket: WorstRank(rank=rank, ms=ms) for bucket, (ms, rank) in most.items() if ms > 0}
    timed = known.own_ms is not None or found.manifest.get("unprofiled_step_ms") is not None
    kinds = step_kinds(found.manifest)
    recorded_ms = 0.0 if timed else max(map(recording_ms, run.ranks), default=0.0)  # an estimate
    return Summary(
        step_time_ms=StepTime(
            median=assemble_tables.known_median(durations),
            p5=low,
            p95=high,
            n=len(durations),
            typical=_round(run.step_ms) if durations else None,
            unlike=tuple(number for number in run.unlike if number >= 0),
            unshared=tuple(number for number in run.unshared if number >= 0),
        ),
        steps_found_by=run.steps_by[0],
        step_mark=run.steps_by[1] or None,
        ledger_ms=Ledger(**ledger),
        ledger_pct=Ledger(
            **{bucket: None if ms is None or not step else _round(100.0 * ms / step) for bucket, ms in ledger.items()}
        ),
        ledger_worst_rank=worst,
        bubble_ms=assemble_cross.bubble_of(run),
        overlap_pct=assemble_tables.known_median([row.overlap_pct for row in rank_rows]),
        exposed_comm_ms=assemble_tables.known_median([row.exposed_comm_ms for row in rank_rows]),
        idle_pct=assemble_tables.known_median([row.idle_pct for row in rank_rows]),
        compute_pct=assemble_tables.known_median([row.compute_pct for row in rank_rows]),
        non_compute_pct=assemble_tables.known_median([row.non_compute_pct for row in rank_rows]),
        unprofiled_step_time_ms=found.manifest.get("unprofiled_step_ms"),
        step_without_profiler_ms=_round(known.own_ms),
        first_steps=of_first_steps(found, [times.summary for times in run.ranks]),
        step_kinds=None
        if kinds is None
        else copied(
            StepKindsRow, kinds, round_ms=None if known.whole is None else _round(kinds.every * known.whole.mean_ms)
        ),
        profiler_slowdown=_round(known.slowdown),
        recording_ms=_round(recorded_ms or None),
        uncharged_wait_pct=None if run.replay is None else _round(run.replay.charged.uncharged_pct),
        unjudged=tuple(
            UnjudgedTime(**msgspec.structs.asdict(one))
            for one in unjudged_time(run, judged, on_cpu=found.manifest.get("device") == "cpu")
        ),
        matching=copied(Matching, run.matching),
        clocks=assemble_cross.clocks_of(run),
        replay=assemble_cross.replay_of(run),
        no_replay=no_replay(run),
        hta_failed=_hta_failures(run),
        hta_agreement=agreement_of_ranks(times.summary.hta_agreement for times in run.ranks) or UNSET,
        notes=(*found.notes, *_empty_steps(run)),
    )


def _hta_failures(run: CrossRank) -> dict[str, str]:
    """HTA analysis -> its error and the ranks it failed on."""
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for times in run.ranks:
        for name, error in times.summary.hta.failed:
            ranks[name, error].append(times.summary.rank)
    return {name: f"{error} (ranks {', '.join(map(str, own[:8]))})" for (name, error), own in ranks.items()}


def _empty_steps(run: CrossRank) -> list[str]:
    return [
        f"step {number} of rank {times.summary.rank} ran nothing on the device; it is not counted"
        for times in run.ranks
        for number in times.summary.empty_steps
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else stored(value)


_MOST_FLAMES = 64


def assemble(known: Inputs, run_info: Run, verdicts: Sequence[Verdict], seen: ObservedRun) -> Report:
    """Everything the renderers need, in the units and keys of report.json."""
    found, run, hang = known.found, known.run, known.hang
    of_hang = failures.in_order_of_roots(hang, verdicts)
    others = [f for verdict in verdicts if verdict.rule not in failures.BY_ID for f in verdict.findings]
    rank_rows, judged = _rank_rows(found, run), checks(verdicts)
    report = Report(
        run=run_info,
        summary=assemble_tables.with_speed(summary_of(known, rank_rows, judged), run_info, run),
        ranks=rank_rows,
        hosts=assemble_whole.host_rows(run, rank_rows) or UNSET,
        steps=tuple(row for times in run.ranks for row in _step_rows(times)),
        compute=assemble_tables.compute_rows(run) or UNSET,
        collectives=assemble_cross.collective_rows(run),
        findings=(*of_hang, *most_important_first(merge_overlapping(others))),
        checks=tuple(judged),
        what_if=assemble_cross.what_if_rows(run),
        pipelines=assemble_cross.pipeline_rows(run),
        roles=assemble_cross.role_rows(run),
        experts=assemble_tables.expert_rows(run),
        passes=assemble_tables.pass_rows(run),
        tables=msgspec.structs.replace(
            assemble_cross.cross_rank_tables(run),
            kernels=assemble_tables.kernel_rows(run),
            blocking_calls=assemble_tables.blocking_rows(run),
            copies=assemble_tables.copy_rows(run),
            hta=assemble_tables.hta_rows([times.summary for times in run.ranks]),
        ),
        inventory=assemble_tables.inventory(run),
        unprofiled_steps=assemble_tables.unprofiled_steps(found, [times.summary for times in run.ranks]),
        whole_run=assemble_whole.whole_run_rows(seen, known.plain, found.manifest) or UNSET,
        memory=assemble_whole.memory_rows(seen.memory, seen.snapshots, seen.recorded) or UNSET,
        undisturbed=UNSET
        if known.undisturbed is None
        else assemble_whole.undisturbed_rows(known.undisturbed, run.step_ms, found.manifest),
        flames=_flames(seen),
        hang=hang,
        fabric=run.fabric,
        detail=step_details(run, [finding for verdict in verdicts for finding in verdict.findings], rank_rows),
    )
    if run.unit == "none":
        report = without_time(report)
    if all(times.summary.kernels_lost for times in run.ranks):
        # The same of ranks that ran on GPUs of which nothing was recorded (TO-V008): no shares of a step, and that
        # first. The host's operators are no compute of a GPU, nor the time between them its idle time.
        unknown = dict.fromkeys(_OF_DEVICE, None)
        of_steps = dict.fromkeys((f"{bucket}_ms" for bucket in BUCKETS), None)
        report = msgspec.structs.replace(
            report,
            summary=msgspec.structs.replace(
                report.summary, ledger_ms=Ledger(), ledger_pct=Ledger(), ledger_worst_rank={}, **unknown
            ),
            ranks=tuple(msgspec.structs.replace(row, **unknown, **of_steps) for row in report.ranks),
            findings=tuple(
                sorted(report.findings, key=lambda found: found.rule not in (*failures.BY_ID, KERNELS_MISSING.id))
            ),
        )
    return redact_fields(report, "summary", "findings", "checks")  # run and hang are already


def _flames(seen: ObservedRun) -> tuple[tuple[str, str], ...]:
    made = (
        (assemble_whole.flame_file(one.rank), assemble_whole.flame_graph(one)) for one in seen.observed[:_MOST_FLAMES]
    )
    return tuple((name, text) for name, text in made if text is not None)


def _rank_rows(found: Discovery, run: CrossRank) -> tuple[RankRow, ...]:
    hosts = rank_hosts(found, [times.summary for times in run.ranks])
    peaks, caused = assemble_tables.peak_memory(found), sum(times.caused_wait_ns or 0 for times in run.ranks)
    rows = []
    for times in run.ranks:
        summary, breakdown = times.summary, times.summary.breakdown
        steps = max(len(times.duration), 1)
        peak = peaks.get(summary.rank, (None, None))
        rows.append(
            RankRow(
                rank=summary.rank,
                host=hosts[summary.rank],
                steps=len(times.duration),
                step_time_ms=_round(median(times.duration) / 1e6) if len(times.duration) else None,
                typical_step_ms=_round(times.step_ms) if len(times.duration) else None,
                idle_pct=breakdown.idle_pct,
                compute_pct=breakdown.compute_pct,
                non_compute_pct=breakdown.non_compute_pct,
                overlap_pct=breakdown.overlap_pct,
                breakdown_source="hta"
                if summary.hta_agreement is not None and breakdown.source == "hta"
                else "traceops",
                breakdown_note=breakdown.why_not_hta,
                exposed_comm_ms=_round(mean_ms(summary.ledger.buckets["comm"][times.typical])),
                wait_ms=_per_step(times.wait_ns, steps),
                transfer_ms=_per_step(times.transfer_ns, steps),
                caused_wait_ms=_per_step(times.caused_wait_ns, steps),
                late_share=None
                if times.caused_wait_ns is None or not caused
                else _round(times.caused_wait_ns / caused),
                **{f"{bucket}_ms": _bucket_ms(run, times, bucket) for bucket in BUCKETS},
                input_ms=_round(times.loading_ms),
                peak_memory_bytes=peak[0],
                peak_reserved_bytes=peak[1],
                events=summary.event_count,
                trace=summary.path,
                damage="; ".join(summary.damage),
            )
        )
    return tuple(rows)


def _step_rows(times: RankTimes) -> Iterator[StepRow]:
    names, numbers = (*BUCKETS, "duration_ms"), times.summary.step_numbers.tolist()
    columns = [(ns / 1e6).tolist() for ns in (*(times.buckets[bucket] for bucket in BUCKETS), times.duration)]
    for number, ms, counts in zip(numbers, zip(*columns, strict=True), assemble_tables.step_counts(times), strict=True):
        step = None if number < 0 else number
        yield StepRow(rank=times.summary.rank, step=step, **dict(zip(names, ms, strict=True)), **counts)


def _bucket_ms(run: CrossRank, times: RankTimes, bucket: str) -> float | None:
    if bucket in ("comm_wait", "comm_transfer") and not run.split and len(times.summary.comm.start):
        return None  # cannot be told apart, which is not the same as none
    return _round(times.mean_ms(bucket))


def _per_step(ns: int | None, steps: int) -> float | None:
    return None if ns is None else _round(ns / 1e6 / steps)
