"""Traces without a complete step: what is said of a window, and of a capture that was over too early."""

import json
import re
from pathlib import Path

import pytest
from generated_run import Size, SlowInput, ddp, simulate
from shown_texts import texts
from unmarked import as_is, write_unmarked

from traceops.cli import main
from traceops.core.capture_failure import shorter_schedule
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.html import describe
from traceops.render.report.terminal import describe_summary

SIZE = Size(kernel_us=30.0)
SCHEDULE = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 1}


def one(report, rule):
    return next((f for f in report.findings if f.rule == rule), None)


def slow_input(steps):
    """All ranks wait half of each step for input."""
    return simulate(ddp(steps=steps, size=SIZE), 2, [SlowInput(rank, 5_000.0) for rank in (0, 1)], seed=1)


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    """Two iterations: too few to be found."""
    return write_unmarked(slow_input(2), tmp_path_factory.mktemp("window") / "run", as_is)


def captured(run, folder, steps, *, complete, ran, **more):
    """A run folder as `traceops run` leaves it; `steps` are those that were recorded whole."""
    write_unmarked(run, folder, as_is, drop_marks=False)
    manifest = {
        "name": "run",
        "world_size": run.world,
        "schedule": SCHEDULE,
        "steps": ran,
        "ranks": [
            {
                "rank": rank.rank,
                "steps": ran,
                "status": "finished",
                "windows": [
                    {"index": 0, "trace": f"rank_{rank.rank}.pt.trace.json", "steps": list(steps), "complete": complete}
                ],
                **more,
            }
            for rank in run.ranks
        ],
    }
    (folder / "run.json").write_text(json.dumps(manifest))
    return folder


def test_of_a_window_no_error_is_made(window, tmp_path):
    marked = analyze(write_unmarked(slow_input(2), tmp_path / "marked", as_is, drop_marks=False))
    assert one(marked, "TO-I002").severity == "error"
    report = analyze(window)
    assert (report.summary.steps_found_by, report.summary.step_mark) == ("window", None)
    assert one(report, "TO-I002").severity == "warning"
    assert one(report, "TO-V010").severity == "info"


def test_exit_codes_match_that(window, tmp_path):
    options = [str(window), "-o", str(tmp_path / "report"), "-q", "--no-cache", "--format", "json"]
    assert main(["analyze", *options, "--fail-on", "error"]) == 0
    assert main(["analyze", *options, "--fail-on", "warning"]) == 1


def test_a_window_is_called_one_everywhere(window, tmp_path):
    report = analyze(window)
    card = card_of(report)
    assert card.window and not re.search(r"\bstep\b", card.headline)
    shown = [
        *texts(describe_summary(report, Path("x"), verbose=True)[:-1]),
        *texts(describe(report).verdict),
        *(found.message for found in report.findings if found.rule != "TO-V010"),
    ]
    of_a_step = re.compile(r"\b(a|each|the|per|typical) step\b(?! ledger)|ms/step")
    assert not [text for text in shown if of_a_step.search(text)]


def test_found_steps_are_told_in_a_few_words(tmp_path):
    report = analyze(write_unmarked(slow_input(6), tmp_path / "run", as_is))
    assert any(
        said.endswith(" · 5 steps found by Optimizer.step")
        for said in texts(describe_summary(report, Path("x"), verbose=True))
    )
    assert one(report, "TO-I002").severity == "error"
    assert one(report, "TO-V010") is None


def test_a_program_that_ended_before_the_schedule_is_told_so_and_what_would_record_it(tmp_path):
    folder = captured(slow_input(1), tmp_path / "run", [], complete=False, ran=10)
    report = analyze(folder)
    [found] = [f for f in report.findings if f.severity != "info"]
    assert (found.rule, found.severity, found.cause) == ("TO-V010", "warning", "too_short")
    assert "ended after 10 steps, and the schedule needs 14" in found.message
    assert found.message.endswith("traceops run --skip-first 2 --unprofiled 2 --warmup 2 --active 4")
    assert report.summary.steps_found_by == "cut_off"
    assert (report.steps, report.summary.step_time_ms.typical) == ((), None)
    assert all(row.compute_ms is None and row.late_share is None for row in report.ranks)
    card = card_of(report)
    assert (card.rule, card.now_ms) == ("TO-V010", None) and "10 steps" in card.headline
    by_rule = {check.rule: check for check in report.checks}
    for rule in ("TO-S001", "TO-I001", "TO-I002", "TO-O001", "TO-V004"):
        assert by_rule[rule].status == "not_evaluated"
    describe(report)


def test_a_program_with_a_profiler_of_its_own_is_told_so(tmp_path):
    folder = captured(slow_input(1), tmp_path / "run", [], complete=False, ran=40)
    manifest = json.loads((folder / "run.json").read_text())
    for rank in manifest["ranks"]:
        rank["status"] = "given_way"
    (folder / "run.json").write_text(json.dumps(manifest))
    found = one(analyze(folder), "TO-V010")
    assert found.cause == "given_way"
    assert "started a profiler of its own" in found.message
    assert "traceops run" not in found.message


def foreign(number):
    """Rows of another profiler that the program steps twice in each of our steps."""

    def change(rank, row):
        name = str(row.get("name"))
        if not name.startswith("ProfilerStep#") or row.get("cat") != "user_annotation":
            return [row]
        first = 2 * int(name.partition("#")[2]) + number
        half = row["dur"] / 2
        others = [
            {**row, "name": f"ProfilerStep#{first + i}", "ts": row["ts"] + i * half + 1, "dur": half - 2}
            for i in (0, 1)
        ]
        return [row, *others]

    return change


@pytest.mark.parametrize("number", [100, -2, -6, 0], ids=["other numbers", "some of ours", "earlier", "later"])
def test_steps_of_another_profiler_in_our_trace_are_not_ours(tmp_path, number):
    run = slow_input(4)
    true = analyze(write_unmarked(run, tmp_path / "true", as_is, drop_marks=False))
    folder = captured(run, tmp_path / "run", run.program.numbers[1:], complete=True, ran=20)
    write_unmarked(run, folder, foreign(number), drop_marks=False)
    report = analyze(folder)
    assert report.run.steps == true.run.steps
    assert report.summary.step_time_ms == true.summary.step_time_ms
    assert [(row.step, row.duration_ms) for row in report.steps] == [(row.step, row.duration_ms) for row in true.steps]


def test_a_manifest_of_another_run_hides_no_steps(tmp_path):
    run = slow_input(4)
    folder = captured(run, tmp_path / "run", [70, 71, 72], complete=True, ran=80)
    assert analyze(folder).run.steps == run.program.numbers[1:]


def test_a_folder_without_traces_says_what_would_record_some(tmp_path):
    from traceops.core.errors import InputError

    folder = captured(slow_input(1), tmp_path / "run", [], complete=False, ran=7)
    for trace in folder.glob("*.trace.json"):
        trace.unlink()
    with pytest.raises(InputError, match=r"ended after 7 steps, .* needs 14; .* --skip-first 1 --unprofiled 2"):
        analyze(folder)


@pytest.mark.parametrize(
    "steps, flags",
    [
        (13, "--skip-first 2 --unprofiled 5 --warmup 2 --active 4"),
        (10, "--skip-first 2 --unprofiled 2 --warmup 2 --active 4"),
        (8, "--skip-first 1 --unprofiled 2 --warmup 1 --active 4"),
        (6, "--skip-first 1 --unprofiled 2 --warmup 1 --active 2"),
        (3, "--skip-first 0 --unprofiled 0 --warmup 1 --active 2"),
        (1, "--skip-first 0 --unprofiled 0 --warmup 0 --active 1"),
    ],
)
def test_a_schedule_that_fits_keeps_the_recorded_steps_as_long_as_it_can(steps, flags):
    shorter = shorter_schedule(SCHEDULE, steps)
    assert shorter.flags == flags
    assert sum(map(int, re.findall(r"\d+", flags))) <= steps


@pytest.mark.parametrize("schedule, steps", [(SCHEDULE, 14), (SCHEDULE, 0), (None, 5), ({"active": "4"}, 5)])
def test_nothing_is_proposed_where_the_schedule_was_not_too_long(schedule, steps):
    assert shorter_schedule(schedule, steps) is None
