"""What the doctor found to work is what the ranks are started with."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from git_project import git
from started import environment

from traceops.cli import main

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_SCRIPT = """
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
    (tmp_path / "mine.py").write_text(_SCRIPT)
    return tmp_path


def doctor(folder, **content):
    (folder / "doctor.json").write_text(json.dumps({"schema_version": 1, "settings": None, **content}))


def run(folder, *options, wrong="docker7"):
    return subprocess.run(
        [sys.executable, "-m", "traceops", "run", "--device", "cpu", "--nproc", "2", *options, "--", "mine.py"],
        cwd=folder, env=environment(NCCL_SOCKET_IFNAME=wrong), text=True,
        capture_output=True,
    )  # fmt: skip


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


def test_what_env_sets_is_not_removed(folder):
    doctor(folder, settings={"unset": ["NCCL_SOCKET_IFNAME"]})
    done = run(folder, "--settings", "doctor.json", "--env", "NCCL_SOCKET_IFNAME=eth1", "--dry-run")
    words = shlex.split(done.stdout)
    assert "NCCL_SOCKET_IFNAME=eth1" in words and "-u" not in words, done.stderr


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


def test_no_setting_worked(folder, capsys):
    doctor(folder, fallback=4)
    assert main(["run", "--settings", "doctor.json", "--", "mine.py"]) == 2
    said = capsys.readouterr().err
    assert "no multi-GPU setting worked; add --fallback single" in said and "times 4" in said
    assert not (folder / "profile").exists()
    options = ["--settings", "doctor.json", "--fallback", "single", "--dry-run"]
    assert main(["run", "--device", "cpu", *options, "--strategy", "pytorch_ddp"]) == 0
    printed, said = capsys.readouterr()
    assert "--grad-accum 4" in printed and "one rank in the place of 4" in said


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


def test_a_file_of_something_else(folder, capsys):
    (folder / "doctor.json").write_text("[]")
    assert main(["run", "--settings", "doctor.json", "--", "mine.py"]) == 3
    assert "doctor.json" in capsys.readouterr().err


def test_both_sides_of_a_comparison_have_them(repo, capsys):
    doctor(repo, settings={"set": {"NCCL_P2P_DISABLE": "1"}, "unset": ["NCCL_ALGO"]})
    git(repo, "commit", "--quiet", "-am", "newer")
    options = ["--settings", str(repo / "doctor.json"), "--against", "main", "--repeat", "1", "--dry-run"]
    assert main(["run", "--device", "cpu", *options, "--", "train.py"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "torch.distributed.run" in line]
    assert len(lines) == 2
    assert all("env -u NCCL_ALGO " in line and " NCCL_P2P_DISABLE=1 " in line for line in lines)
