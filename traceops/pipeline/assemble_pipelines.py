"""The pipelines of a run as rows of its report."""

from __future__ import annotations

from traceops.across.cross_rank import CrossRank
from traceops.report.rows import PipelineRow, StageRow


def pipeline_rows(run: CrossRank) -> tuple[PipelineRow, ...]:
    """report.json's pipelines: a row each, with one for each of its stages."""
    return tuple(
        PipelineRow(
            ranks=bubble.pipeline.ranks,
            schedule=bubble.pipeline.schedule,
            stages_per_rank=bubble.pipeline.chunks,
            micro_batches=bubble.pipeline.micro_batches,
            bubble_pct=round(100.0 * bubble.share, 3),
            schedule_bubble_pct=None if bubble.ideal_share is None else round(100.0 * bubble.ideal_share, 3),
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
                )
                for stage in bubble.stages
            ),
        )
        for bubble in run.bubbles
    )


def _ms(ns: float) -> float:
    return round(max(ns, 0.0) / 1e6, 6)
