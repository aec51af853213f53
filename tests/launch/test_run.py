"""Real launches on gloo: two ranks of a training that knows nothing of traceops."""

import gzip
import json
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from hang_run import left_behind
from started import environment

from traceops.core.run_lock import in_use
from traceops.hangs.diagnose import diagnose
from traceops.pipeline.analyze import analyze

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_DEADLOCK_S = 180
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


def test_a_rank_that_leaves_in_the_middle_of_its_capture_is_told_as_that(start, tmp_path):
    schedule = ("--skip-first", "1", "--unprofiled", "1", "--active", "9", "--hang-timeout", "30")
    got, _, err = finish(start("--name", "left", *schedule, "--", "app/train.py", "--steps", "40", "--fail", "leave"))
    assert got == 5 and not left_behind(tmp_path), err
    run = run_json(tmp_path / "profile" / "left")
    assert (run["status"], run["exit_code"]) == ("failed", 5)
    left = {(one["rank"], one["operation"], one["exit_code"]) for one in run["failures"]}
    assert left <= {(0, "exit", 5), (1, "exit", 5)} and left, run["failures"]
    assert all(one["step"] in (9, 10) for one in run["failures"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_run_leaves_its_traces_and_no_process(start, tmp_path, number):
    schedule = ("--skip-first", "0", "--unprofiled", "1", "--warmup", "1", "--active", "5000")
    process = start(*schedule, "--", "app/train.py", "--steps", "6000")
    folder = tmp_path / "profile" / "train"
    deadline = time.monotonic() + _DEADLOCK_S
    while "(active)" not in (line := process.stderr.readline()):
        assert process.poll() is None and time.monotonic() < deadline, line
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
