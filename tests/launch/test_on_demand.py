"""`traceops capture`, and later windows of a run that goes on: all ranks record the same steps."""

import json
import re
import subprocess
import sys
from dataclasses import asdict

import pytest
from changed import replace
from started import environment

from traceops.capture import schedule as later_windows
from traceops.capture.progress import Progress
from traceops.capture.schedule import AskedWindows, LaterWindow, LongerSchedule, Phase, Schedule, ask
from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.core.rank_files import MAGIC, RECORD, RECORDED
from traceops.core.run_lock import held
from traceops.launch import on_demand
from traceops.launch.on_demand import (
    ANSWER,
    REQUEST,
    OnDemand,
    Request,
    Rhythm,
    TimedStep,
    Why,
    WindowDue,
    answer_to,
    read_steps,
    request_window,
    unlike_since,
)
from traceops.pipeline.analyze import analyze

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


WINDOW = range(10, 14)
WOBBLE = (0, 3, 1, 4, 1, 5, 2, 6)  # percent


def run_of(count, *, early=100, before=20, odd=(), compiled=(), later=100):
    """Steps of so many ms until step `before`, and then of `later`; odd ones take ten times as long."""
    return [
        TimedStep(
            number,
            round(1e3 * (early if number < before else later) * (1 + WOBBLE[number % 8] / 100))
            * (10 if number in odd else 1),
            50_000 if number in compiled else 0,
            8 <= number <= 14,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (run_of(60), None),
        (run_of(60, early=150), Why.SLOWER),
        (run_of(54, early=150), None),
        (run_of(60, early=150, before=40), None),
        (run_of(60, early=120), None),
        (run_of(60, early=70), None),
        (run_of(60, compiled=(11,)), Why.COMPILED),
        (run_of(60, compiled=(11, 50)), None),
        (run_of(60, compiled=(3,)), None),
        (run_of(80, odd=range(11, 80, 10)), Why.INTERRUPTED),
        (run_of(80, odd=range(16, 80, 10)), None),
        (run_of(80, odd=(11,)), None),
        (run_of(80, odd=(11, 17, 33, 50, 71)), None),
    ],
    ids=[
        "alike", "shorter since", "too few since", "still changing", "hardly shorter", "longer since", "compiled",
        "compiling still", "compiled before it", "evaluated in it", "evaluated elsewhere", "once", "by chance",
    ],
)  # fmt: skip
def test_another_window_is_due_only_where_the_first_is_surely_unlike(steps, why):
    found = unlike_since(steps, WINDOW)
    assert (None if found is None else found.why) is why


def test_it_is_kept_clear_of_what_comes_again_and_again():
    found = unlike_since(run_of(80, odd=range(11, 80, 10)), WINDOW)
    assert found == WindowDue(Why.INTERRUPTED, Rhythm(21, 10, 1))
    for start in range(90, 101):
        begin = found.rhythm.free_from(start, 6)
        assert not any(number % 10 in (1, 2) for number in range(begin, begin + 6)), "nor the step behind it"
        assert start <= begin < start + 10
    assert Rhythm(21, 10, 9).free_from(90, 6) == 90, "there is no room"
    slower = unlike_since(run_of(80, early=150, odd=range(21, 80, 10)), WINDOW)
    assert (slower.why, slower.rhythm) == (Why.SLOWER, Rhythm(41, 10, 1))


def test_slow_steps_at_the_start_do_not_hide_what_comes_again_and_again():
    """Slow until step 20, an evaluation of 24 ms beside 29 each ten steps: the window was recorded over one."""
    steps = run_of(108, early=210, before=21)
    steps = [replace(one, us=one.us * 17 // 10) if one.number % 10 == 0 else one for one in steps]
    found = unlike_since(steps, set(WINDOW))
    assert (found.why, found.rhythm.every) == (Why.SLOWER, 10)
    begin = found.rhythm.free_from(118, 6)
    assert not any(number % 10 == 0 for number in range(begin, begin + 6))


def write(run, ranks=2, steps=None, **more):
    """A run folder in which the schedule's window has been recorded, and rank 0 has timed these steps."""
    window = {"index": 0, "trace": "t", "steps": list(WINDOW), "complete": True}
    for rank in range(ranks):
        told = {
            "rank": rank, "local_rank": rank, "world_size": ranks, "host": "h", "pid": 1, "options": {},
            "device": {"type": "cpu"}, "schedule": asdict(Schedule()), "windows": [window], **more,
        }  # fmt: skip
        (run / f"rank_{rank}").mkdir(parents=True, exist_ok=True)
        (run / f"rank_{rank}" / "manifest.json").write_text(json.dumps(told))
    steps = run_of(70, early=150) if steps is None else steps
    rows = [RECORD.pack(s.us, 0, 0, s.compile_us, 0, 0, 0, RECORDED * s.recorded) for s in steps]
    header = json.dumps({"rank": 0, "started_ns": 1, "first": 0}).encode()
    (run / "rank_0" / "steps.bin").write_bytes(MAGIC + header + b"\n" + b"".join(rows) + b"half a record")
    return steps


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Has the launcher look when rank 0 is at a step, and gives the window that it asked for."""
    run, progress = tmp_path / "run", tmp_path / "progress"
    progress.mkdir()
    now, said = [0.0], []
    monkeypatch.setattr(on_demand.time, "monotonic", lambda: now[0])
    launcher = OnDemand(run, progress, said.append)

    def at(step):
        now[0] += 2.0
        launcher.look([Progress(rank, 1, "done", step - rank, None, 0) for rank in (0, 1)])
        asked = progress / "window.json"
        return LaterWindow(**json.loads(asked.read_text())) if asked.exists() else None

    at.launcher, at.said = launcher, said
    return at


def test_the_launcher_asks_once_and_says_why(tmp_path, look):
    steps = write(tmp_path / "run")
    assert read_steps(tmp_path / "run" / "rank_0" / "steps.bin") == steps
    assert look(53) is None, "nothing can be known yet"
    assert look(73) == LaterWindow(1, 103, 2, 4, why="slower"), "three seconds ahead, at 10 steps a second"
    (said,) = look.said
    assert said.endswith("4 steps, from step 105 on: steps have become shorter since the first window")
    for step in range(80, 8000, 80):
        look(step)
    assert len(look.said) == 1


def test_on_gpus_it_asks_where_cupti_has_left_all_ranks(tmp_path, look):
    write(tmp_path / "run", device={"type": "cuda"}, detached={"done": True, "why_not": None})
    assert look(53) is None and look(73) == LaterWindow(1, 103, 2, 4, why="slower")


@pytest.mark.parametrize(
    "more",
    [
        {"device": {"type": "cuda"}},
        {"device": {"type": "cuda"}, "detached": {"done": False, "why_not": "CUDA 12.4 is too old"}},
        {"schedule": asdict(Schedule(skip_first=1))},
        {"windows": []},
        {"status": "given_way"},
        {"script_profiler": {"first": 20, "last": 22, "steps": 3}},
        {"world_size": 4},
    ],
    ids=[
        "a GPU, and no word of CUPTI",
        "a GPU where CUPTI stays",
        "a schedule of the user's",
        "no window yet",
        "gave way",
        "a profiler of its own",
        "ranks not seen",
    ],
)
def test_the_launcher_does_not_ask_where_it_cannot_be_sure(tmp_path, look, more):
    write(tmp_path / "run", **more)
    assert [look(step) for step in range(60, 8000, 60)] == [None] * 133 and not look.said


def test_a_run_that_is_not_observed_or_was_asked_for_a_window_gets_none(tmp_path, look):
    write(tmp_path / "run")
    (tmp_path / "run" / "rank_0" / "steps.bin").rename(tmp_path / "away")
    assert look(60) is None
    (tmp_path / "away").rename(tmp_path / "run" / "rank_0" / "steps.bin")
    look.launcher.signalled()
    assert look(100).why == ""
    assert [look(step).number for step in range(160, 8000, 60)] == [1] * 131


_TRAIN = """
import time
from pathlib import Path
import torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters())
for step in range(100_000):
    model(torch.ones(2, 8)).sum().backward()
    time.sleep(0.06 if step < 30 else 0.02)  # as if it compiled until then
    optimizer.step()
    optimizer.zero_grad()
    over = torch.tensor(len(list(Path("run").glob("rank_*/*.trace.json.gz"))) == 4)  # two windows of two ranks
    dist.broadcast(over, 0)
    if over:
        break
dist.destroy_process_group()
"""
_RUN = """
import sys
from traceops.launch import on_demand
from traceops.cli import main

def unlike_since(steps, window):  # on a busy machine the later steps may be no shorter
    return on_demand.WindowDue(on_demand.Why.SLOWER) if steps and steps[-1].number > 70 else None

on_demand.unlike_since = unlike_since
sys.exit(main(["run", "--nproc", "2", "--out", "run", "--", "train.py"]))
"""


@pytest.mark.torch
@pytest.mark.slow
def test_two_ranks_record_the_same_later_steps_and_the_report_is_of_them(tmp_path):
    (tmp_path / "train.py").write_text(_TRAIN)
    done = subprocess.run([sys.executable, "-c", _RUN], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "steps have become shorter since the first window" in done.stderr + done.stdout
    ranks = json.loads((tmp_path / "run" / "run.json").read_text())["ranks"]
    first, second = ([rank["windows"][number]["steps"] for rank in ranks] for number in (0, 1))
    assert first == [list(WINDOW)] * 2
    assert second[0] == second[1] and len(second[0]) == 4 and second[0][0] > 30 + 40
    assert [rank["windows"][1]["why"] for rank in ranks] == ["slower"] * 2
    report = analyze(tmp_path / "run")
    times = [dict(zip(rank["profiled_steps"], rank["profiled_step_ms"], strict=True)) for rank in ranks]
    early, late = (sum(one[number] for one in times for number in steps) for steps in (first[0], second[0]))
    assert report.run.steps == tuple(second[0] if late < early else first[0])
    at_the_start = [ms for rank in ranks for ms in rank["unprofiled_step_ms"]]
    held_to = [row.duration_ms for row in report.unprofiled_steps]
    assert (held_to != at_the_start) == (late < early), "each window has its own"
