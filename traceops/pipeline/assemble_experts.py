"""The experts of a run as rows of its report."""

from __future__ import annotations

from traceops.across.cross_rank import CrossRank
from traceops.across.experts import Experts
from traceops.across.replay.what_if import WORK_SHARED
from traceops.report.cross_rows import ExpertsRow, ExpertTimesRow, StepImbalance


def expert_rows(run: CrossRank) -> tuple[ExpertsRow, ...]:
    """report.json's experts: a row for each group of ranks that shares them."""
    return tuple(_row(run, own) for own in run.experts)


def _row(run: CrossRank, own: Experts) -> ExpertsRow:
    reference = run.reference(own.ranks)
    saved = None if run.what_if is None else run.what_if.saved_ns(WORK_SHARED)
    return ExpertsRow(
        ranks=own.ranks,
        layers=own.layers,
        imbalance=round(own.mean_imbalance, 4),
        imbalance_by_step=tuple(StepImbalance(step=step, share=round(n, 4)) for step, n in own.imbalance),
        dispatch_ms=round(own.dispatch_ns / 1e6, 6),
        combine_ms=round(own.combine_ns / 1e6, 6),
        dispatch_gbs=None if own.dispatch_gbs is None else round(own.dispatch_gbs, 3),
        combine_gbs=None if own.combine_gbs is None else round(own.combine_gbs, 3),
        reference_gbs=None if reference is None else round(reference.busbw_gbs, 3),
        even_saves_ms=None if saved is None else round(max(saved, 0.0) / 1e6, 6),
        times=tuple(
            ExpertTimesRow(
                rank=times.rank,
                layer=times.layer,
                received_bytes=round(times.received),
                compute_ms=round(times.compute / 1e6, 6),
            )
            for times in own.times
        ),
    )
