"""Real launches on gloo, and what the launcher does for itself: it may fail, the training's exit code stays."""

import copy
import errno
import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import count, cycle
from pathlib import Path

import psutil
import pytest
from faults import Faults
from git_project import git
from hang_run import left_behind
from started import environment

import traceops.launch.process as process
import traceops.launch.session as session
from traceops.capture.environment import host
from traceops.capture.manifest import RankManifest, write_rank
from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.core.run_lock import RunLock, in_use
from traceops.hangs.diagnose import diagnose
from traceops.launch import ended as run_document
from traceops.launch.display import Screen
from traceops.launch.plan import Cluster, Plan
from traceops.launch.process import LauncherGuard, TorchrunResult
from traceops.launch.signals import Received
from traceops.pipeline.analyze import analyze

_DEADLOCK_S = 600
SECRET = "correct-horse-battery"

_SCRIPT = """
import argparse, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from helper import learning_rate
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=14)
parser.add_argument("--fail")
parser.add_argument("--api-key")
options = parser.parse_args()
assert __name__ == "__main__"
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate("lr.txt"))
# A worker process: when the ranks are ended, torch reports its death in the middle of ours.
batches = torch.utils.data.DataLoader(torch.randn(8 * options.steps, 64), batch_size=8, num_workers=1)
for step, batch in enumerate(batches):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    if options.steps > 100:
        time.sleep(0.02)
        if step == 5:
            open(f"fifth.{rank}", "w").close()
    if options.fail == "leave" and step == 9:
        os._exit(5)  # says goodbye to nobody
    if rank == 1 and step == 9:
        if options.fail == "raise":
            raise ValueError("boom")
        if options.fail == "exit":
            sys.exit(7)
        if options.fail == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
print("rank", rank, "of", dist.get_world_size(), sys.argv[1:])
dist.destroy_process_group()
""".replace("import argparse, os,", "import argparse, os, signal,")


@pytest.fixture
def start(tmp_path):
    """Starts `traceops run` in a folder with a script in app/ and a data file beside it."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "train.py").write_text(_SCRIPT)
    (tmp_path / "app" / "helper.py").write_text("def learning_rate(path):\n    return float(open(path).read())\n")
    (tmp_path / "lr.txt").write_text("0.01")

    def run(*arguments, compiler=False):
        return subprocess.Popen(
            [sys.executable, "-m", "traceops", "run", *arguments],
            cwd=tmp_path, env=environment(compiler=compiler), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return run


def finish(process):
    out, err = process.communicate(timeout=_DEADLOCK_S)
    return process.returncode, out, err


def steps_in(trace):
    with gzip.open(trace) as handle:
        names = [event.get("name", "") for event in json.load(handle)["traceEvents"]]
    return sorted(int(name.split("#")[1]) for name in names if name.startswith("ProfilerStep#"))


def run_json(out):
    return json.loads((out / "run.json").read_text())


@pytest.mark.torch
@pytest.mark.slow
def test_an_unmodified_script(start, tmp_path):
    words = ["--steps", "15", "--api-key", SECRET]  # which the script gets and nothing records
    code, out, err = finish(start("--env", f"MY_API_KEY={SECRET}", "--", "app/train.py", *words, compiler=True))
    assert code == 0, err
    assert out.splitlines() == [f"[rank 0] rank 0 of 2 {words}"]  # the others are in logs/, see below
    assert "a step ends where SGD.step returns" in err
    folder = tmp_path / "profile" / "train"
    assert "next: traceops analyze profile/train" in err and "USDT" not in err
    run = run_json(folder)
    assert (run["status"], run["exit_code"], run["world_size"], run["backend"]) == ("finished", 0, 2, "gloo")
    assert run["argv"] == ["app/train.py", *words[:-1], "***"] and run["ranks_missing"] == []
    assert run["command"][2:4] == ["--env", "MY_API_KEY=***"]
    recorded = [path for path in folder.rglob("*.json") if path.parent.name != "logs"]
    assert len(recorded) >= 3 and not [path for path in recorded if SECRET in path.read_text()]
    assert (run["profiled_steps"], run["steps"]) == ([10, 11, 12, 13], 15)
    for rank in run["ranks"]:
        assert [steps_in(folder / trace) for trace in rank["traces"]] == [[10, 11, 12, 13]]
        assert rank["step_ends"] == {"SGD.step": 15} and rank["steps_within"] == {}
        assert rank["exit_code"] == 0 and len(rank["unprofiled_step_ms"]) >= 5, "on a CPU step 2 is recorded"
        log = folder / "logs" / f"rank_{rank['rank']}.stdout.log"
        assert log.read_text() == f"rank {rank['rank']} of 2 {words}\n"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail", "code", "reason", "cause", "fix"),
    [
        (
            "raise",
            1,
            "ValueError: boom",
            r"died.*?: it crashed, at <module> \(train\.py:\d+\): Value",
            "Read the traceback",
        ),
        ("exit", 7, "SystemExit: 7", "died: it ended with exit code 7", "Read the end of that rank's log"),
        ("kill", 137, "killed by SIGKILL", r"died.*?: it was killed by SIGKILL \([^)]*\)\.", "dmesg -T"),
    ],
)
def test_the_exit_code_and_cause_of_the_rank_that_failed_first(start, tmp_path, fail, code, reason, cause, fix):
    schedule = ("--skip-first", "1", "--unprofiled", "1", "--active", "9", "--hang-timeout", "30")
    got, _, err = finish(start("--name", "bad", *schedule, "--", "app/train.py", "--steps", "40", "--fail", fail))
    assert got == code and not left_behind(tmp_path), err
    assert f"failed first, exit code {code}" in err and "rank 1 on " in err and reason in err
    last_words = err[err.index("failed first") :].splitlines()[0] + err.partition("✖ ")[2]
    assert " ".join(last_words.split()).count(reason) == 1, "its last words were said in each sentence"
    assert "ChildFailedError" not in err, "torchrun's own report belongs in its log"
    concluded = " ".join(err.partition("✖ ")[2].split())
    assert re.match(rf"Rank 1 {cause}", concluded) and fix in concluded, err
    shown = re.search(r"^\[rank 1\] .*ValueError: boom$", err, re.M)  # torch puts a mark of its own before it
    assert bool(shown) == (fail == "raise"), "a rank that fails is not quiet"
    folder = tmp_path / "profile" / "bad"
    run = run_json(folder)
    assert (run["status"], run["exit_code"], run["failed_rank"]) == ("failed", code, 1)
    assert run["ranks"][1]["exit_code"] == code and run["ranks"][0]["exit_code"] in (1, 143)
    assert [(root.rule, root.ranks) for root in diagnose(folder).roots] == [("TO-H004", (1,))]
    (trace,) = run["ranks"][0]["traces"]
    assert steps_in(folder / trace)[0] == 4 and not run["ranks"][0]["windows"][0]["complete"]


@pytest.mark.torch
@pytest.mark.slow
def test_a_rank_that_leaves_in_the_middle_of_its_capture_is_told_as_that(start, tmp_path):
    schedule = ("--skip-first", "1", "--unprofiled", "1", "--active", "9", "--hang-timeout", "30")
    got, _, err = finish(start("--name", "left", *schedule, "--", "app/train.py", "--steps", "40", "--fail", "leave"))
    assert got == 5 and not left_behind(tmp_path), err
    run = run_json(tmp_path / "profile" / "left")
    assert (run["status"], run["exit_code"]) == ("failed", 5)
    left = {(one["rank"], one["operation"], one["exit_code"]) for one in run["failures"]}
    assert left <= {(0, "exit", 5), (1, "exit", 5)} and left, run["failures"]
    assert all(one["step"] in (9, 10) for one in run["failures"])


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_run_leaves_its_traces_and_no_process(start, tmp_path, number):
    schedule = ("--skip-first", "0", "--unprofiled", "1", "--warmup", "1", "--active", "5000")
    process = start(*schedule, "--", "app/train.py", "--steps", "6000")
    folder = tmp_path / "profile" / "train"
    deadline = time.monotonic() + _DEADLOCK_S
    while "(active)" not in (line := process.stderr.readline()):
        assert process.poll() is None and time.monotonic() < deadline, line
    while len(list(tmp_path.glob("fifth.*"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 6  # a supervisor, torchrun, two ranks, their data-loader workers
    process.send_signal(number)
    code, _, err = finish(process)
    while in_use(folder):  # of a launcher that was killed, by who ends the ranks in its place
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    run = run_json(folder)
    if number == signal.SIGKILL:
        assert (run["status"], run["signal"], run["exit_code"]) == ("cut_short", None, None)
        assert "the run was cut short" in str(analyze(str(folder), cache=False).findings)
    else:
        assert code == 128 + number, err
        ended = ("interrupted", signal.Signals(number).name, 128 + number)
        assert (run["status"], run["signal"], run["exit_code"]) == ended
    # The signal reaches one rank first: the other may see its end, as an error of gloo, before its own signal.
    told = [(rank["status"], rank["exit_code"]) for rank in run["ranks"]]
    own = ("terminated", 130 if number == signal.SIGINT else 143)  # a SIGHUP to which no rank listens is a SIGTERM
    assert own in told and set(told) <= {own, ("failed", 1)}
    for rank in run["ranks"]:
        assert 3 in steps_in(folder / rank["traces"][0])


@pytest.mark.torch
@pytest.mark.slow
def test_the_printed_command_runs_when_pasted(start, tmp_path):
    code, printed, err = finish(start("--dry-run", "--env", "GREETING=two words", "--", "-m", "app.train"))
    assert code == 0 and not (tmp_path / "profile").exists(), err
    (tmp_path / "helper.py").write_text((tmp_path / "app" / "helper.py").read_text())
    done = subprocess.run(
        printed, shell=True, cwd=tmp_path, text=True, capture_output=True, timeout=_DEADLOCK_S,
        executable="/bin/bash",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = run_json(tmp_path / "profile" / "train")
    assert (run["status"], run["exit_code"]) == ("finished", 0)
    assert [len(rank["traces"]) for rank in run["ranks"]] == [1, 1]


@pytest.mark.torch
@pytest.mark.slow
def test_a_built_in_strategy_and_summaries_that_take_the_place_of_its_traces(start, tmp_path):
    small = ("--layers", "1", "--dim", "32", "--heads", "2", "--vocab", "64", "--seq-len", "16")
    code, out, err = finish(start("--strategy", "pytorch_ddp", "--nproc", "2", "--active", "2", "--summarize", *small))
    assert code == 0, out + err
    folder = tmp_path / "profile" / "pytorch_ddp"
    run = run_json(folder)
    assert (run["strategy"], run["device"], run["backend"]) == ("pytorch_ddp", "cpu", "gloo")
    assert [rank["profiled_steps"] for rank in run["ranks"]] == [[10, 11], [10, 11]]
    assert run["training"]["config"]["dim"] == 32 and run["unprofiled_step_ms"] > 0
    assert "2 traces summarised" in out + err
    traces = sorted(folder.glob("rank_*/*.trace.json.gz"))
    assert len(traces) == 2
    whole = analyze(str(folder), cache=False)
    for trace in traces:
        trace.unlink()
    assert analyze(str(folder), cache=False) == whole


@pytest.mark.torch
@pytest.mark.slow
def test_a_training_is_ended_once_its_capture_is_complete(tmp_path, start):
    _, told = start("--nproc", "2", "--name", "mine", "--stop", "--", "app/train.py", "--steps", "20000").communicate(
        timeout=_DEADLOCK_S
    )
    run = json.loads((tmp_path / "profile" / "mine" / "run.json").read_text())
    assert "capture complete at step" in told and "2 of 2 ranks traced" in told
    assert (run["status"], run["exit_code"], run["failed_rank"]) == ("finished", 0, None)
    assert run["steps"] < 20_000 and all(rank["traces"] for rank in run["ranks"])


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_that_is_active_can_be_stopped_by_its_folder(tmp_path, start):
    training = start("--nproc", "2", "--name", "mine", "--", "app/train.py", "--steps", "20000")
    manifests = [tmp_path / "profile" / "mine" / f"rank_{rank}" / "manifest.json" for rank in (0, 1)]
    while training.poll() is None and not all(path.exists() for path in manifests):
        time.sleep(0.1)
    stopping = start("--stop", "profile/mine")
    assert stopping.communicate(timeout=_DEADLOCK_S) == ("", "") and stopping.returncode == 0
    training.communicate(timeout=_DEADLOCK_S)
    assert training.returncode == 143


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("ends", "code"), [("", 3), ("raise SystemExit(4)", 4)])
def test_a_training_of_which_nothing_was_captured_ends_with_3_if_it_ended_well(tmp_path, start, ends, code):
    (tmp_path / "app" / "nothing.py").write_text(f"import torch\n{ends}\n")
    training = start("--nproc", "1", "--name", "mine", "-q", "--", "app/nothing.py")
    _, told = training.communicate(timeout=_DEADLOCK_S)
    assert training.returncode == code
    assert json.loads((tmp_path / "profile" / "mine" / "run.json").read_text())["exit_code"] == (
        0 if code == 3 else code
    )
    assert ("run folder" in told, "0 of 1 ranks traced" in told) == (False, code != 3)


_PRINTS_VARIABLES = """
import json, os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(14):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
names = ("NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_ALGO")
print(json.dumps({name: os.environ.get(name) for name in names}))
dist.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(_PRINTS_VARIABLES)
    return tmp_path


def doctor(folder, **content):
    (folder / "doctor.json").write_text(json.dumps({"schema_version": 1, "settings": None, **content}))


def run(folder, *options, wrong="docker7"):
    return subprocess.run(
        [sys.executable, "-m", "traceops", "run", "--device", "cpu", "--nproc", "2", *options, "--", "mine.py"],
        cwd=folder, env=environment(NCCL_SOCKET_IFNAME=wrong), text=True,
        capture_output=True,
    )  # fmt: skip


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_have_what_the_doctor_set_and_not_what_it_removed(folder):
    advised = {"set": {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring"}, "unset": ["NCCL_SOCKET_IFNAME"]}
    doctor(folder, settings=advised)
    done = run(folder, "--settings", "doctor.json", "--env", "NCCL_ALGO=Tree")
    assert done.returncode == 0, done.stderr
    seen = {"NCCL_P2P_DISABLE": "1", "NCCL_SOCKET_IFNAME": None, "NCCL_ALGO": "Tree"}
    logs = folder / "profile" / "mine" / "logs"
    assert [json.loads((logs / f"rank_{rank}.stdout.log").read_text()) for rank in (0, 1)] == [seen, seen]
    line = "settings of doctor.json: NCCL_P2P_DISABLE=1; without NCCL_SOCKET_IFNAME; --env decides NCCL_ALGO"
    assert line in done.stderr
    document = json.loads((folder / "profile" / "mine" / "run.json").read_text())
    assert document["settings"] == {
        "source": "doctor.json", "set": {"NCCL_P2P_DISABLE": "1"}, "unset": ["NCCL_SOCKET_IFNAME"],
        "overruled": ["NCCL_ALGO"],
    }  # fmt: skip
    assert document["environment"]["NCCL_P2P_DISABLE"] == "1"
    assert "NCCL_SOCKET_IFNAME" not in document["environment"]
    assert not (folder / "profile" / "mine" / "evidence").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_what_env_sets_is_not_removed(folder):
    doctor(folder, settings={"unset": ["NCCL_SOCKET_IFNAME"]})
    done = run(folder, "--settings", "doctor.json", "--env", "NCCL_SOCKET_IFNAME=eth1", "--dry-run")
    words = shlex.split(done.stdout)
    assert "NCCL_SOCKET_IFNAME=eth1" in words and "-u" not in words, done.stderr


@pytest.mark.torch
@pytest.mark.slow
def test_a_dry_run_shows_what_is_removed_and_can_be_pasted(folder):
    doctor(folder, settings={"set": {"NCCL_P2P_DISABLE": "a b"}, "unset": ["NCCL_SOCKET_IFNAME", "NCCL_ALGO"]})
    done = run(folder, "--settings", "doctor.json", "--dry-run")
    assert done.stdout.startswith("env -u NCCL_SOCKET_IFNAME -u NCCL_ALGO "), done.stderr
    words = shlex.split(done.stdout)
    program = words.index(sys.executable)
    shown = subprocess.run(
        [*words[:program], "env"], env={**os.environ, "NCCL_ALGO": "Ring"}, text=True, capture_output=True
    )
    variables = dict(line.partition("=")[::2] for line in shown.stdout.splitlines())
    assert variables["NCCL_P2P_DISABLE"] == "a b" and "NCCL_ALGO" not in variables


@pytest.mark.torch
@pytest.mark.slow
def test_no_setting_worked(folder, capsys):
    doctor(folder, fallback=4)
    assert main(["run", "--settings", "doctor.json", "--", "mine.py"]) == 2
    said = capsys.readouterr().err
    assert "no multi-GPU setting worked; add --fallback single" in said and "times 4" in said
    assert not (folder / "profile").exists()
    options = ["--settings", "doctor.json", "--fallback", "single", "--dry-run"]
    assert main(["run", "--device", "cpu", *options, "--strategy", "pytorch_ddp"]) == 0
    printed, said = capsys.readouterr()
    assert "--grad-accum 4" in printed and "one rank in place of 4" in said


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "nproc"),
    [([], 3), (["--env", "CUDA_VISIBLE_DEVICES=GPU-1f, GPU-2e"], 2), (["--env", "CUDA_VISIBLE_DEVICES="], 2)],
)
def test_a_rank_for_each_gpu_that_the_doctor_left(env, nproc, folder, capsys, monkeypatch):
    """Without any GPU, two ranks on the CPU."""
    monkeypatch.setattr("traceops.cli.run.gpu_count", lambda: 4)
    doctor(folder, settings={"set": {"CUDA_VISIBLE_DEVICES": "0,1,3"}})
    assert main(["run", "--settings", "doctor.json", *env, "--dry-run", "--", "mine.py"]) == 0
    assert f"--nproc-per-node={nproc} " in capsys.readouterr().out


@pytest.mark.torch
@pytest.mark.slow
def test_a_file_of_something_else(folder, capsys):
    (folder / "doctor.json").write_text("[]")
    assert main(["run", "--settings", "doctor.json", "--", "mine.py"]) == 3
    assert "doctor.json" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.slow
def test_both_sides_of_a_comparison_have_them(repo, capsys):
    doctor(repo, settings={"set": {"NCCL_P2P_DISABLE": "1"}, "unset": ["NCCL_ALGO"]})
    git(repo, "commit", "--quiet", "-am", "newer")
    options = ["--settings", str(repo / "doctor.json"), "--against", "main", "--repeat", "1", "--dry-run"]
    assert main(["run", "--device", "cpu", *options, "--", "train.py"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "torch.distributed.run" in line]
    assert len(lines) == 2
    assert all("env -u NCCL_ALGO " in line and " NCCL_P2P_DISABLE=1 " in line for line in lines)


HERE = str(Path(session.__file__).parent)
ERRORS = [
    OSError(errno.ENOSPC, "No space left on device"),
    PermissionError(errno.EACCES, "Permission denied"),
    RuntimeError("no"),
    MemoryError(),
]
_ARITHMETIC = ("exit_code", "shell_code")


@pytest.fixture
def own_signals():
    """What restores them fails here too: they would stay for all tests that come after."""
    handlers = {number: signal.getsignal(number) for number in (1, 2, 3, 15)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Runs the launcher around a training that has just ended, into a new folder each time."""
    numbers = count()
    monkeypatch.setattr(run_document, "git_state", lambda folder: None)
    monkeypatch.setattr(run_document, "software_versions", dict)
    monkeypatch.setattr(session, "FabricEvidence", lambda *args, **options: None)

    def run(returncode, damage=lambda out: None):
        out = tmp_path / str(next(numbers))
        plan = Plan("mine", out, Cluster(2), ["train.py"], {}, {}, log_files=True)

        def training(*args, **options):
            for rank in range(2):
                note = "no optimizer step was seen"
                write_rank(
                    out, RankManifest(rank, rank, 2, host(), 1, {"type": "cpu"}, {}, {}, traces=["t"], note=note)
                )
            log = out / "logs" / "none" / "attempt_0" / "0" / "stderr.log"
            log.parent.mkdir(parents=True)
            log.write_text("a line")
            damage(out)
            return TorchrunResult(returncode, None, "torchrun's own words")

        monkeypatch.setattr(session, "run", training)
        return session.launch(plan), out

    return run


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize(
    ("launcher", "nproc", "returncode", "rank_codes", "code"),
    [
        ("none", 1, 6, (None,), 6),
        ("none", 1, 143, (None,), 143),
        ("torchrun", 1, 1, (6,), 6),
        ("torchrun", 1, 1, (0,), 0),
        ("torchrun", 1, 1, (None,), 143),
        ("torchrun", 2, 1, (6, 6), 143),
    ],
)
def test_a_command_or_an_only_rank_that_handles_a_signal_has_its_own_exit_code(
    tmp_path, launcher, nproc, returncode, rank_codes, code
):
    for rank, own in enumerate(rank_codes):
        write_rank(tmp_path, RankManifest(rank, rank, nproc, host(), 1, {"type": "cpu"}, {}, {}, exit_code=own))
    plan = Plan("mine", tmp_path, Cluster(nproc), ["train.py"], {}, {}, launcher=launcher)
    ended = TorchrunResult(returncode, signal.SIGTERM, "")
    assert run_document.how_it_ended(plan, ended, [], [], Screen()).code == code


@pytest.mark.usefixtures("own_signals")
def test_no_failure_of_the_launchers_own_changes_the_exit_code(launched, monkeypatch, capsys):
    guard, record = str(Path(HERE, "containment.py")), session._record
    faults = Faults(lambda file: file.startswith(HERE) and file != guard, frozenset({record.__code__}))

    def recorded(*arguments):
        with contextmanager():
            return record(*arguments)

    monkeypatch.setattr(session, "_record", recorded)
    contextmanager = faults.counted
    for _ in range(2):  # what is imported when it is first needed is in the first run only; the last one counts
        assert launched(7)[0] == 7
    calls = dict(reversed([(call, number) for number, call in enumerate(faults.calls)]))
    calls = {call: number for call, number in calls.items() if call.called not in _ARITHMETIC}
    assert len(calls) > 60, "one of each line and what it calls"
    for (call, number), error, code in zip(calls.items(), cycle(ERRORS), cycle([7, 7, 7, 7, 0, 0, 0, 0])):
        capsys.readouterr()
        contextmanager = partial(faults.failing, number, copy.copy(error))
        ended, out = launched(code)
        assert ended == code and (faults.raised or code == 0), call
        said = capsys.readouterr().err
        run = json.loads((out / "run.json").read_text())
        assert run["status"] == ("failed" if code else "finished") or "run.json failed" in said, call
        assert not list(out.glob(".*")), "nothing half-written is left"


@pytest.mark.usefixtures("own_signals")
def test_a_damaged_manifest_hides_no_other_rank(launched, capsys):
    code, out = launched(0, lambda out: (out / "rank_1" / "manifest.json").write_text("{"))
    run = json.loads((out / "run.json").read_text())
    assert code == 0 and run["status"] == "finished"
    assert [rank["rank"] for rank in run["ranks"]] == [0] and run["ranks_missing"] == [1]
    assert "rank_1/manifest.json is damaged" in capsys.readouterr().err


@pytest.mark.usefixtures("own_signals")
def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(session, "run", lambda *args, **options: pytest.fail("started"))
    with pytest.raises(UsageError, match=r"file/out cannot be written \(Not a directory.*choose another --out"):
        session.launch(Plan("mine", tmp_path / "file" / "out", Cluster(1), ["train.py"], {}, {}))


@pytest.mark.usefixtures("own_signals")
def test_ranks_are_waited_for_where_they_cannot_be_watched(tmp_path, monkeypatch, capsys):
    def damaged(folder):
        raise ValueError("no such record")

    monkeypatch.setattr(process, "read_progress", damaged)
    ended = process.run(
        ["sh", "-c", "sleep 0.3; exit 5"], {"PATH": "/bin:/usr/bin"}, progress=tmp_path, ranks=1, logs=None,
        rank_of=lambda local: local, screen=Screen(), received=Received(), guard=LauncherGuard(RunLock(None)),
    )  # fmt: skip
    assert ended.returncode == 5
    assert capsys.readouterr().err.count("watching the ranks failed: ValueError: no such record") == 1
