"""TO-B003 claims no more waiting than a step without the profiler has room for."""

from pathlib import Path

import pytest
from changed import replace

from traceops.across.cross_rank import measure_across
from traceops.across.undisturbed import LightRank, Undisturbed
from traceops.measure.summary import summarize
from traceops.rules.pipeline import judge_late, without_recording
from traceops.rules.shared import work_ms
from traceops.traces.discover import discover

DATA = Path(__file__).parents[1] / "data" / "pipeline_uneven2"


@pytest.fixture(scope="module")
def run():
    """A pipeline whose stages wait half of each step for late sends."""
    ranks = [summarize(file) for file in discover(str(DATA)).windows[0].files]
    made = measure_across(ranks, len(ranks), dict.fromkeys(range(len(ranks)), "host"))
    (bubble,) = made.bubbles
    late = tuple(replace(stage, late=stage.step / 2) for stage in bubble.stages)
    return replace(made, bubbles=(replace(bubble, stages=late),))


def test_waiting_that_recording_made_is_not_told_as_the_programs(run):
    """19.7 ms of a step of 75.6 were told, of a program whose step takes 49.9 ms."""
    (bubble,) = run.bubbles
    plain = 0.9 * run.step_ms
    bounded = without_recording(run, bubble, plain, None)
    for stage, own, times in zip(bubble.stages, bounded.stages, run.ranks, strict=True):
        room = 1e6 * (plain - work_ms(times)) - stage.imbalance - stage.fill_drain
        assert own.step == pytest.approx(1e6 * plain)
        assert own.late == pytest.approx(min(stage.late, max(room, 0.0)))
    assert sum(stage.late for stage in bounded.stages) < sum(stage.late for stage in bubble.stages)
    assert not judge_late(run, plain_ms=max(work_ms(times) for times in run.ranks)).findings
    for verdict in (judge_late(run), judge_late(run, plain_ms=2 * run.step_ms)):
        [found] = verdict.findings
        assert "up to" not in found.message and "waits most" in found.message


def test_the_light_window_tells_how_long_the_device_communicates(run):
    (bubble,) = run.bubbles
    plain = 0.9 * run.step_ms
    ranks = tuple(
        LightRank(times.summary.rank, plain, 1.0, 0.0, 0.0, times.mean_ms("comm_transfer"), 0.0, 1.0, 0.0)
        for times in run.ranks
    )
    bounded = without_recording(run, bubble, plain, Undisturbed(plain, plain, "cupti", 4, ranks))
    assert all(stage.late == 0 for stage in bounded.stages)
