"""The command after -- of `traceops run`: who starts its ranks, how many, and what is said of it."""

import json
import subprocess
import sys

import pytest
from started import environment

from traceops.cli.command_words import name_of, understand
from traceops.core.errors import UsageError

_DEADLOCK_S = 600


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "launch.sh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("accelerate", "deepspeed", "torchrun", "mpirun", "bash"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (programs / "trl").write_text("#!/opt/env/bin/python\n")
    (programs / "trl").chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr("traceops.cli.command_words._check_python", lambda name: None)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --lr 1",
        "python -m pkg.train --lr 1",
        "python -c pass",
        "python -X faulthandler train.py",
        "accelerate launch --num_processes 2 train.py",
        "deepspeed --num_gpus 2 train.py",
        "mpirun -n 2 python train.py",
        "bash launch.sh",
        "torchrun --max-restarts 3 --nproc-per-node 2 train.py",
        "torchrun --nnodes 1:4 train.py",
        "torchrun --no-python ./train",
        "python -m torch.distributed.launch --nproc_per_node 2 train.py",
        "python -m accelerate.commands.launch train.py",
    ],
)
def test_what_starts_its_own_ranks_runs_as_it_is(command):
    found = understand(command.split(), None)
    assert found.own and list(found.trains) == command.split()
    assert found.note and not found.options


@pytest.mark.parametrize(
    ("command", "options", "trains"),
    [
        ("torchrun --nproc-per-node 4 train.py --lr 1", {"nproc": 4}, "train.py --lr 1"),
        ("torchrun --nproc_per_node=4 train.py --nproc-per-node 9", {"nproc": 4}, "train.py --nproc-per-node 9"),
        ("torchrun --standalone --nproc-per-node gpu -m pkg.train a", {"nproc": None}, "-m pkg.train a"),
        ("torchrun train.py", {"nproc": 1}, "train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", {"nproc": 2}, "train.py"),
        ("-m torch.distributed.run --nproc-per-node 2 train.py", {"nproc": 2}, "train.py"),
        (
            "torchrun --nnodes 2 --node-rank 1 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint a:29500 train.py",
            {"nproc": 8, "nnodes": 2, "node_rank": 1, "rdzv_backend": "c10d", "rdzv_endpoint": "a:29500"},
            "train.py",
        ),
        (
            "torchrun --nproc-per-node 2 --master-port 29501 train.py",
            {"nproc": 2, "master_addr": "127.0.0.1", "master_port": 29501},
            "train.py",
        ),
    ],
)
def test_ranks_of_torchrun_are_started_by_ours(command, options, trains):
    found = understand(command.split(), None)
    assert not found.own
    assert (dict(found.options), list(found.trains)) == (options, trains.split())
    assert "in place of torchrun" in found.note


def test_python_runs_as_ranks_where_their_number_is_given():
    found = understand(["python", "-u", "-O", "train.py", "--lr", "1"], 2)
    assert (found.own, list(found.trains), dict(found.options)) == (False, ["train.py", "--lr", "1"], {"nproc": 2})
    assert dict(found.environment) == {"PYTHONUNBUFFERED": "1", "PYTHONOPTIMIZE": "1"}
    assert understand(["python", "train.py"], None, ours=True).options == {"nproc": 1}
    assert understand(["torchrun", "--nproc-per-node", "4", "train.py"], 2).options["nproc"] == 2


def test_a_script_a_module_and_a_program_of_pip_stay_what_each_rank_runs(folder):
    for words in (["train.py", "--lr", "1"], ["-m", "pkg"]):
        found = understand(words, None)
        assert (found.own, list(found.trains), found.note) == (False, words, "")
    assert list(understand(["trl", "sft"], None).trains) == [str(folder / "bin" / "trl"), "sft"]


def test_a_script_that_spawns_its_ranks_runs_as_it_is_unless_their_number_is_given(folder):
    (folder / "train.py").write_text("mp.spawn(work, nprocs=4)")
    found = understand(["train.py", "--lr", "1"], None)
    assert found.own and found.note.startswith("train.py calls mp.spawn")
    assert not understand(["train.py"], 2).own


def test_variables_before_the_command_are_its_environment():
    found = understand(["OMP_NUM_THREADS=4", "torchrun", "--nproc-per-node", "2", "train.py"], None)
    assert (dict(found.environment), found.options) == ({"OMP_NUM_THREADS": "4"}, {"nproc": 2})


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("trian.py", r"trian\.py does not exist; did you mean train\.py\?"),
        ("python trian.py", r"did you mean train\.py\?"),
        ("torchrun --nproc-per-node 2 trian.py", r"did you mean train\.py\?"),
        ("srun --ntasks 2 python train.py --lr 1", r"srun is not installed.*traceops run -- train\.py --lr 1"),
        ("python", "name the script"),
        ("colossal_train", "neither a script here nor an installed program"),
    ],
)
def test_what_is_not_there_is_refused_with_what_can_be_done(command, said):
    with pytest.raises(UsageError, match=said):
        understand(command.split(), None)


def test_a_run_is_called_after_its_script():
    for command in ("accelerate launch --x 1 train.py", "python train.py", "-m pkg.train", "torchrun -m pkg.train"):
        assert name_of(command.split()) == "train"
    assert name_of(["mpirun", "prog"]) == "mpirun"


# Real ranks on gloo.

_SCRIPT = """
import os, torch, torch.distributed as dist
if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
if dist.is_initialized():
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "ranks", "said"),
    [
        (["python", "train.py"], 1, "python train.py runs as it is"),
        (["python", "-m", "train"], 1, "python -m train runs as it is"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], 2, "2 ranks of train.py, started by traceops"),
        (["torchrun", "--max-restarts", "1", "--standalone", "--nproc-per-node", "2", "train.py"], 2, "torchrun runs"),
        (["accelerate", "launch", "--num_processes", "2", "train.py"], 2, "accelerate runs as it is"),
        (["deepspeed", "--num_gpus", "2", "train.py"], 2, "deepspeed runs as it is"),
    ],
    ids=["python", "module", "torchrun", "torchrun-as-it-is", "accelerate", "deepspeed"],
)
def test_the_ranks_that_are_asked_for_are_captured(command, ranks, said, folder, monkeypatch):
    (folder / "train.py").write_text(_SCRIPT)
    starts = f'exec {sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 train.py "$@"\n'
    for name in ("accelerate", "deepspeed"):  # each starts torch's own launcher, or ranks as it does
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{starts}")
    torchrun = folder / "bin" / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    env = environment()
    env["PATH"] = f"{folder / 'bin'}:/bin:/usr/bin"
    traceops = [sys.executable, "-m", "traceops", "run", "--quick", "--out", "out", "--"]
    done = subprocess.run(
        [*traceops, *command], cwd=folder, env=env, text=True, capture_output=True, timeout=_DEADLOCK_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    run = json.loads((folder / "out" / "run.json").read_text())
    assert [(rank["rank"], len(rank["traces"])) for rank in run["ranks"]] == [(rank, 1) for rank in range(ranks)]
    assert f"{ranks} of {ranks} ranks traced" in done.stderr
