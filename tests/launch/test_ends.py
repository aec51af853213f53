"""However the launcher ends, no process of the run is left: a stopped one, a deaf one, nor one that lost its parent."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hang_run import left_behind as left
from started import environment

from traceops.capture import as_script
from traceops.capture.progress import Progress
from traceops.cli import build_parser, main
from traceops.cli.run import decide, take_folder
from traceops.core.as_module import command_of
from traceops.core.errors import UsageError
from traceops.core.run_lock import LOCK, FolderInUse, Launcher, RunLock, held, hold, in_use, launcher_state
from traceops.launch import folder, process, supervise
from traceops.launch.folder import clear, free_folder
from traceops.launch.signals import Received, held_signals
from traceops.traces.run_manifest import read_run_manifest

HERE = Path(__file__).parent
DEADLOCK_S = 600


def wait_until(true, what):
    deadline = time.monotonic() + DEADLOCK_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path):
    """A launcher in a process of its own, once all its ranks are up."""

    def run(**options):
        command = [sys.executable, HERE / "small_launcher.py", tmp_path, HERE / "small_ranks.py"]
        launcher = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, **options)
        wait_until(lambda: len(list(tmp_path.glob("up.*"))) == 4 or launcher.poll() is not None, "not up")
        assert launcher.poll() is None, launcher.stderr.read()
        assert len(left(tmp_path)) == 6  # the supervisor, torchrun, three ranks, an orphan
        return launcher

    yield run
    for rest in left(tmp_path):
        rest.kill()


@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGTERM", "SIGINT"])
def test_a_signal_leaves_nothing(start, tmp_path, name):
    launcher = start()
    number = getattr(signal, name)
    launcher.send_signal(number)
    launcher.communicate(timeout=DEADLOCK_S)
    assert not left(tmp_path)
    assert json.loads((tmp_path / "ended.json").read_text())["signal"] == number
    assert (tmp_path / "saved").exists(), "who listens has the time to save"
    assert not in_use(tmp_path)


def test_a_second_ctrl_c_ends_at_once(start, tmp_path):
    launcher = start()
    launcher.send_signal(signal.SIGINT)
    assert "stopping the ranks" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=DEADLOCK_S)
    assert not left(tmp_path)


def test_nothing_outlives_a_launcher_that_is_killed(start, tmp_path):
    launcher = start()
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not in_use(tmp_path), "somebody holds the folder")
    assert not left(tmp_path)
    assert (tmp_path / "saved").exists(), "who listens has the time to save"
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["status"], run["exit_code"], run["signal"]) == ("cut_short", None, None)
    assert not (tmp_path / "progress").exists() and not list(tmp_path.glob(".reserve.*"))
    _, (path, problem) = read_run_manifest(str(tmp_path))
    assert path == f"{tmp_path}/run.json" and problem.startswith("the run was cut short: ")


def test_a_supervisor_that_is_killed_leaves_nothing_either(start, tmp_path):
    launcher = start()
    (supervisor,) = psutil.Process(launcher.pid).children()
    supervisor.kill()
    launcher.communicate(timeout=DEADLOCK_S)
    assert not left(tmp_path)


def test_a_supervisor_whose_launcher_is_killed_with_it_is_told_of_by_the_next_reader(tmp_path):
    """As where the machine loses its power."""
    launcher = subprocess.Popen([sys.executable, "-c", "pass"])
    launcher.wait()
    document = {"status": "running", "launcher": {"pid": launcher.pid, "host": Launcher.this().host}}
    (tmp_path / "run.json").write_text(json.dumps(document))
    _, (_, problem) = read_run_manifest(str(tmp_path))
    assert problem.startswith(f"the run was cut short: its launcher (pid {launcher.pid} on ")


def test_ranks_that_work_or_write_have_longer_than_the_launcher_grants(monkeypatch):
    """A handler that saved for 17 s was killed after 6; torchrun grants 30."""
    busy, idle = [], []
    for moved, found in (((10**7, 0.0, 0.0), busy), ((0, 3.0, 0.0), busy), ((0, 0.0, 0.0), idle)):
        seen = iter([tuple(number * part for part in moved) for number in range(10_000)])
        monkeypatch.setattr(process, "spent", lambda pid, seen=seen: next(seen))
        stopping = process._Stopping(1, 0.0, patient=True)
        found.append(next((now for now in range(0, 300, 3) if stopping.is_over(now)), None))
    assert busy == [None, None] and 30 < idle[0] < 40
    hung = process._Stopping(1, 0.0, patient=False)
    assert hung.is_over(36) and not hung.is_over(34)


def test_only_ctrl_c_again_kills_at_once():
    received = Received()
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):  # as systemd ends a session
        received.note(number)
    assert not received.again(1)
    received.note(signal.SIGINT)
    assert received.again(1) and not received.again(4)


LISTENING = """
import os, signal, sys, time
from pathlib import Path
out = Path(sys.argv[1])
def heard(number, frame):
    (out / f"heard.{number}").touch()
for number in map(int, sys.argv[2:]):
    signal.signal(number, heard)
(out / "listens").touch()
while not (out / "end").exists():
    time.sleep(0.05)
"""


def test_signals_that_are_not_the_launchers_reach_who_listens(tmp_path):
    """Slurm's --signal ended the launcher, and with it the job."""
    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT, signal.SIGRTMIN + 3]
    listening = subprocess.Popen([sys.executable, "-c", LISTENING, tmp_path, *map(str, map(int, numbers))])
    deaf = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    wait_until((tmp_path / "listens").exists, "not up")
    records = [Progress(0, listening.pid, "active", 1, None, 0), Progress(1, deaf.pid, "active", 1, None, 0)]
    try:
        with held_signals() as received:
            for number in numbers:
                os.kill(os.getpid(), number)
            assert received == [] and not received.pass_on(None, records), "nobody asks for a window"
            for number in numbers:
                wait_until((tmp_path / f"heard.{int(number)}").exists, number)
            (tmp_path / f"heard.{int(signal.SIGUSR1)}").unlink()
            os.kill(os.getpid(), signal.SIGUSR1)
            received.pass_on(listening.pid, [])
            wait_until((tmp_path / f"heard.{int(signal.SIGUSR1)}").exists, "the command")
            os.kill(os.getpid(), signal.SIGUSR2)
            assert received.pass_on(None, records[1:]), "no rank listens, so it is ours"
        (tmp_path / "end").touch()
        assert listening.wait(DEADLOCK_S) == 0 and deaf.poll() is None
    finally:
        for one in (listening, deaf):
            one.kill()
            one.wait()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_command_gets_the_very_signal(tmp_path, name):
    """Ranks were sent SIGTERM at Ctrl-C: no KeyboardInterrupt, so no `finally`."""
    script = "trap 'echo got INT; exit 3' INT; trap 'echo got TERM; exit 4' TERM; echo up; while :; do sleep 0.05; done"
    read, write = os.pipe()
    command = supervise.command_line(supervise.SupervisorSettings(read), ["sh", "-c", script])
    with subprocess.Popen(command, pass_fds=[read], stdout=subprocess.PIPE, text=True) as done:
        assert done.stdout.readline() == "up\n"
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN + 1):
            done.send_signal(number)  # to every process, as some batch systems do
        done.send_signal(getattr(signal, name))
        assert done.communicate(timeout=DEADLOCK_S)[0] == f"got {name[3:]}\n"
    os.close(read)
    os.close(write)


def test_ctrl_c_at_a_terminal_is_for_all_processes_of_the_users_command(tmp_path):
    code = (
        "import subprocess, sys, time; child = sys.argv[1:] and subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    )
    code += "\ntry:\n open('up' + str(len(sys.argv)), 'w')\n time.sleep(100)\n"
    code += "except KeyboardInterrupt:\n open('got' + str(len(sys.argv)), 'w')\nchild and child.wait()"
    read, write = os.pipe()
    command = supervise.command_line(supervise.SupervisorSettings(read), [sys.executable, "-c", code, code])
    with subprocess.Popen(command, pass_fds=[read], cwd=tmp_path) as done:
        wait_until(lambda: len(list(tmp_path.glob("up*"))) == 2, "not up")
        os.write(write, supervise.INTERRUPT)
        assert done.wait(DEADLOCK_S) == 0
    os.close(read)
    os.close(write)
    assert {path.name for path in tmp_path.glob("got*")} == {"got1", "got2"}


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with held_signals() as received:
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and received == []
            signal.raise_signal(signal.SIGQUIT)
        assert received == [signal.SIGQUIT]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_exit_code_of_what_it_runs_is_the_supervisors(tmp_path):
    for script, code in (("exit 7", 7), ("kill -9 $$", 137), ("exit 0", 0)):
        read, write = os.pipe()
        command = supervise.command_line(supervise.SupervisorSettings(read), ["sh", "-c", script])
        assert subprocess.run(command, pass_fds=[read], check=False).returncode == code
        os.close(read)
        os.close(write)


def test_a_command_that_is_not_there_is_told():
    read, write = os.pipe()
    command = supervise.command_line(supervise.SupervisorSettings(read), ["/no/such/program"])
    done = subprocess.run(command, pass_fds=[read], capture_output=True, text=True, check=False)
    assert done.returncode == 127 and "/no/such/program cannot be started" in done.stderr
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("parents", [supervise._parents, supervise._parents_by_ps])
def test_the_tree_is_found_with_and_without_proc(parents, monkeypatch):
    monkeypatch.setattr(supervise, "_parents", parents)
    child = subprocess.Popen(["sh", "-c", "sleep 100 & wait"])
    try:
        wait_until(lambda: len(supervise.descendants({child.pid})) == 2, "no grandchild")
        grandchild = max(supervise.descendants({child.pid}) - {child.pid})
        assert grandchild in supervise.descendants({os.getpid()})
    finally:
        for pid in supervise.descendants({child.pid}):
            os.kill(pid, signal.SIGKILL)
        child.wait()
    assert supervise.descendants({child.pid}) == set()


def test_a_folder_is_one_runs(tmp_path):
    with held(tmp_path / "run"):
        assert in_use(tmp_path / "run")
        with pytest.raises(FolderInUse, match=rf"in use by .*pid {os.getpid()} on .*--name or --out"):
            hold(tmp_path / "run")
        with pytest.raises(FolderInUse):
            hold(tmp_path / "run", shared=True)
    assert not in_use(tmp_path / "run") and not list((tmp_path / "run").iterdir())


def test_launchers_of_one_run_on_several_machines_share_a_folder(tmp_path):
    with held(tmp_path, shared=True), held(tmp_path, shared=True):
        assert in_use(tmp_path)
        with pytest.raises(FolderInUse):
            hold(tmp_path)
    with held(tmp_path):
        pass


def test_a_file_system_without_locks_refuses_nobody(tmp_path, monkeypatch):
    def unknown(descriptor, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with held(tmp_path) as one, held(tmp_path) as two:
        assert one.descriptor is two.descriptor is None and not in_use(tmp_path)


def test_what_goes_on_is_neither_overwritten_nor_named_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    going = Path("profile", "train").absolute()
    with held(going):
        assert free_folder("train").name == "train-2"
    series = going / "base_1"
    (series / "rank_0").mkdir(parents=True)
    (series / "run.json").write_text("{}")
    with held(series), pytest.raises(FolderInUse):
        clear(going)
    assert (series / "rank_0").exists()
    clear(going)
    assert not list(going.iterdir())


@pytest.mark.parametrize("ended", [False, True])
def test_runs_that_start_at_once_without_a_name_each_get_a_folder(tmp_path, monkeypatch, ended):
    """Both found profile/train free: the one that came second was refused, and its job was over."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\n")
    args = build_parser(["run"]).parse_args(["run", "--nproc", "1", "--", "train.py"])
    found = decide(args)
    with held(found.plan.out):
        if not ended:
            second, lock = take_folder(args, found)
    if ended:  # meanwhile
        (found.plan.out / "rank_0").mkdir()
        (found.plan.out / "run.json").write_text("{}")
        second, lock = take_folder(args, found)
    lock.release()
    assert second.plan.name == second.plan.out.name == "train-2"
    args.name = "train"
    with held(found.plan.out), pytest.raises(UsageError):
        take_folder(args, found)


def test_what_became_of_a_launcher(tmp_path):
    us = Launcher.this()
    assert launcher_state(tmp_path, us) == "running"
    assert launcher_state(tmp_path, Launcher(us.pid, us.host, 1)) == "gone", "another process has its number now"
    assert launcher_state(tmp_path, Launcher(us.pid, "elsewhere")) == "unknown"
    with held(tmp_path):
        assert launcher_state(tmp_path, Launcher(us.pid, "elsewhere")) == "running"
    for value in (None, [], {}, {"pid": "1", "host": "a"}, {"pid": -1, "host": "a"}, {"pid": 1, "host": 2}):
        assert Launcher.of(value) is None
    assert Launcher.of({"pid": 1 << 70, "host": us.host}).alive() is False
    RunLock(None).release()
    assert not (tmp_path / LOCK).exists()


OPTIONS = ("run", "--nproc", "2", "--out")


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where run.json is written, and the disk is full behind it; there is a script."""
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)

    def full(out: Path) -> None:
        (out / f".reserve.{folder.host()}").write_bytes(b"")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder, "Reserve", full)
    return tmp_path


@pytest.mark.torch
def test_a_full_disk_leaves_no_folder(full_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OPTIONS, "profile/mine", "--", "train.py"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in full_disk.iterdir()] == ["train.py"]


@pytest.mark.torch
def test_what_others_have_in_the_folder_stays(full_disk: Path) -> None:
    (full_disk / "mine" / "logs").mkdir(parents=True)
    (full_disk / "mine" / "logs" / "a.log").write_text("a")
    assert main([*OPTIONS, "mine", "--", "train.py"]) == 2
    assert sorted(path.relative_to(full_disk).as_posix() for path in (full_disk / "mine").rglob("*")) == [
        "mine/logs", "mine/logs/a.log",
    ]  # fmt: skip


def test_a_folder_of_one_s_own_that_is_empty_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    hold(tmp_path / "there").take_back()
    hold(tmp_path / "new" / "er").take_back()
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_that_cannot_hold_a_lock_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("traceops.core.run_lock.os.open", full)
    with pytest.raises(UsageError, match="No space left"):
        hold(tmp_path / "new" / "er")
    assert not list(tmp_path.iterdir())


NAMES = ("queue", "random", "logging", "json", "platform", "signal", "pathlib", "traceback", "time", "dataclasses")
BAD = "raise SystemExit('the file of the working folder was executed: ' + __file__)\n"


@pytest.fixture
def project(tmp_path):
    """A folder with files named like modules of Python and torch, and a program in a folder below."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(BAD)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(BAD)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "train.py").write_text("import json, queue, sys\nprint(sys.path[0], json.dumps(1))\n")
    return tmp_path


def run(*words, cwd, **more):
    env = {**environment(compiler=True), "TRACEOPS_CAPTURE": '{"out": "run"}', **more}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=env, text=True, capture_output=True)


@pytest.mark.parametrize("words", [["mcp", "--help"], ["memory", "--help"], ["doctor", "--help"], ["--version"]])
def test_commands_execute_nothing_of_the_folder_in_which_they_are_called(project, words):
    done = run("-m", "traceops", *words, cwd=project)
    assert (done.returncode, "was executed" in done.stdout + done.stderr) == (0, False), done.stderr


def test_processes_of_ours_execute_nothing_of_it_either(project):
    done = subprocess.run(
        [*command_of("traceops"), "analyze", "nothing"], cwd=project, env=environment(compiler=True),
        text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 3 and "nothing" in done.stderr, done.stderr


def test_a_rank_has_the_path_that_python_gives_its_script(project):
    theirs, ours = (run(*start, "app/train.py", cwd=project) for start in ([], [as_script.__file__]))
    assert (ours.returncode, ours.stdout) == (0, theirs.stdout), ours.stderr


@pytest.mark.parametrize("words", [["app/own.py"], ["-m", "own"]])
def test_a_program_finds_its_own_modules_whose_names_we_have_loaded(tmp_path, words):
    """It got Python's json and queue, which the capture had loaded before."""
    folder = tmp_path if words[0] == "-m" else tmp_path / "app"
    folder.mkdir(exist_ok=True)
    for name in ("json", "queue", "dataclasses"):
        (folder / f"{name}.py").write_text(f"WHOSE = 'own {name}'\n")
    (folder / "own.py").write_text(
        "import dataclasses, json, queue\nprint(json.WHOSE, queue.WHOSE, dataclasses.WHOSE)\n"
    )
    theirs, ours = (run(*start, *words, cwd=tmp_path) for start in ([], [as_script.__file__]))
    assert theirs.stdout == "own json own queue own dataclasses\n", theirs.stderr
    assert (ours.returncode, ours.stdout) == (0, theirs.stdout), ours.stderr


@pytest.mark.torch
@pytest.mark.slow
def test_a_training_under_torchrun_runs_in_such_a_folder(project):
    (project / "app" / "train.py").write_text("import torch, queue\ntorch.ones(1)\nprint('trained')\n")
    options = ["run", "--nproc", "2", "--hang-timeout", "0", "--all-ranks", "--out", "runs", "--", "app/train.py"]
    done = run("-m", "traceops", *options, cwd=project, TRACEOPS_CAPTURE="")
    assert done.returncode == 3 and done.stdout.count("trained") == 2, done.stderr
