"""Which step a report is about: what it takes without the profiler, and the path of one like the others."""

import json
import shutil
from pathlib import Path

import pytest
from observed_run import usual, write_rank

from traceops.pipeline.analyze import analyze
from traceops.pipeline.run_info import without_profiler_ms
from traceops.render.document import Facts
from traceops.render.report.html import describe
from traceops.render.report.terminal import describe_summary
from traceops.runs.row import row_of

DATA = Path(__file__).parents[1] / "data"


def run_of(tmp_path, early_ms):
    """ddp4, of which run.json tells the median of the few steps before its window."""
    run = tmp_path / "run"
    shutil.copytree(DATA / "ddp4", run)
    manifest = {
        "world_size": 4,
        "unprofiled_step_ms": early_ms,
        "ranks": [{"rank": rank, "pid": 100 + rank} for rank in range(4)],
    }
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def facts(report):
    [strip] = [block for block in describe(report).intro if isinstance(block, Facts)]
    return {label: cell.text for label, cell in strip.facts}


def test_early_steps_are_not_the_run(tmp_path):
    """The page said 30 ms, of five steps before the window; the line on the whole run 51.0."""
    run = run_of(tmp_path, 30.0)
    for rank in range(4):
        steps = [usual(30.0) for _ in range(5)] + [usual(50.0 + n % 3) for n in range(200)]
        write_rank(run, rank, steps)
    report = analyze(run)
    typical = report.whole_run.typical_ms
    assert typical == pytest.approx(50.5, abs=0.6) and report.summary.unprofiled_step_time_ms == 30.0
    assert report.summary.step_without_profiler_ms == pytest.approx(typical, abs=0.001)
    assert row_of(report, "run", "run").step_ms == pytest.approx(typical, abs=0.001)
    shown = f"{typical:.1f}"
    assert facts(report)["Without profiler"] == f"{typical:.2f} ms"
    said = " ".join(getattr(block, "plain", "") for block in describe_summary(report, tmp_path, verbose=True))
    assert f"the typical one takes {shown} ms" in said


def test_a_run_that_was_not_observed_has_what_its_capture_timed(tmp_path):
    report = analyze(run_of(tmp_path, 30.0))
    assert report.summary.step_without_profiler_ms == report.summary.plain_ms == 30.0
    assert facts(report)["Without profiler"].startswith("30.0")


def test_where_none_was_timed_there_is_no_number():
    report = analyze(DATA / "slow_loader4")
    assert report.summary.step_without_profiler_ms is None and "Without profiler" not in facts(report)


def test_a_window_that_was_asked_for_later_has_the_steps_before_it():
    schedule = {"skip_first": 5, "wait": 0, "warmup": 1, "active": 4, "repeat": 1, "unprofiled": 3}
    manifest = {"unprofiled_step_ms": 42.0, "schedule": schedule}
    assert without_profiler_ms(manifest, [500, 501], None, None) == 42.0
    assert without_profiler_ms({}, [5, 6], None, None) is None


# The critical path that is shown is that of a step like the others.


def test_of_four_steps_with_a_recompilation_the_path_is_of_a_typical_one():
    report = analyze(DATA / "recompile2")
    shown = {piece.step for piece in report.tables.critical_path}
    assert shown and shown.isdisjoint(report.summary.step_time_ms.unlike)
