"""The summary of a run: medians over its ranks, and what is known of how it was captured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.across.no_replay import no_replay
from traceops.across.profiler_cost import profiler_cost
from traceops.across.run_steps import WholeRun
from traceops.core.findings import Check
from traceops.core.units import stored
from traceops.measure.ledger import BUCKETS
from traceops.measure.steps import NO_STEP
from traceops.pipeline.assemble_cross import clocks_of, replay_of
from traceops.pipeline.assemble_pipelines import bubble_of
from traceops.pipeline.observed_run import ObservedRun, of_first_steps
from traceops.report.rows import RankRow
from traceops.report.step_times import Ledger, StepKindsRow, StepTime, UnjudgedTime, WorstRank
from traceops.report.summary import Matching, Summary
from traceops.rules.coverage import unjudged_time
from traceops.rules.idle_recording import within_lateness_ms
from traceops.traces.discover import Discovery
from traceops.traces.step_kinds import step_kinds


def summary_of(
    found: Discovery,
    run: CrossRank,
    rank_rows: Sequence[RankRow],
    judged: Sequence[Check],
    seen: ObservedRun | None,
    own_ms: float | None,
) -> Summary:
    by_step: dict[int, list[int]] = defaultdict(list)
    for times in run.ranks:
        for number, duration in zip(times.summary.step_numbers, times.duration, strict=True):
            by_step[int(number)].append(int(duration))
    if len(by_step) > 1:
        by_step.pop(NO_STEP, None)  # the whole window of a rank that marks no steps is no step
    durations = [float(np.median(own)) / 1e6 for own in by_step.values()]
    ledger = {bucket: _median([row.bucket_ms(bucket) for row in rank_rows]) for bucket in BUCKETS}
    step = run.step_ms
    worst = {}
    for bucket in BUCKETS:
        known = [(ms, row.rank) for row in rank_rows if (ms := row.bucket_ms(bucket)) is not None]
        if known and max(known)[0] > 0:
            worst[bucket] = WorstRank(rank=max(known)[1], ms=max(known)[0])
    return Summary(
        step_time_ms=StepTime(
            median=_median(durations),
            p5=_round(float(np.percentile(durations, 5))) if durations else None,
            p95=_round(float(np.percentile(durations, 95))) if durations else None,
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
        bubble_ms=bubble_of(run),
        overlap_pct=_median([row.overlap_pct for row in rank_rows]),
        exposed_comm_ms=_median([row.exposed_comm_ms for row in rank_rows]),
        idle_pct=_median([row.idle_pct for row in rank_rows]),
        compute_pct=_median([row.compute_pct for row in rank_rows]),
        non_compute_pct=_median([row.non_compute_pct for row in rank_rows]),
        unprofiled_step_time_ms=found.manifest.get("unprofiled_step_ms"),
        step_without_profiler_ms=_round(own_ms),
        first_steps=of_first_steps(found, [times.summary for times in run.ranks]),
        step_kinds=_step_kinds(found, None if seen is None else seen.whole),
        profiler_slowdown=_round(_slowdown(found, run, seen)),
        recording_ms=None if own_ms is not None else _recording_ms(found, run),
        uncharged_wait_pct=None if run.charged is None else _round(run.charged.uncharged_pct),
        unjudged=tuple(
            UnjudgedTime(**vars(one))
            for one in unjudged_time(run, judged, on_cpu=found.manifest.get("device") == "cpu")
        ),
        matching=Matching(
            events=run.matching.events, matched_pct=run.matching.matched_pct, unmatched=run.matching.unmatched
        ),
        clocks=clocks_of(run),
        replay=replay_of(run),
        no_replay=no_replay(run),
        hta_failed=_hta_failures(run),
        notes=(*found.notes, *_empty_steps(run)),
    )


def _recording_ms(found: Discovery, run: CrossRank) -> float | None:
    """An estimate, where no step was timed without the profiler."""
    if found.manifest.get("unprofiled_step_ms") is not None:
        return None
    most = max((within_lateness_ms(times) for times in run.ranks), default=0.0)
    return _round(most) if most else None


def _slowdown(found: Discovery, run: CrossRank, seen: ObservedRun | None) -> float | None:
    on_gpu = any(times.summary.on_gpu for times in run.ranks)
    observed, whole = ((), None) if seen is None else (seen.observed, seen.whole)
    return profiler_cost(found.manifest, observed, whole, on_gpu=on_gpu).slowdown


def _step_kinds(found: Discovery, whole: WholeRun | None) -> StepKindsRow | None:
    kinds = step_kinds(found.manifest)
    if kinds is None:
        return None
    return StepKindsRow(
        ends=kinds.ends,
        another=kinds.another,
        count=kinds.count,
        steps=kinds.steps,
        round_ms=None if whole is None else _round(kinds.every * whole.mean_ms),
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


def _median(values: list[float | None] | list[float]) -> float | None:
    known = [value for value in values if value is not None]
    return _round(float(np.median(known))) if known else None


def _round(value: float | None) -> float | None:
    return None if value is None else stored(value)
