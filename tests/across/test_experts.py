"""What each rank's experts get and compute, on two H200s with 75 % of the tokens on rank 1."""

from __future__ import annotations

from pathlib import Path

import pytest
from changed import replace

from traceops.across.cross_rank import CrossRank
from traceops.across.experts import find_experts
from traceops.across.measure_across import measure_across
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.render.report.parallel_sections import experts, experts_lines, experts_sentence
from traceops.report.model import Report
from traceops.traces.discover import discover

SKEWED = Path(__file__).parents[1] / "data" / "expert_skew2"


@pytest.fixture(scope="module")
def report() -> Report:
    return analyze(SKEWED)


def measured() -> CrossRank:
    ranks = [summarize(file) for file in discover(str(SKEWED)).windows[0].files]
    return measure_across(ranks, 2, {0: "host", 1: "host"})


def test_a_rank_that_gets_three_quarters_of_the_tokens_gets_one_and_a_half_times_the_mean(report: Report) -> None:
    (row,) = report.experts
    assert (row.ranks, row.layers) == ((0, 1), 6)
    assert row.imbalance == pytest.approx(1.5, abs=1e-3)
    assert all(one.share == pytest.approx(1.5, abs=1e-3) for one in row.imbalance_by_step)
    by_rank = [[t for t in row.times if t.rank == rank] for rank in (0, 1)]
    for light, heavy in zip(*by_rank, strict=True):
        assert light.layer == heavy.layer
        # 16,384 tokens of 2,048 bf16 from each of two ranks, in forward, and their gradients in backward
        assert light.received_bytes + heavy.received_bytes == pytest.approx(2 * 2 * 16384 * 2048 * 2)
        assert heavy.received_bytes == 3 * light.received_bytes
        assert heavy.compute_ms > 2 * light.compute_ms
    assert row.reference_gbs is not None and 0.3 * row.reference_gbs < (row.dispatch_gbs or 0) < row.reference_gbs
    (shared,) = [change for change in report.what_if if change.change == "work shared evenly"]
    assert row.even_saves_ms == pytest.approx(
        (shared.step_time_ms or 0) - (shared.predicted_step_time_ms or 0), abs=1e-3
    )


def test_it_is_said_on_the_page_and_on_the_terminal(report: Report) -> None:
    (row,) = report.experts
    said = experts_sentence(row)
    assert said.startswith("Experts of ranks 0–1, 6 layers: rank 1 gets 1.50 times the mean (1.50 to 1.50")
    assert "Even routing would save" in said
    assert experts_lines(report) and experts(report, (0, 1)) is not None


def test_what_does_not_come_in_pairs_is_no_dispatch_and_combine() -> None:
    run = measured()
    ranks = [times.summary for times in run.ranks]
    (found,) = find_experts(ranks, run.matching, run.roles)
    assert found.mean_imbalance == pytest.approx(1.5, abs=1e-3)
    one = next(i for i, role in enumerate(run.roles.of_collective) if role == "expert")
    cut = [c for i, c in enumerate(run.matching.collectives) if i != one]
    roles = [role for i, role in enumerate(run.roles.of_collective) if i != one]
    assert not find_experts(
        ranks, replace(run.matching, collectives=tuple(cut)), replace(run.roles, of_collective=tuple(roles))
    )
