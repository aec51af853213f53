"""The experts of a run as rows of its report."""

from __future__ import annotations

from traceops.across.cross_rank import CrossRank
from traceops.across.experts import Experts
from traceops.across.replay.what_if import WORK_SHARED
from traceops.core.units import stored
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
        imbalance=stored(own.mean_imbalance),
        imbalance_by_step=tuple(StepImbalance(step=step, share=stored(n)) for step, n in own.imbalance),
        dispatch_ms=stored(own.dispatch_ns / 1e6),
        combine_ms=stored(own.combine_ns / 1e6),
        dispatch_gbs=None if own.dispatch_gbs is None else stored(own.dispatch_gbs),
        combine_gbs=None if own.combine_gbs is None else stored(own.combine_gbs),
        reference_gbs=None if reference is None else stored(reference.busbw_gbs),
        even_saves_ms=None if saved is None else stored(max(saved, 0.0) / 1e6),
        times=tuple(
            ExpertTimesRow(
                rank=times.rank,
                layer=times.layer,
                received_bytes=round(times.received),
                compute_ms=stored(times.compute / 1e6),
            )
            for times in own.times
        ),
    )
