"""When a training counts as hanging, on made-up heartbeats and looks."""

import os

import pytest

from traceops.capture.progress import Progress
from traceops.launch.evidence import hang_variables
from traceops.launch.hangs import NodeStatus, Watch
from traceops.launch.launchers import HangTimeouts
from traceops.launch.process_activity import ProcessSample

GONE = 2**22 + 1  # beyond the largest pid


class Scene:
    """Two ranks, a clock that runs when told to, and what a look at them shows."""

    def __init__(self, tmp_path, limits=HangTimeouts(60, 1800), all_still=bool):  # noqa: B008
        self.now = 1000.0
        self.said = []
        self.ranks = {
            0: Progress(0, os.getpid(), "done", 20, None, 0),
            1: Progress(1, os.getpid(), "done", 20, None, 0),
        }
        self.working = self.calling = False
        self.looks = 0
        self.watch = Watch(limits, tmp_path, self.said.append, all_still, self.look)
        self.tell()

    def look(self, alive, folder):
        self.looks += 1
        stack = [["/home/me/train.py", 88, "evaluate", self.looks if self.working else 0]]
        pulse = {"main": stack, "collectives": {"0": self.looks if self.calling else 0}, "gpu_allocations": None}
        return {
            record.rank: ProcessSample(record.rank, self.now, pulse if record.rank == 0 else {}) for record in alive
        }

    def tell(self, **changed):
        """Both ranks write a record."""
        for rank, record in self.ranks.items():
            self.ranks[rank] = Progress(**{**vars(record), "time_ns": int(self.now * 1e9), **changed})
        return self.watch.observe(list(self.ranks.values()), self.now)

    def wait(self, seconds):
        """Let time pass; the stall, if one was seen."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            stall = self.watch.observe(list(self.ranks.values()), self.now)
            if stall is not None:
                return stall
        return None


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_nobody_is_looked_at_while_steps_are_finished(scene):
    for step in range(21, 30):
        assert scene.wait(40) is None
        assert scene.tell(step=step) is None
    assert scene.looks == 0


def test_still_for_the_limit_is_a_hang(scene):
    assert scene.wait(59.5) is None
    stall = scene.wait(2)
    assert (stall.kind, stall.limit_s, stall.notes) == ("step", 60, ())
    assert 60 <= stall.stalled_s < 62 and scene.looks > 5


def test_what_moves_is_slow_until_ten_times_the_limit(scene):
    scene.working = True
    assert scene.wait(599) is None
    assert scene.said == ["slow step: no step for 60 s; rank 0 is still working in evaluate (train.py:88)"]
    stall = scene.wait(3)
    assert stall.notes == ("something still moved: rank 0 is still working in evaluate (train.py:88)",)


def test_work_that_ends_in_a_hang(scene):
    scene.working = True
    assert scene.wait(100) is None
    scene.working = False
    assert 110 < scene.wait(60).stalled_s < 130


def test_a_new_step_is_told_of_anew(scene):
    scene.working = True
    assert scene.wait(70) is None
    assert scene.tell(step=21) is None
    assert scene.wait(70) is None and len(scene.said) == 2


def test_collectives_that_are_called_are_progress_without_end(scene):
    scene.working = scene.calling = True
    assert scene.wait(2000) is None
    scene.calling = False
    assert scene.wait(70) is not None


def test_steps_that_nobody_reports_are_not_missed(scene):
    scene.tell(phase="ended")
    scene.working = True
    assert scene.wait(2000) is None
    scene.working = False
    assert scene.wait(30) is not None


def test_the_profiler_may_write_its_trace(scene):
    scene.tell(phase="profiler")
    assert scene.wait(599) is None
    assert "the profiler of rank 0 starts or writes its trace" in scene.said[0]


def test_before_the_first_step_there_is_more_time(tmp_path):
    scene = Scene(tmp_path)
    scene.tell(step=0, phase="starting")
    assert scene.wait(1799) is None
    assert scene.wait(5).kind == "init"


def test_without_a_limit_the_first_step_may_take_for_ever(tmp_path):
    scene = Scene(tmp_path, HangTimeouts(60, 0))
    scene.tell(step=0, phase="starting")
    assert scene.wait(5000) is None and scene.looks == 0


def test_a_job_that_is_still_before_its_first_step_leaves_evidence_after_a_minute(tmp_path):
    """A silent job at batch 0 left none for half an hour."""
    scene = Scene(tmp_path, HangTimeouts())
    scene.tell(step=0, phase="starting")
    assert scene.wait(59) is None
    assert scene.wait(5).kind == "init"


def test_a_job_that_moves_before_its_first_step_is_still_starting(tmp_path):
    scene = Scene(tmp_path, HangTimeouts())
    scene.working = True
    scene.tell(step=0, phase="starting")
    assert scene.wait(1700) is None
    assert scene.said == ["still starting: no first step after 60 s; rank 0 is still working in evaluate (train.py:88)"]
    assert scene.wait(200).kind == "init"


def test_a_job_that_would_be_ended_may_start_for_half_an_hour(tmp_path):
    scene = Scene(tmp_path, HangTimeouts(kills=True))
    scene.tell(step=0, phase="starting")
    assert scene.wait(1799) is None
    assert scene.wait(5).kind == "init"


def test_long_steps_have_a_longer_limit(tmp_path):
    scene = Scene(tmp_path, HangTimeouts())
    for step in range(21, 26):
        scene.wait(20)
        scene.tell(step=step)
    assert scene.wait(199) is None
    assert scene.wait(5).limit_s == pytest.approx(200, rel=0.02)


def test_what_looks_like_a_hang_to_somebody_who_ends_the_job(tmp_path):
    scene = Scene(tmp_path, HangTimeouts(600, 1800))

    def suspect():
        return scene.watch.suspect(list(scene.ranks.values()), scene.now)

    assert scene.wait(9) is None and suspect() is None, "no median yet"
    scene.now += 2
    assert (suspect().limit_s, suspect().notes) == (10, ("the user ended the job",))
    for step in range(21, 41):
        scene.wait(4)
        scene.tell(step=step)
    scene.now += 11
    assert suspect() is None, "steps of 4 s"
    scene.now += 2
    assert (suspect().kind, suspect().limit_s) == ("step", pytest.approx(12, rel=0.05))
    scene.tell(phase="profiler")
    scene.now += 100
    assert suspect() is None, "a trace is being written"


def test_fast_steps_are_no_hang_a_moment_later(tmp_path):
    scene = Scene(tmp_path, HangTimeouts(600, 1800))
    scene.now += 0.1
    scene.tell(step=60)
    scene.now += 1.9
    assert scene.watch.suspect(list(scene.ranks.values()), scene.now) is None
    scene.now += 0.2
    assert scene.watch.suspect(list(scene.ranks.values()), scene.now).limit_s == 2


def test_a_rank_that_is_gone_is_named(scene):
    scene.ranks[1] = Progress(1, GONE, "done", 20, None, 0)
    scene.watch.observe(list(scene.ranks.values()), scene.now)
    assert scene.wait(62).notes == ("rank 1 is gone while others wait",)


def test_ranks_that_are_all_gone_wait_for_other_machines(scene):
    scene.tell(pid=GONE)
    assert scene.wait(5000) is None


def test_ranks_that_wait_for_a_slow_one_on_another_machine_do_not_hang(tmp_path):
    here, there = NodeStatus(tmp_path, 2), NodeStatus(tmp_path, 2)
    there._own = tmp_path / ".still.another"
    scene = Scene(tmp_path, all_still=here.all_still)
    assert scene.wait(200) is None
    there.all_still(True)
    assert scene.wait(1) is not None
    scene.tell(step=21)
    assert [path.name for path in tmp_path.glob(".still.*")] == [".still.another"]


def test_machines_that_cannot_see_each_other_wait_ten_times_as_long(tmp_path):
    scene = Scene(tmp_path, all_still=NodeStatus(tmp_path, 2).all_still)
    assert scene.wait(599) is None
    assert "another machine" in scene.wait(3).notes[0]


def test_a_loop_that_waits_in_one_place_wakes_up_and_one_that_waits_for_good_does_not():
    first = ProcessSample(0, 0.0, wakeups=100)
    assert ProcessSample(0, 15.0, wakeups=130).woken_since(first)  # two batches a second
    assert not ProcessSample(0, 15.0, wakeups=109).woken_since(first)  # a loader that is asked every 5 s
    assert not ProcessSample(0, 1.0, wakeups=102).woken_since(first)


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (ProcessSample(0, 0.0), ProcessSample(0, 1.0), False),
        (ProcessSample(0, 0.0), ProcessSample(0, 1.0, storage_bytes=2_000_000), True),
        (ProcessSample(0, 0.0), ProcessSample(0, 1.0, storage_bytes=500_000), False),
        (ProcessSample(0, 0.0), ProcessSample(0, 1.0, cpu_s=0.9), True),
        (ProcessSample(0, 0.0), ProcessSample(0, 1.0, cpu_s=0.01), False),
        (ProcessSample(0, 0.0), ProcessSample(0, 1.0, spinning_s=2.0), False),  # it may wait for its GPU
        (ProcessSample(0, 0.0), ProcessSample(0, 1.0, spinning_s=12.0), True),
        (ProcessSample(0, 0.0, {"main": [1]}), ProcessSample(0, 1.0, {"main": [2]}), True),
        (ProcessSample(0, 0.0, {"main": [1]}), ProcessSample(0, 1.0), False),  # did not answer: not a sign of anything
    ],
)
def test_signs_of_work(before, after, moved):
    assert after.moved_since(before) is moved


def test_the_names_that_this_torch_knows(tmp_path, monkeypatch):
    for version, size in (((2, 8), "TORCH_NCCL_TRACE_BUFFER_SIZE"), ((2, 9), "TORCH_FR_BUFFER_SIZE")):
        monkeypatch.setattr("traceops.launch.evidence.torch_version", lambda version=version: version)
        values = hang_variables({}, tmp_path / "evidence", tmp_path)
        assert values[size] == "2000" and len([name for name in values if "BUFFER_SIZE" in name]) == 1
        assert str(tmp_path / "evidence" / "flight_recorder_") in values.values()


def test_what_the_user_has_set_stays(tmp_path):
    mine = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    values = hang_variables(mine, tmp_path, tmp_path)
    assert not set(values) & {*mine, "TORCH_FR_BUFFER_SIZE"}
