"""`traceops capture`: a window of a run that is going on, from one step on all ranks."""

import json
import re

import pytest

import traceops.launch.on_demand as on_demand
from traceops.capture import schedule as later_windows
from traceops.capture.progress import Progress
from traceops.capture.schedule import AskedWindows, LaterWindow, LongerSchedule, Phase, Schedule, ask
from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.core.run_lock import held
from traceops.launch.on_demand import ANSWER, REQUEST, OnDemand, Request, answer_to, request_window

SHORT = Schedule(skip_first=1, unprofiled=1, warmup=1, active=2)  # steps 3 and 4 of 0 to 4
MANIFEST = {
    "rank": 0, "local_rank": 0, "world_size": 2, "host": "h", "pid": 1, "device": {}, "options": {},
    "schedule": {"skip_first": 1, "unprofiled": 1, "warmup": 1, "active": 2, "repeat": 1},
}  # fmt: skip


def records(*steps, first=0):
    return [Progress(first + n, 1, "done", step, None, 0) for n, step in enumerate(steps)]


def test_a_window_comes_where_it_is_asked_for_or_behind_what_there_is():
    longer = LongerSchedule.of(SHORT, LaterWindow(1, 20, 1, 2))
    phases = [longer.phase(step) for step in range(18, 25)]
    assert phases == [Phase.DONE, Phase.DONE, Phase.WARMUP, Phase.ACTIVE, Phase.ACTIVE, Phase.DONE, Phase.DONE]
    assert [step for step in range(30) if longer.ends_window(step)] == [4, 22]
    assert [longer.window(step) for step in (0, 4, 19, 20, 22, 29)] == [0, 0, 0, 1, 1, 1]
    assert (longer.active_steps(0), longer.active_steps(1)) == (range(3, 5), range(21, 23))
    assert [longer.phase(step) for step in range(5)] == [SHORT.phase(step) for step in range(5)]
    assert longer.total_steps == SHORT.total_steps, "the run is complete without it"
    early = LongerSchedule.of(LongerSchedule.of(SHORT, LaterWindow(1, 2, 1, 2)), LaterWindow(2, 6, 0, 1))
    assert [(window.start, window.end) for window in early.later] == [(5, 8), (8, 9)]


def test_a_rank_hears_of_each_request_once_and_looks_seldom(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(later_windows.time, "monotonic", lambda: now[0])
    asked = AskedWindows(tmp_path)
    assert asked.look() is None
    ask(tmp_path, LaterWindow(1, 20, 1, 2))
    assert asked.look() is None, "not before a second is over"
    now[0] = 1.5
    assert asked.look() == LaterWindow(1, 20, 1, 2)
    now[0] = 3.0
    assert asked.look() is None
    ask(tmp_path, LaterWindow(2, 40, 1, 2))
    now[0] = 4.5
    assert asked.look() == LaterWindow(2, 40, 1, 2)
    (tmp_path / later_windows.REQUEST).write_text("{")
    now[0] = 6.0
    assert asked.look() is None


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """OnDemand of a run of two ranks, with a clock that a test moves."""
    run, progress = tmp_path / "run", tmp_path / "progress"
    (run / "rank_0").mkdir(parents=True)
    progress.mkdir()
    (run / "rank_0" / "manifest.json").write_text(json.dumps(MANIFEST))
    now, said = [0.0], []
    monkeypatch.setattr(on_demand.time, "monotonic", lambda: now[0])

    def look(made, own, seconds=2.0):
        now[0] += seconds
        made.look(own)

    return OnDemand(run, progress, said.append), look, run, progress, said


def windows(progress):
    return json.loads((progress / later_windows.REQUEST).read_text())


def test_the_step_lies_ahead_of_all_ranks_by_the_pace_of_the_run(launcher):
    made, look, run, progress, said = launcher
    look(made, records(100, 101))
    with held(run):
        request_window(run, Request("a", 1, 3))
    look(made, records(300, 301))  # 100 steps a second
    assert windows(progress) == {"number": 1, "start": 601, "warmup": 1, "active": 3}
    assert said == ["window 1 is requested: 3 steps, from step 602 on"] and not (run / REQUEST).exists()
    with held(run):
        assert answer_to(run, Request("a")) == LaterWindow(1, 601, 1, 3)
        with pytest.raises(UsageError, match="did not answer"):
            answer_to(run, Request("another"), wait_s=0.0)
    made.signalled()  # SIGUSR2
    look(made, records(310, 311))
    assert windows(progress) == {"number": 2, "start": 605, "warmup": 2, "active": 4}, "behind the first"
    made.close()
    assert not (run / ANSWER).exists()


def test_the_launcher_of_another_node_asks_its_ranks_for_the_same_steps(launcher, tmp_path):
    made, look, run, progress, _ = launcher
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = OnDemand(run, elsewhere, lambda line: None)
    look(other, records(7, 7, first=2))
    assert not list(elsewhere.iterdir())
    made.signalled()
    look(made, records(7, 8))
    look(other, records(9, 9, first=2))
    assert windows(elsewhere) == windows(progress)


def test_a_request_that_is_no_request_is_thrown_away(launcher):
    made, look, run, progress, said = launcher
    (run / REQUEST).write_text("[1")
    look(made, records(5, 5))
    assert not (run / REQUEST).exists() and not said and not list(progress.iterdir())


@pytest.mark.parametrize(
    "argv, reason",
    [
        (["nowhere"], "no run is active in .*nowhere"),
        (["--job", "mine"], "no run is active in .*profile/mine"),
        (["run", "--job", "mine"], "not both"),
        ([], "no run is active below profile/"),
        (["run", "--active", "0"], "--active 0: must be 1 or more"),
    ],
)
def test_what_cannot_be_asked_is_said(argv, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["capture", *argv]) == 2
    assert re.search(reason, " ".join(capsys.readouterr().err.split()))


@pytest.mark.torch
@pytest.mark.slow
def test_a_capture_records_what_is_asked_for_while_it_runs(tmp_path, monkeypatch):
    import torch

    import traceops
    from traceops.capture.manifest import readable_ranks

    monkeypatch.setattr(later_windows, "_LOOK_EVERY_S", 0.0)
    monkeypatch.delenv("TRACEOPS_CAPTURE", raising=False)
    (tmp_path / "progress").mkdir()
    out = tmp_path / "run"
    settings = {"progress": str(tmp_path / "progress"), "launched": True}
    with traceops.capture(out, schedule=SHORT, **settings) as capture:
        for step in range(16):
            if step == 6:
                ask(tmp_path / "progress", LaterWindow(1, 9, 1, 2))
            if step == 13:
                ask(tmp_path / "progress", LaterWindow(2, 3, 0, 1))  # too late: another rank may have it
            torch.ones(2).sum()
            capture.step()
        assert capture.done
    (rank,), problems = readable_ranks(out)
    assert [(window.index, window.steps, window.complete) for window in rank.windows] == [
        (0, [3, 4], True),
        (1, [10, 11], True),
    ]
    assert all((out / trace).stat().st_size for trace in rank.traces) and not problems
    assert rank.note == "window 2 was asked for from step 3 on, when step 14 had begun"
