"""Sends and receives find each other, pipelines are told by them, and so is what their stages wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.across.pipelines import gpipe, one_forward_one_backward, write_pipeline
from tests.drawn import examples
from traceops.across.cross_rank import CrossRank, measure_across
from traceops.across.match import GROUPED_SEND_RECEIVE, NO_METADATA, match_collectives
from traceops.across.pipelines import measure_bubbles
from traceops.across.replay.what_if import INTERLEAVED, STAGES_EVEN
from traceops.across.send_receive import NO_END, NO_TRACE, Half, _named
from traceops.core.claims import claim_of
from traceops.measure.exchanges import FORWARD
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.render.document import TableBlock
from traceops.render.report.card import card_of
from traceops.render.report.cross_sections import stages_table
from traceops.render.report.terminal import describe_summary
from traceops.rules.inputs import Inputs
from traceops.rules.pipeline import (
    LargeBubble,
    SlowStageRank,
    UnevenStage,
    judge,
    judge_bubble,
    judge_late,
    judge_uneven,
)
from traceops.traces.discover import Discovery, discover

DATA = Path(__file__).parents[1] / "data"
SCHEDULES = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def measured(folder: Path) -> CrossRank:
    ranks = [summarize(file) for file in discover(str(folder)).windows[0].files]
    return measure_across(ranks, len(ranks), dict.fromkeys(range(len(ranks)), "host"))


@examples(12)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    stages=st.integers(2, 5),
    micro_batches=st.integers(2, 9),
    own_metadata=st.booleans(),
)
@example(name="1f1b", stages=3, micro_batches=2, own_metadata=False)  # a grouped call waits for two of a rank's
def test_even_stages_have_the_bubble_of_their_schedule(tmp_path_factory, name, stages, micro_batches, own_metadata):
    folder = tmp_path_factory.mktemp("run")
    write_pipeline(folder, [3000.0] * stages, micro_batches, SCHEDULES[name], own_metadata=own_metadata)
    run = measured(folder)
    assert run.matching.matched_pct == 100.0, run.matching.unmatched
    (bubble,) = run.bubbles
    pipeline = bubble.pipeline
    assert (pipeline.ranks, pipeline.chunks, pipeline.micro_batches) == (tuple(range(stages)), 1, micro_batches)
    assert pipeline.schedule == name
    ideal = (stages - 1) / (micro_batches + stages - 1)
    assert bubble.ideal_share == pytest.approx(ideal)
    assert bubble.share == pytest.approx(ideal, abs=0.02)
    for stage in bubble.stages:
        assert stage.imbalance + stage.fill_drain + stage.late == pytest.approx(stage.bubble)
        assert stage.fill + stage.drain == pytest.approx(stage.fill_drain)
        assert stage.imbalance <= 0.001 * stage.step
    first, last = bubble.stages[0], bubble.stages[-1]
    assert first.fill <= 0.1 * first.fill_drain, "nobody hands the first stage anything but gradients"
    assert last.drain <= 0.1 * last.fill_drain, "nor the last one anything but activations"
    assert run.replay is not None and run.replay.what_if.holds
    assert run.replay.what_if.saved_ns(STAGES_EVEN) == pytest.approx(0, abs=0.01 * stage.step)


@examples(8)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    forward=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    micro_batches=st.integers(4, 8),
)
def test_even_stages_are_predicted_as_the_even_run_takes(tmp_path_factory, name, forward, micro_batches):
    uneven, even = tmp_path_factory.mktemp("uneven"), tmp_path_factory.mktemp("even")
    mean = 1000.0 * sum(forward) / len(forward)
    write_pipeline(uneven, [1000.0 * ms for ms in forward], micro_batches, SCHEDULES[name])
    write_pipeline(even, [mean] * len(forward), micro_batches, SCHEDULES[name])
    run, truth = measured(uneven), measured(even)
    assert run.matching.matched_pct == truth.matching.matched_pct == 100.0
    assert run.replay is not None and truth.replay.what_if is not None and run.replay.what_if.holds
    (prediction,) = [made for made in run.replay.what_if.predictions if made.change == STAGES_EVEN]
    assert prediction.step_ns.mean() == pytest.approx(truth.replay.what_if.measured_ns.mean(), rel=0.1)
    (bubble,) = run.bubbles
    assert bubble.slowest.work == pytest.approx(max(stage.work for stage in bubble.stages))
    assert forward[bubble.slowest.stage] == max(forward)


@pytest.mark.parametrize(
    ("name", "schedule", "chunks", "micro_batches"),
    [
        ("pipeline_uneven2", "1f1b", 1, 8),
        ("pipeline_gpipe4", "gpipe", 1, 8),
        ("pipeline_uneven_gloo2", "1f1b", 1, 8),
        ("pipeline_interleaved4", "interleaved", 2, 4),
        ("pipeline_zero_bubble2", "zero_bubble", 2, 4),
        ("pipeline4", "forward_only", 1, 4),
    ],
)
def test_recorded_pipelines_are_matched_and_told_apart(name, schedule, chunks, micro_batches):
    run = measured(DATA / name)
    assert run.matching.matched_pct == 100.0, run.matching.unmatched
    (bubble,) = run.bubbles
    pipeline = bubble.pipeline
    assert pipeline.ranks == tuple(range(len(run.ranks)))
    assert (pipeline.schedule, pipeline.chunks, pipeline.micro_batches) == (schedule, chunks, micro_batches)


def test_the_bubble_is_of_the_typical_steps_as_the_ledger_is():
    run = measured(DATA / "pipeline_gpipe4")
    ranks = [times.summary for times in run.ranks]
    first = {own.rank: np.arange(len(own.step_numbers)) == 0 for own in ranks}
    (bubble,) = measure_bubbles([run.bubbles[0].pipeline], ranks, run.matching, first)
    for stage, own in zip(bubble.stages, ranks, strict=True):
        assert stage.step == own.ledger.duration[0]
        assert stage.bubble == stage.imbalance + stage.fill_drain + stage.late <= own.ledger.buckets["comm"][0]


def test_of_a_schedule_whose_bubble_is_not_known_no_send_is_called_late():
    report = analyze(DATA / "pipeline_zero_bubble2")
    (pipeline,) = report.pipelines
    assert pipeline.schedule_bubble_pct is None and pipeline.stages[0].late_ms > 0
    longer = [one.value for found in report.findings for one in found.evidence if one.unit == "ms" and one.subject]
    assert longer and max(longer) < 1000, "'host longer in gloo:send 2729 ms' of a step of 1059"
    # Of the rank with most of it this was 74 %.
    assert card_of(report).headline == "68 % of the step is compute; how fast it could be is unknown"
    labels = [cell.text for block in describe_summary(report, Path(), verbose=True) if isinstance(block, TableBlock)
              for row in block.table.rows for cell in row[:1]]  # fmt: skip
    assert "… of it the rest" in labels and not [label for label in labels if "late sends" in label]
    titles = [column.label for column in stages_table(pipeline).columns]
    assert "Fill, drain and late sends ms" in titles and "Fill and drain ms" not in titles


def test_uneven_stages_are_told_with_their_cost_and_cure():
    # Two H200s, stages of 8 and 16 blocks; 12 and 12 took 90.7 ms a step.
    report = analyze(DATA / "pipeline_uneven2")
    assert report.summary.matching is not None and report.summary.matching.matched_pct == 100.0
    assert report.summary.replay is not None and (report.summary.replay.error_pct or 0) < 5
    (even,) = [row for row in report.what_if if row.change == STAGES_EVEN]
    assert even.predicted_step_time_ms == pytest.approx(90.7, rel=0.1)
    (found,) = [finding for finding in report.findings if finding.rule == "TO-B001"]
    assert (found.severity, found.ranks, found.cause) == ("warning", (1,), None)
    claim = claim_of(found, UnevenStage)
    assert (round(claim.moved), claim.faster) == (27, (0,))
    assert not [finding for finding in report.findings if finding.rule.startswith("TO-S")]
    card = card_of(report)
    # "Judged 4 % of the step" stood beside what its stages compute.
    assert (card.level, card.rule, card.judged_pct) == ("warning", "TO-B001", pytest.approx(92, abs=1))
    (pipeline,) = report.pipelines
    for stage in pipeline.stages:
        parts = stage.imbalance_ms + stage.fill_drain_ms + stage.late_ms
        assert parts == pytest.approx(stage.bubble_ms, abs=1e-5)
    assert pipeline.stages[0].imbalance_ms > 0.7 * pipeline.stages[0].bubble_ms
    of_run = report.summary.bubble_ms
    assert of_run is not None and of_run.bubble <= (report.summary.ledger_ms.comm_wait or 0) + 1e-6
    assert of_run.imbalance == pytest.approx(sum(s.imbalance_ms for s in pipeline.stages) / 2, abs=1e-5)
    labels = [cell.text for block in describe_summary(report, Path(), verbose=True) if isinstance(block, TableBlock)
              for row in block.table.rows for cell in row[:1]]  # fmt: skip
    assert "… of it imbalance" in labels


def test_a_large_bubble_and_a_slow_gpu_are_not_uneven_blocks(tmp_path):
    runs = ("few", [3000.0] * 2, 4), ("many", [3000.0] * 2, 16), ("slow", [3000.0, 6000.0], 16)
    for name, forward, micro_batches in runs:
        (tmp_path / name).mkdir()
        write_pipeline(tmp_path / name, forward, micro_batches)
    few, many, slow = (measured(tmp_path / name) for name in ("few", "many", "slow"))
    (bubble,) = judge_bubble(few).findings
    assert bubble.severity == "warning" and claim_of(bubble, LargeBubble).ideal == pytest.approx(20, abs=0.5)
    assert judge_uneven(few).clear and judge_uneven(many).clear
    assert judge_bubble(many).clear and judge_late(many).clear
    (found,) = judge_uneven(slow).findings  # as many of the same kernels, which take twice as long
    assert (found.ranks, found.cause) == ((1,), "gpu_compute")
    claim = claim_of(found, UnevenStage)
    assert claim.slower == pytest.approx(2, abs=0.005) and claim.moved is None


def test_a_stage_that_hardly_computes_is_not_said_to_launch_a_hundred_times_as_long(tmp_path):
    """Two stages of which one has a few large products more: 1F1B on two H200s."""
    write_pipeline(tmp_path, [1.0, 50_000.0], 4, SCHEDULES["1f1b"])
    (found,) = judge_uneven(measured(tmp_path)).findings
    assert found.ranks == (1,) and found.severity == "error"
    assert 35 <= next(e.value for e in found.evidence if e.metric == "of the step") <= 40  # true: 37.5


def test_what_goes_around_in_a_ring_is_no_pipeline():
    run = measured(DATA / "pipeline4")
    rings = [c for c in run.matching.collectives if c.op == GROUPED_SEND_RECEIVE]
    assert len(rings) == 3 and all(c.group == (0, 1, 2, 3) for c in rings)
    (bubble,) = run.bubbles
    assert not set(bubble.pipeline.collectives) & {run.matching.collectives.index(c) for c in rings}


def test_the_same_stage_of_two_pipelines_are_peers_and_others_are_not(tmp_path):
    for first in (0, 3):
        write_pipeline(tmp_path, [2000.0, 2000.0, 2000.0], 6, one_forward_one_backward, first=first, world=6)
    run = measured(tmp_path)
    assert run.matching.matched_pct == 100.0, run.matching.unmatched
    assert [bubble.pipeline.ranks for bubble in run.bubbles] == [(0, 1, 2), (3, 4, 5)]
    assert run.replay is not None
    assert run.replay.graph.roles == {rank: (rank % 3, rank % 3 + 3) for rank in range(6)}


def test_a_rank_that_is_slow_at_what_others_do_as_well_has_no_blocks_to_give(tmp_path):
    for first, forward in ((0, [2000.0, 2000.0]), (2, [2000.0, 5000.0])):
        write_pipeline(tmp_path, forward, 8, one_forward_one_backward, first=first, world=4)
    run = measured(tmp_path)
    (found,) = judge_uneven(run).findings
    assert (found.ranks, found.cause) == ((3,), "gpu_compute")
    claim = claim_of(found, SlowStageRank)
    assert (claim.rank, claim.stage, claim.twins) == (3, 1, (1,))
    assert run.replay is not None
    assert run.replay.what_if.saved_ns("rank 3 as its peers", [3]) == pytest.approx(1e6 * found.impact_ms, rel=1e-3)


def test_two_stages_a_rank_are_predicted_where_a_schedule_of_one_can_take_turns(tmp_path):
    for name, micro_batches in (("whole", 4), ("broken", 5)):
        (tmp_path / name).mkdir()
        write_pipeline(tmp_path / name, [3000.0] * 2, micro_batches)
    whole, broken = measured(tmp_path / "whole"), measured(tmp_path / "broken")
    assert whole.replay.what_if is not None and broken.replay.what_if is not None
    # A bubble of 1/5 of the step becomes one of 1/9, less what twice the sends take.
    assert whole.replay.what_if.saved_ns(INTERLEAVED) == pytest.approx(0.1 * 1e6 * whole.step_ms, rel=0.15)
    assert claim_of(judge_bubble(whole).findings[0], LargeBubble).interleaved is not None
    assert broken.replay.what_if.saved_ns(INTERLEAVED) is None


def borders(stage: int, ranks: int, micro_batches: int) -> list[Any]:
    """Neighbours exchange the borders of their parts in one call before each pass, as in spatial parallelism."""
    others = [other for other in (stage - 1, stage + 1) if 0 <= other < ranks]
    program: list[Any] = []
    for way in "FB":
        for i in range(micro_batches):
            program.append([(kind, way, i, other) for kind in ("send", "recv") for other in others])
            program.append((way, i))
    return program


@pytest.mark.parametrize("ranks", [2, 4])
def test_neighbours_that_exchange_borders_are_no_pipeline(ranks, tmp_path):
    write_pipeline(tmp_path, [2000.0] * ranks, 4, borders)
    run = measured(tmp_path)
    assert run.matching.matched_pct == 100.0, run.matching.unmatched
    assert run.bubbles == ()
    assert run.replay is not None and run.replay.what_if.error_pct < 1


def test_sends_of_a_trace_without_the_host_are_unmatched_and_said_so(tmp_path):
    write_pipeline(tmp_path, [2000.0] * 2, 4)
    for file in tmp_path.iterdir():
        trace = json.loads(file.read_text())
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event["cat"] == "kernel"]
        file.write_text(json.dumps(trace))
    run = measured(tmp_path)
    assert run.matching.matched_pct == 0.0 and list(run.matching.unmatched) == [NO_END]
    assert run.bubbles == () and judge_no_pipeline(run)


def judge_no_pipeline(run: CrossRank) -> bool:
    found = Discovery(root=".", name="run", windows=())
    return all(said.not_evaluated for said in judge(Inputs(found, run)))


def test_a_half_whose_group_does_not_hold_its_rank_has_no_other_end():
    """A damaged trace named a group without the rank itself: "this is a mistake in traceops", and no report."""
    half = Half(
        rank=1, position=0, sends=True, other=None, group=(0, 2), description="", elements=1, dtype="Float", step=3,
        way=FORWARD, to_stage=-1, micro_batch=-1,
    )  # fmt: skip
    assert _named([half], {}) == [half]


def test_what_says_nothing_of_itself_is_unmatched_for_want_of_a_trace_where_one_is_missing(tmp_path):
    """To record more would not help where the other end has no trace."""
    write_pipeline(tmp_path, [3000.0] * 3, 4, gpipe)
    for path in tmp_path.glob("*.json"):
        trace = json.loads(path.read_text())
        notes = ("record_param_comms", "nccl:coalesced")
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event["name"] not in notes]
        path.write_text(json.dumps(trace))
    ranks = [summarize(file) for file in discover(str(tmp_path)).windows[0].files]
    assert set(match_collectives(ranks, (0, 1, 2)).unmatched) == {NO_METADATA}
    assert set(match_collectives(ranks[:2], (0, 1, 2)).unmatched) == {NO_TRACE}
