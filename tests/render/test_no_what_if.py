"""Where nothing says what a change would save, the terminal says why, and what would tell."""

import json
import shutil
from pathlib import Path

import pytest
from changed import replace

from traceops.across.send_receive import NO_END
from traceops.answers.answering import answer
from traceops.answers.asked import Asked
from traceops.answers.opening import open_run
from traceops.pipeline.analyze import analyze
from traceops.render.report.coverage import NO_REPLAY, to_match
from traceops.render.report.html import describe
from traceops.render.report.terminal import describe_summary
from traceops.render.report.whole_run import whole_run_sentence
from traceops.report.step_times import EndedRow, WholeRunRows

DATA = Path(__file__).parents[1] / "data"


def told(report, tmp_path):
    return [
        plain
        for block in describe_summary(report, tmp_path, verbose=True)
        if (plain := getattr(block, "plain", "")).lower().startswith(("no what-if", "what if"))
    ]


def one_rank(tmp_path, world):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(DATA / "ddp4" / "rank_0.pt.trace.json.gz", run)
    (run / "run.json").write_text(json.dumps({"world_size": world, "ranks": [{"rank": 0}]}))
    return run


def test_one_trace_of_many(tmp_path):
    """The table was missing without a word."""
    run = one_rank(tmp_path, 4)
    report = analyze(run)
    assert report.summary.no_replay == "other_ranks_missing" and not report.what_if
    assert told(report, tmp_path) == [f"No what-if: {NO_REPLAY['other_ranks_missing']}."]
    assert answer(open_run(run), Asked("what-if")).no_replay == "other_ranks_missing"


def test_a_run_whose_steps_are_replayed_says_what_they_show(tmp_path):
    report = analyze(DATA / "ddp4")
    assert report.summary.no_replay is None and report.what_if and not told(report, tmp_path)
    small = tuple(replace(row, saved_pct=0.2) for row in report.what_if)
    assert told(replace(report, what_if=small), tmp_path) == [
        "What if: no change that was replayed saves 1 % of the step."
    ]


@pytest.mark.parametrize("why", [*NO_REPLAY])
def test_each_reason_has_one_line_in_terminal_and_page(why, tmp_path):
    report = analyze(DATA / "ddp4")
    report = replace(report, what_if=(), summary=replace(report.summary, replay=None, no_replay=why))
    [line] = told(report, tmp_path)
    assert NO_REPLAY[why] in line and len(line) < 120
    page = describe(report)
    [section] = [one for one in page.sections if one.id == "what-if"]
    assert NO_REPLAY[why] in section.blocks[0].plain


def test_a_replay_that_misses_the_recorded_steps_is_no_change_that_saves_nothing(tmp_path):
    """It was said that no change saves 1 %, of steps that nobody could replay."""
    report = analyze(DATA / "pipeline_middle_gloo3")
    assert report.summary.replay is not None and not report.what_if
    [line] = told(report, tmp_path)
    assert line.startswith("No what-if: the replay of the measured steps is off by up to ")


@pytest.mark.parametrize("reason", [NO_END, "its process group is not known"])
def test_of_gloo_nothing_is_advised_that_was_done(reason, tmp_path):
    """It was advised to record CPU activity too, of a trace that holds nothing else, and to run what had run."""
    report = analyze(DATA / "pipeline_middle_gloo3")
    matching = replace(report.summary.matching, unmatched={reason: 4})
    summary = replace(report.summary, replay=None, no_replay="nothing_matched", matching=matching)
    [line] = told(replace(report, summary=summary), tmp_path)
    assert line == f"No what-if: no communication is matched across ranks ({reason}). {to_match(report, reason)}."
    assert "gloo's events" in line


def test_that_ranks_made_different_numbers_of_steps_is_said_of_the_whole_run():
    report = analyze(DATA / "ddp4")
    rows = WholeRunRows(
        steps=29, typical_steps=29, typical_ms=127.0, ended_after=EndedRow(least=30, most=40, first=(2,))
    )
    assert whole_run_sentence(rows, report).endswith(
        " Ranks made different numbers of steps: rank 2 30, others up to 40."
    )
