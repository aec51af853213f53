"""Commands that start the ranks themselves: the capture opens in each process that trains."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from started import LIGHT_TORCH, environment

from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.launch.launchers import check_command, check_script, starts_ranks, wraps_in_data_parallel
from traceops.launch.plan import JOINING, Cluster, Plan
from traceops.pipeline.analyze import analyze

_DEADLOCK_S = 180

# Rank 1 is forked; a process of its own trains beside them, and takes itself for rank 0 of 1 but comes last.
_SCRIPT = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def train(steps):
    model = torch.nn.Linear(8, 8)
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
def work(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    train(17)
    dist.destroy_process_group()
    os.write(1, f"rank {rank} {os.environ['MARK']}\\n".encode())
if __name__ == "__main__":
    ranks = [
        mp.start_processes(work, args=(sys.argv[1],), nprocs=1, join=False, start_method="spawn").processes[0]
    ]
    pid = os.fork()
    if not pid:
        work(1, sys.argv[1])
        sys.exit()
    code = os.waitpid(pid, 0)[1]
    ranks[0].join()
    train(2)
    sys.exit(code or ranks[0].exitcode or 5)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_that_the_command_starts_are_traced_and_its_exit_code_is_the_runs(tmp_path):
    (tmp_path / "train.py").write_text(_SCRIPT)
    own = tmp_path / "own"
    own.mkdir()
    light = f"import runpy\nrunpy.run_path({str(LIGHT_TORCH / 'sitecustomize.py')!r})\n"  # which it stands before
    (own / "sitecustomize.py").write_text(f"import os\nos.environ['MARK'] = 'mine'\n{light}")
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(own), env["PYTHONPATH"]])
    command = [sys.executable, "-m", "traceops", "run", "--launcher", "none", "--out", "out"]
    done = subprocess.run(
        [*command, "--", sys.executable, "train.py", str(tmp_path / "store")],
        cwd=tmp_path, env=env, text=True, capture_output=True, timeout=_DEADLOCK_S, check=False,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert {"rank 0 mine", "rank 1 mine"} <= set(done.stdout.splitlines())
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (run["world_size"], run["exit_code"], run["status"]) == (2, 5, "failed")
    assert [(rank["rank"], rank["steps"], len(rank["traces"])) for rank in run["ranks"]] == [(0, 17, 1), (1, 17, 1)]
    assert run["profiled_steps"] == [10, 11, 12, 13]
    assert "2 of 2 ranks traced" in done.stderr and "the command ended with 5" in done.stderr


_ENDS = """
import os, sys, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
if sys.argv[1] == "exits":
    os._exit(7)
raise KeyboardInterrupt
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "rank_code", "said"),
    [
        # On a busy machine the launcher may not have seen the rank yet.
        ("exits", 7, None, "in step 6; how it ended is not known|no rank was seen to fail"),
        ("stops", 130, 130, "rank 0 on .* failed first, exit code 130"),
    ],
)
def test_how_a_rank_ended_is_no_more_than_is_known(tmp_path, how, code, rank_code, said):
    """os._exit(7) was told as exit code 0, and Ctrl-C as 1."""
    (tmp_path / "train.py").write_text(_ENDS)
    command = [sys.executable, "-m", "traceops", "run", "--launcher", "none", "--out", "out"]
    done = subprocess.run(
        [*command, "--", sys.executable, "train.py", how],
        cwd=tmp_path, env=environment(), text=True, capture_output=True, timeout=_DEADLOCK_S, check=False,
    )  # fmt: skip
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (done.returncode, run["exit_code"], run["ranks"][0]["exit_code"]) == (code, code, rank_code)
    assert re.search(said, done.stderr) and "exit code 0" not in done.stderr, done.stderr


_CHAINS = """
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
print("first")
spec = PathFinder.find_spec("sitecustomize", [f for f in sys.path if f != {own!r}])
spec.loader.exec_module(module_from_spec(spec))
"""


def test_a_sitecustomize_that_runs_the_next_one_itself_runs_once(tmp_path):
    """The next one is ours, which runs the next one itself."""
    for name, text in (("one", _CHAINS.format(own=str(tmp_path / "one"))), ("two", 'print("second")')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(text)
    path = os.pathsep.join(map(str, (JOINING, tmp_path / "one", tmp_path / "two")))
    shown = "import sys; print(sum(type(one).__name__ == '_Joins' for one in sys.meta_path))"
    done = subprocess.run(
        [sys.executable, "-c", shown], text=True, capture_output=True, timeout=_DEADLOCK_S, check=False,
        env={**os.environ, "PYTHONPATH": path, "TRACEOPS_CAPTURE": "{}"},
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["first", "second", "1"], "")


def plan(*command, **options):
    return Plan("mine", Path("/runs/mine"), Cluster(1), list(command), {}, {}, launcher="none", **options)


def test_the_command_runs_as_it_is_and_python_scripts_by_this_python():
    assert plan("accelerate", "launch", "train.py").command() == ["accelerate", "launch", "train.py"]
    assert plan("train.py", "--a").command() == [sys.executable, "train.py", "--a"]
    assert plan("-m", "pkg", "--a").command() == [sys.executable, "-m", "pkg", "--a"]


def test_what_a_torchrun_around_us_told_us_is_not_told_on(monkeypatch):
    outer = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "OTHER": "1", "PYTHONPATH": "/mine"}
    assert plan("x").environment(outer)["RANK"] == "3"  # of srun, say, or set by hand
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    env = plan("x").environment(outer)
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(env) and env["OTHER"] == "1"
    assert env["PYTHONPATH"].split(os.pathsep)[:2] == [str(JOINING), "/mine"]
    assert "OMP_NUM_THREADS" not in env


def test_what_cannot_be_started_is_refused_with_what_can(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="not a program"):
        check_command(["no-such-program"])
    with pytest.raises(UsageError, match="after --"):
        check_command([])
    with pytest.raises(UsageError, match="does not exist"):
        check_command(["gone.py"])
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "deepspeed").touch(mode=0o755)
    with pytest.raises(UsageError, match=r"traceops run -- deepspeed train\.py --zero 3"):
        check_script(["deepspeed", "train.py", "--zero", "3"])


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("if 1: mp.spawn(w, nprocs=2)", "mp.spawn"),
        ("torch.multiprocessing.spawn(\n  w)", "multiprocessing.spawn"),
        ("from accelerate import notebook_launcher\nnotebook_launcher(f)", "notebook_launcher"),
        ("# mp.spawn(w)\nimport torch", None),
        ("subprocess.spawn(x)", None),
    ],
)
def test_a_script_that_seems_to_start_its_ranks_is_recognised(tmp_path, text, call):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert starts_ranks([str(script), "--epochs", "3"]) == call
    assert starts_ranks(["-m", "pkg"]) is None and starts_ranks([str(tmp_path / "gone.py")]) is None


@pytest.mark.torch
@pytest.mark.parametrize("options", [["--nproc", "2"], ["--against", "main"], ["--skip-first", "0"]])
def test_options_without_a_meaning_are_refused(options, capsys):
    assert main(["run", "--launcher", "none", *options, "--", "echo", "hi"]) == 2
    assert options[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "wraps"),
    [
        ("model = nn.DataParallel(model)", True),
        ("model = torch.nn.DataParallel(model, device_ids=[0, 1])", True),
        ("    net = DataParallel(net)", True),
        ("model = DistributedDataParallel(model)", False),
        ("model = nn.parallel.DistributedDataParallel(model)", False),
        ("# nn.DataParallel(model) was slow", False),
        ("model = FullyShardedDataParallel(model)", False),
    ],
)
def test_a_script_under_data_parallel_is_recognised(tmp_path, line, wraps):
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{line}\n")
    assert wraps_in_data_parallel([str(script)]) == wraps
    assert not wraps_in_data_parallel(["-m", "pkg"]) and not wraps_in_data_parallel([str(tmp_path / "gone.py")])


_TRAIN = """
import time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

def slow_collate(items):
    time.sleep(0.12)
    return torch.tensor(items)

def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters())
    method = ("spawn", "forkserver")[dist.get_rank()]
    items = [[1.0, 2.0, 3.0, 4.0]] * 80
    for batch in DataLoader(
        items, batch_size=2, num_workers=1, collate_fn=slow_collate, multiprocessing_context=method
    ):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_the_report_names_the_line_that_they_are_in(tmp_path):
    (tmp_path / "train.py").write_text(_TRAIN)
    run = [sys.executable, "-m", "traceops", "run", "--nproc", "2", "--out", "run", "--", str(tmp_path / "train.py")]
    done = subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        [seen] = (tmp_path / "run" / f"rank_{rank}").glob("loader.0.*.jsonl")
        assert any("slow_collate" in str(json.loads(line)) for line in seen.read_text().splitlines())
    told = [f"{finding.rule}: {finding.message}" for finding in analyze(tmp_path / "run").findings]
    assert any(one.startswith("TO-I002") and "slow_collate (train.py:7)" in one for one in told), told
