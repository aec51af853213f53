"""The pipelines of a run as rows of its report."""

from __future__ import annotations

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.core.units import stored
from traceops.report.cross_rows import PipelineRow, StageRow
from traceops.report.step_times import BubbleTimes


def pipeline_rows(run: CrossRank) -> tuple[PipelineRow, ...]:
    """report.json's pipelines: a row each, with one for each of its stages."""
    return tuple(
        PipelineRow(
            ranks=bubble.pipeline.ranks,
            schedule=bubble.pipeline.schedule,
            stages_per_rank=bubble.pipeline.chunks,
            micro_batches=bubble.pipeline.micro_batches,
            bubble_pct=stored(100.0 * bubble.share),
            schedule_bubble_pct=None if bubble.ideal_share is None else stored(100.0 * bubble.ideal_share),
            stages=tuple(
                StageRow(
                    rank=stage.rank,
                    stage=stage.stage,
                    step_time_ms=_ms(stage.step),
                    work_ms=_ms(stage.work),
                    bubble_ms=_ms(stage.bubble),
                    imbalance_ms=_ms(stage.imbalance),
                    fill_drain_ms=_ms(stage.fill_drain),
                    late_ms=_ms(stage.late),
                    fill_ms=_ms(stage.fill),
                    drain_ms=_ms(stage.drain),
                )
                for stage in bubble.stages
            ),
        )
        for bubble in run.bubbles
    )


def bubble_of(run: CrossRank) -> BubbleTimes | None:
    """The parts of the pipelines' bubble, medians over all ranks, as the ledger's; None where there is no pipeline."""
    if not run.bubbles:
        return None
    stages = [stage for bubble in run.bubbles for stage in bubble.stages]
    others = [0.0] * (len(run.ranks) - len({stage.rank for stage in stages}))
    parts = {
        "bubble": [stage.bubble for stage in stages],
        "fill": [stage.fill for stage in stages],
        "drain": [stage.drain for stage in stages],
        "imbalance": [stage.imbalance for stage in stages],
        "late": [stage.late for stage in stages],
    }
    return BubbleTimes(**{name: _ms(float(np.median([*ns, *others]))) for name, ns in parts.items()})


def _ms(ns: float) -> float:
    return stored(max(ns, 0.0) / 1e6)
