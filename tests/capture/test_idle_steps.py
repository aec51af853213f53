"""Steps in which nothing is due but watching: most of a training's, so they are kept cheap."""

import os
import threading

import pytest

import traceops
from traceops.capture import schedule as later_windows
from traceops.capture import session
from traceops.capture.guard import Guard
from traceops.capture.light.window import LightWindow
from traceops.capture.manifest import readable_ranks
from traceops.capture.progress import read_progress
from traceops.capture.schedule import LaterWindow, Schedule, ask
from traceops.capture.short_way.ways import LongWay, short_way
from traceops.core.rank_files import MAGIC, RECORD, RECORDED

pytestmark = pytest.mark.torch
NONE = Schedule(skip_first=1000)


@pytest.fixture(params=["compiled", "python"], autouse=True)
def way(request, monkeypatch):
    """Idle steps go the short way where that is compiled: both ways are to be noticed alike."""
    if request.param == "python":
        monkeypatch.setattr(session, "short_way", LongWay)
    elif type(short_way()) is LongWay:
        pytest.skip("nothing is compiled here")
    return request.param


@pytest.fixture
def progress(tmp_path, monkeypatch):
    monkeypatch.setattr(later_windows, "_LOOK_EVERY_S", 0.0)
    monkeypatch.delenv("TRACEOPS_CAPTURE", raising=False)
    folder = tmp_path / "progress"
    folder.mkdir()
    return folder


def capture(folder, schedule, progress):
    return traceops.capture(folder / "run", schedule=schedule, progress=str(progress), launched=True)


def busy(capture, monkeypatch):
    """The numbers of the steps at whose end more is due than watching, from now on."""
    found, before = [], capture._stepped

    def heard(samples):
        found.append(capture.steps)
        before(samples)

    monkeypatch.setattr(capture, "_stepped", heard)
    return found


def flags(folder):
    content = (folder / "run" / "rank_0" / "steps.bin").read_bytes()[len(MAGIC) :].split(b"\n", 1)[1]
    return [record[-1] for record in RECORD.iter_unpack(content)]


def test_steps_around_windows_are_not_idle_and_all_are_written(tmp_path, progress, monkeypatch):
    schedule = Schedule(skip_first=3, unprofiled=1, warmup=1, active=1)  # steps 3 to 5
    with capture(tmp_path, schedule, progress) as running:
        found = busy(running, monkeypatch)
        for step in range(14):
            running.step(samples=4)
            assert read_progress(progress)[0].step == step + 1
        assert read_progress(progress)[0].samples == 56
    assert found == [0, *range(2, 9)], "from step 5 on the light window is waited for"
    assert len(flags(tmp_path)) == 14


def test_a_window_that_is_asked_for_in_an_idle_step_may_begin_with_the_next(tmp_path, progress, monkeypatch):
    monkeypatch.setattr(session, "_LONG_WAY_NS", 0)  # look each time
    schedule = Schedule(skip_first=0, unprofiled=0, warmup=1, active=1)
    with capture(tmp_path, schedule, progress) as running:
        found = busy(running, monkeypatch)
        for step in range(18):
            if step == 12:
                ask(progress, LaterWindow(1, 13, 1, 2))
            running.step()
    assert 12 not in found and {13, 14, 15} <= set(found)
    (rank,), problems = readable_ranks(tmp_path / "run")
    assert [window.steps for window in rank.windows] == [[1], [14, 15]] and not problems
    assert [bool(flag & RECORDED) for flag in flags(tmp_path)][11:] == [False] * 2 + [True] * 4 + [False]


def test_an_idle_step_in_another_thread_is_noticed(tmp_path, progress, monkeypatch, way):
    with capture(tmp_path, NONE, progress) as running:
        found = busy(running, monkeypatch)
        for _ in range(8):
            running.step()
            read_progress(progress)  # as the launcher does
        assert bool(running._way.armed) == (way == "compiled")
        other = threading.Thread(target=running.step)
        other.start()
        other.join()
        running.step()
        for _ in range(2):
            running.step()
    assert found == [0, 8, 9, 10]
    assert len(flags(tmp_path)) == 12


def test_a_forked_process_is_no_rank_in_idle_steps_either(tmp_path, progress):
    with capture(tmp_path, NONE, progress) as running:
        for _ in range(8):
            running.step()
            read_progress(progress)
        child = os.fork()
        if not child:
            running.step()
            running.step()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert read_progress(progress)[0].step == running.steps == 8
        running.step()
        assert read_progress(progress)[0].step == 9
    assert len(flags(tmp_path)) == 9


def test_after_a_failure_no_step_is_idle(tmp_path, progress, monkeypatch):
    monkeypatch.setattr(session, "_LONG_WAY_NS", 0)  # the short way has nothing that could fail
    with capture(tmp_path, NONE, progress) as running:
        found = busy(running, monkeypatch)
        running.step()
        with monkeypatch.context() as broken:
            broken.setattr(running._others, "step_ended", None)
            running.step()
        assert running.failure is not None and found == [0]
        running.step()
        assert found == [0, 2] and read_progress(progress)[0].phase == "done"


def test_a_guard_asks_for_the_process_unless_it_is_known(monkeypatch):
    guard = Guard(lambda operation, error: None)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert guard.run(None, int) is None and guard.run_here(None, int) == 0


def test_the_light_window_hears_of_a_profiler_that_only_warms_up(tmp_path, progress, monkeypatch):
    """Nothing but its preparation tells of it: torch says that none is enabled."""
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler import schedule as cycle

    heard = {}
    monkeypatch.setattr(LightWindow, "step_begins", lambda self, step, others=-1: heard.update({step: others}))
    monkeypatch.setattr(LightWindow, "idle_until", lambda self, step: step)
    short = Schedule(skip_first=0, unprofiled=0, warmup=1, active=1)
    with capture(tmp_path, short, progress) as running:
        for _ in range(5):
            running.step()
        with profile(activities=[ProfilerActivity.CPU], schedule=cycle(wait=0, warmup=9, active=1)) as own:
            for _ in range(3):
                running.step()
                own.step()
        for _ in range(3):
            running.step()
    assert [heard[step] for step in range(2, 12)] == [-1, -1, -1, -1, 5, 6, 7, 8, 8, 8]
