"""What a capture of one process leaves in its folder, and the heartbeat that a reader sees of it."""

import json
import os
import py_compile
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from capture_reading import events, run_json, step_numbers

import traceops
from traceops.capture import CaptureSettings, Schedule, as_script, progress
from traceops.capture.environment import environment_that_matters
from traceops.capture.progress import ProgressWriter, read_progress
from traceops.core.errors import UsageError

_TRAIN = """
import sys, torch, traceops
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
schedule = traceops.Schedule(skip_first=1, unprofiled=2, warmup=1, active=3, repeat=2)
with traceops.capture({arguments}) as profiler:
    for step in range(16):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        if step == {fail_at}:
            raise ValueError("boom")
        profiler.step(samples=4)
    assert profiler.done and profiler.total_steps == 13, profiler.steps
print(profiler.out)
"""


def program(arguments, fail_at=None, before=""):
    return _TRAIN.format(arguments=arguments, fail_at=fail_at, before=before)


@pytest.mark.torch
@pytest.mark.slow
def test_one_process_without_torch_distributed(python, tmp_path):
    done = python("-c", program("schedule=schedule, manifest={'strategy': 'mine', 'lr': 0.1}"), compiler=True)
    assert done.returncode == 0, done.stderr
    out = tmp_path / done.stdout.strip()
    assert out.parent == tmp_path / "profile"
    run = run_json(out)
    (rank,) = run["ranks"]
    assert [step_numbers(out / trace) for trace in rank["traces"]] == [[4, 5, 6], [10, 11, 12]]
    assert [window["steps"] for window in rank["windows"]] == [[4, 5, 6], [10, 11, 12]]
    assert run["profiled_steps"] == rank["profiled_steps"] == [4, 5, 6, 10, 11, 12]
    assert (len(rank["unprofiled_step_ms"]), len(rank["profiled_step_ms"])) == (4, 6)
    assert run["unprofiled_step_ms"] > 0 and run["profiled_step_ms"] > 0
    assert (run["strategy"], run["training"]["lr"], run["status"], run["steps"]) == ("mine", 0.1, "finished", 16)
    assert (rank["samples"], rank["step_clock"], run["device"], run["backend"]) == (64, "host", "cpu", None)
    assert run["schema_version"] == 1 and run["ranks_missing"] == []
    assert not [path for path in out.rglob("*") if path.name.endswith(".part")]


@pytest.mark.torch
@pytest.mark.slow
def test_an_exception_in_a_window_keeps_what_was_recorded(python, tmp_path):
    done = python("-c", program("'run', schedule=schedule", fail_at=11))
    assert done.returncode == 1 and "ValueError: boom" in done.stderr
    (rank,) = run_json(tmp_path / "run")["ranks"]
    assert (rank["status"], rank["error"], rank["steps"]) == ("failed", "ValueError: boom", 11)
    assert [(w["steps"], w["complete"]) for w in rank["windows"]] == [([4, 5, 6], True), ([10], False)]
    assert 10 in step_numbers(tmp_path / "run" / rank["traces"][1])


@pytest.mark.torch
@pytest.mark.slow
def test_two_runs_are_never_mixed(python, tmp_path):
    first = python("-c", program("'run', schedule=schedule"))
    assert first.returncode == 0, first.stderr
    before = sorted((tmp_path / "run" / "rank_0").iterdir())
    again = python("-c", program("'run', schedule=schedule"))
    assert again.returncode != 0 and "holds another run" in again.stderr
    assert sorted((tmp_path / "run" / "rank_0").iterdir()) == before
    replaced = python("-c", program("'run', schedule=schedule, overwrite=True"))
    assert replaced.returncode == 0, replaced.stderr
    assert len(list((tmp_path / "run" / "rank_0").glob("*.gz"))) == 2


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_without_a_launcher_agree_on_one_folder(python, tmp_path):
    group = "import torch.distributed as dist; dist.init_process_group('gloo')"
    (tmp_path / "train.py").write_text(program("schedule=schedule", before=group))
    done = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")
    assert done.returncode == 0, done.stderr
    (out,) = (tmp_path / "profile").iterdir()
    run = run_json(out)
    assert [(rank["rank"], rank["local_rank"], len(rank["traces"])) for rank in run["ranks"]] == [(0, 0, 2), (1, 1, 2)]
    assert (run["world_size"], run["backend"], run["status"]) == (2, "gloo", "finished")


@pytest.mark.torch
@pytest.mark.slow
def test_the_environment_overrides_arguments(monkeypatch):
    monkeypatch.setenv("TRACEOPS_CAPTURE", json.dumps({"out": "there", "schedule": {"active": 9}}))
    settings = traceops.capture("here", schedule=Schedule(active=3, warmup=1), with_stack=True).settings
    assert (settings.out, settings.with_stack) == ("there", True)
    assert (settings.schedule.active, settings.schedule.warmup) == (9, 1)
    for bad in ("{", "[]", '{"colour": 1}', '{"schedule": {"passive": 1}}'):
        monkeypatch.setenv("TRACEOPS_CAPTURE", bad)
        with pytest.raises(UsageError, match="TRACEOPS_CAPTURE"):
            traceops.capture()


@pytest.mark.torch
@pytest.mark.slow
def test_a_schedule_longer_than_the_training_is_refused():
    with pytest.raises(UsageError, match="needs 14 steps"):
        traceops.capture(settings=CaptureSettings(), total_steps=11)


@pytest.mark.torch
@pytest.mark.slow
def test_secrets_stay_out_of_run_json():
    kept = environment_that_matters(
        {"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "x", "TORCH_TOKEN": "x", "HOME": "x", "OMP_NUM_THREADS": "1"}
    )
    assert kept == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}


_SCRIPT = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "2"  # before torch is loaded, as scripts do
assert "torch" not in sys.modules and __name__ == "__main__"
import torch, helper
assert torch.get_num_threads() == 2 or os.cpu_count() < 2
kind = sys.argv[1]
first, second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
optimizers = [torch.optim.SGD(first.parameters(), lr=0.1)]
if kind == "gan":
    optimizers.append(torch.optim.AdamW(second.parameters()))
if kind == "zero":
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    optimizers = [ZeroRedundancyOptimizer(first.parameters(), torch.optim.SGD, lr=0.1)]
step = optimizers[0].step
if kind == "compiled":
    step = torch.compile(lambda: optimizers[0].step(), backend="eager")
def train():
    first(second(torch.randn(4, 16))).sum().backward()
    step()
    for other in optimizers[1:]:
        other.step()
if kind == "explicit":
    import traceops
    with traceops.capture("elsewhere", schedule=traceops.Schedule(0, 1, 1, 2), total_steps=4) as profiler:
        for _ in range(4):
            train(), train()
            profiler.step()
elif kind == "profiler":
    for number in range(16):
        if number == 11:
            profiler = torch.profiler.profile()
            profiler.start()
        train()
    profiler.stop()
    assert any("SGD" in event.key for event in profiler.key_averages())
else:
    for _ in range(5 if kind == "short" else 14):
        train()
print(sys.argv, helper.VALUE, open("data.txt").read())
if kind == "message":
    sys.exit("no good")
"""


@pytest.fixture
def profiled(python, tmp_path):
    """Runs the script under a capture of one rank: its process and its run.json."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "script.py").write_text(_SCRIPT)
    for folder in (tmp_path / "app", tmp_path):  # beside the script; for -m, where we are
        (folder / "helper.py").write_text("VALUE = 42")
    (tmp_path / "data.txt").write_text("relative")

    def run(*arguments, compiler=False):
        env = {"TRACEOPS_CAPTURE": '{"out": "run"}'}
        done = python(as_script.__file__, *arguments, env=env, compiler=compiler)
        assert (tmp_path / "run" / "run.json").exists(), done.stderr
        return done, run_json(tmp_path / "run")

    return run


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "gan", "zero", "compiled"])
def test_optimizer_steps_drive_the_schedule(profiled, tmp_path, kind):
    done, run = profiled("app/script.py", kind, compiler=kind == "compiled")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"['app/script.py', '{kind}'] 42 relative\n"
    (rank,) = run["ranks"]
    assert (rank["steps"], rank["exit_code"], rank["status"]) == (14, 0, "finished")
    trace = tmp_path / "run" / rank["traces"][0]
    assert step_numbers(trace) == [10, 11, 12, 13]
    if kind == "compiled":
        return
    for step, optimizer in zip(
        events(trace, "ProfilerStep#"), events(trace, "Optimizer.step#")[len(run["ranks"]) - 1 :], strict=False
    ):
        assert optimizer["ts"] + optimizer["dur"] <= step["ts"] + step["dur"], "the step cuts its optimizer in two"


@pytest.mark.torch
@pytest.mark.slow
def test_a_module_and_an_exit_message(profiled):
    done, run = profiled("-m", "app.script", "message")
    assert done.returncode == 1 and done.stderr.endswith("no good\n")
    assert run["ranks"][0]["error"] == "SystemExit: no good"
    assert "42 relative" in done.stdout


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("words", [["app/fails.py"], ["app/fails.pyc"], ["-m", "app.fails"], ["app"]])
def test_an_error_is_shown_as_python_itself_shows_it(profiled, python, tmp_path, words):
    """A module's came without the two lines of `runpy`, a file of byte code's with some."""
    for name in ("fails", "__main__"):
        (tmp_path / "app" / f"{name}.py").write_text("def fails():\n    1 / 0\n\n\nfails()\n")
    py_compile.compile(str(tmp_path / "app" / "fails.py"), str(tmp_path / "app" / "fails.pyc"))
    done, _ = profiled(*words)
    itself = python(*words)
    assert done.returncode == itself.returncode == 1
    assert done.stderr.replace(f"{tmp_path}/", "") == itself.stderr.replace(f"{tmp_path}/", "")


@pytest.mark.torch
@pytest.mark.slow
def test_an_uncaught_ctrl_c_ends_the_rank_by_its_signal(profiled, python, tmp_path):
    """A parent saw exit code 130 where Python by itself dies of SIGINT."""
    (tmp_path / "app" / "stops.py").write_text(
        "import atexit\n\natexit.register(print, 'at the end')\nraise KeyboardInterrupt\n"
    )
    done, run = profiled("app/stops.py")
    itself = python("app/stops.py")
    assert done.returncode == itself.returncode == -signal.SIGINT
    assert (done.stdout, done.stderr.replace(f"{tmp_path}/", "")) == (
        itself.stdout, itself.stderr.replace(f"{tmp_path}/", ""),
    )  # fmt: skip
    assert (run["ranks"][0]["exit_code"], run["ranks"][0]["error"]) == (130, "KeyboardInterrupt")


@pytest.mark.torch
@pytest.mark.slow
def test_a_rank_that_already_fails_keeps_its_trace_when_ctrl_c_follows(profiled, tmp_path):
    """A peer's Ctrl-C reaches a rank as an error of gloo, and the launcher's own Ctrl-C while it writes its trace."""
    (tmp_path / "app" / "fails.py").write_text(
        """
import os, signal
import torch
from torch.profiler import profile

stop = profile.stop
def interrupted(self):
    os.kill(os.getpid(), signal.SIGINT)
    return stop(self)

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step == 10:
        profile.stop = interrupted
        raise RuntimeError("Connection closed by peer")
"""
    )
    done, run = profiled("app/fails.py")
    (rank,) = run["ranks"]
    assert (done.returncode, rank["exit_code"]) == (1, 1), done.stderr
    assert [(tmp_path / "run" / trace).exists() for trace in rank["traces"]] == [True]


@pytest.mark.torch
@pytest.mark.slow
def test_a_capture_that_the_script_opens_itself_wins(profiled, tmp_path):
    done, run = profiled("app/script.py", "explicit")
    assert done.returncode == 0, done.stderr
    (rank,) = run["ranks"]
    assert (rank["steps"], rank["status"], rank["exit_code"], rank["note"]) == (4, "finished", 0, None)
    assert step_numbers(tmp_path / "run" / rank["traces"][0]) == [2, 3]
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_the_scripts_own_profiler_is_left_alone_and_its_trace_is_adopted(profiled, tmp_path):
    done, run = profiled("app/script.py", "profiler")
    assert done.returncode == 0, done.stderr
    (rank,) = run["ranks"]
    assert rank["status"] == "finished" and "steps 12 to 15" in rank["note"]
    assert "own torch.profiler" in rank["note"]
    assert [(w["steps"], w["complete"]) for w in rank["windows"]] == [([10], False), ([12, 13, 14, 15], True)]
    assert step_numbers(tmp_path / "run" / rank["traces"][1]) == [12, 13, 14, 15]
    adopted = tmp_path / "run" / rank["traces"][1]
    updates = events(adopted, "Optimizer.step")
    assert len(updates) == 5, "the one in whose step the profiler began, too"
    for mark, update in zip(events(adopted, "ProfilerStep#"), updates[1:], strict=True):
        assert (mark["pid"], mark["tid"]) == (update["pid"], update["tid"])
        assert mark["ts"] <= update["ts"] and update["ts"] + update["dur"] <= mark["ts"] + mark["dur"]


@pytest.mark.torch
@pytest.mark.slow
def test_a_script_that_ends_too_early_is_told_what_to_pass(profiled):
    done, run = profiled("app/script.py", "short")
    assert done.returncode == 0
    assert "only 5 optimizer steps, the schedule needs 14" in run["ranks"][0]["note"]
    assert "--skip-first" in done.stderr


STEPS = """
import os, signal, sys
from pathlib import Path
from traceops.capture.progress import ProgressWriter
writer = ProgressWriter(Path(sys.argv[1]), 3)
for step in range(500):
    writer.write("active", step, 8 * step)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_rank_that_is_stopped_shows_its_last_step(tmp_path):
    rank = subprocess.Popen([sys.executable, "-c", STEPS, tmp_path])
    try:
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
        (record,) = read_progress(tmp_path)
    finally:
        rank.kill()
        rank.wait()
    assert (record.rank, record.pid, record.phase) == (3, rank.pid, "active")
    assert (record.step, record.samples) == (499, 8 * 499)


@pytest.fixture
def still(monkeypatch):
    """A clock that goes on only when told, and the time that it shows; nothing known of other memories."""
    monkeypatch.setattr(progress, "_memories", {})
    now = [time.time_ns()]
    monkeypatch.setattr(progress.time, "time_ns", lambda: now[0])
    return now


def in_file(folder):
    return progress.json.loads((folder / "rank_0.json").read_text())["step"]


def each_step_is_in_the_file(folder, writer, phase):
    for step in range(300, 303):
        writer.write(phase, step, None)
        assert in_file(folder) == read_progress(folder)[0].step == step


def test_the_file_is_written_every_200_ms_and_where_the_phase_changes(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    seen = []
    for step in range(200, 260):
        writer.write("skipped" if step < 250 else "done", step, None)
        seen.append(in_file(tmp_path))
        assert read_progress(tmp_path)[0].step == step
        still[0] += 10_000_000
    assert sorted(set(seen)) == [200, 220, 240, 250]
    writer.close()
    assert in_file(tmp_path) == 250


def test_every_step_is_in_the_file_until_a_reader_has_the_memory(tmp_path, still):
    """It may be another user's, in another container, or not have looked when the rank is killed after 2 ms."""
    writer = ProgressWriter(tmp_path, 0)
    for step in range(1000):
        writer.write("active", step, None)
        assert in_file(tmp_path) == step
    read_progress(tmp_path)
    for step in range(1000, 1010):
        writer.write("active", step, None)
        assert (in_file(tmp_path), read_progress(tmp_path)[0].step) == (999, step)


def test_a_reader_who_cannot_have_the_memory_has_every_step(tmp_path, still, monkeypatch):
    writer = ProgressWriter(tmp_path, 0)
    monkeypatch.setattr(progress, "_is_memory", lambda path, name: path.parts[2] == "self")
    each_step_is_in_the_file(tmp_path, writer, "active")


def test_a_rank_that_was_killed_while_it_wrote_has_told_the_step_before(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    writer.write("active", 300, None)
    read_progress(tmp_path)
    for step in (301, 302):
        writer.write("active", step, None)
    size = progress._MEMORY.size
    at = progress._SLOTS[writer._memory[progress._LAST] != b"\0"]
    for written in range(0, size, 8):  # the record is cleared first, and then written from its begin
        whole = bytes(writer._memory)
        writer._memory[at : at + size] = whole[at : at + written] + bytes(size - written)
        assert read_progress(tmp_path)[0].step == 301
        writer._memory[: len(whole)] = whole
    assert read_progress(tmp_path)[0].step == 302


def test_a_look_between_the_file_and_the_memory_does_not_lose_the_memory(tmp_path, still):
    """The rank may be gone at the next look."""
    writer = ProgressWriter(tmp_path, 0)
    writer.write("active", 300, None)
    read_progress(tmp_path)
    writer.write("active", 301, None)
    file = tmp_path / "rank_0.json"
    text = file.read_text()
    file.write_text(text.replace(str(still[0]), str(still[0] + 1)))
    assert read_progress(tmp_path)[0].step == 300
    os.close(writer._number)
    file.write_text(text)
    assert read_progress(tmp_path)[0].step == 301


KILLED = """
import os, signal, sys
from pathlib import Path
from traceops.capture.progress import ProgressWriter
writer = ProgressWriter(Path(sys.argv[1]), 3)
writer.write("active", 300, None)
print("there", flush=True)
sys.stdin.readline()
for step in range(301, 900):
    writer.write("active", step, None)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_was_killed_has_told_its_last_step(tmp_path):
    """To one who has looked before: the memory would be gone with the process."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout.readline() == "there\n"
        assert read_progress(tmp_path)[0].step == 300
        rank.communicate("\n")
    assert rank.returncode < 0
    assert read_progress(tmp_path)[0].step == 899


def test_a_clock_that_is_set_back_does_not_stop_the_file(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    writer.write("done", 301, None)
    still[0] -= 3600 * 10**9
    writer.write("done", 302, None)
    assert in_file(tmp_path) == 302


def test_without_such_memory_every_step_is_in_the_file(tmp_path, still, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    each_step_is_in_the_file(tmp_path, ProgressWriter(tmp_path, 0), "done")


def test_another_file_under_its_number_is_not_read(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    writer.write("done", 301, None)
    number = writer._number
    os.close(number)  # as a script does that closes all it did not open
    other = os.memfd_create(progress._NAME)  # of another capture, say
    try:
        assert other == number
        os.write(other, bytes(progress._TAKEN + 1))
        os.pwrite(other, progress._MEMORY.pack(7, 7, 7, still[0]), 0)
        assert read_progress(tmp_path)[0].step == 301
        assert os.pread(other, 1, progress._TAKEN) == b"\0"  # nor written to
        writer.close()
        os.fstat(other)  # not ours to close
    finally:
        os.close(other)


def test_a_file_that_was_written_since_has_the_last_word(tmp_path, still):
    writer = ProgressWriter(tmp_path, 0)
    writer.write("active", 1, None)
    memory = bytes(writer._memory)
    still[0] += 1
    writer.write("profiler", 2, None)
    progress.ctypes.memmove(writer._memory, memory, len(memory))  # as if it had been stopped between the two
    (record,) = read_progress(tmp_path)
    assert (record.phase, record.step) == ("profiler", 2)


def test_closing_leaves_its_files_closed(tmp_path):
    writer = ProgressWriter(tmp_path, 0)
    numbers = writer._fd, writer._number
    writer.write("ended", 1, None)
    writer.close()
    for path in (Path(f"/proc/self/fd/{number}") for number in numbers):
        assert not path.exists() or "rank_0.json" not in str(path.readlink())
        assert not path.exists() or progress._NAME not in str(path.readlink())


def test_the_next_capture_of_a_process_may_have_the_same_number(tmp_path, still):
    for number in (300, 400):
        writer = ProgressWriter(tmp_path, 0)
        writer.write("done", number, None)
        writer.write("done", number + 1, None)
        steps = [read_progress(tmp_path)[0].step for _ in range(2)]
        assert steps[-1] == number + 1
        writer.close()
        still[0] += 1
