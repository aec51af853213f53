"""The training script as torchrun runs it: trains, says what it trained, refuses what cannot work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from started import ROOT, environment

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = str(ROOT / "runners" / "train.py")
SMALL = ["--layers", "2", "--dim", "32", "--heads", "2", "--seq-len", "16", "--device", "cpu"]


def torchrun(folder: Path, *argv: str, compiler: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, SCRIPT, *argv], cwd=folder, env=environment(compiler=compiler), capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("argv", "samples"),
    [
        (["--strategy", "zero3", "--grad-accum", "2", "--activation-checkpointing"], 16),
        (["--strategy", "pytorch_ddp", "--grad-accum", "2", "--step-unit", "batch"], 8),
    ],
)
def test_trains_and_documents_itself(tmp_path: Path, argv: list[str], samples: int) -> None:
    done = torchrun(tmp_path, *SMALL, *argv, compiler="zero3" in argv)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(next(tmp_path.rglob("run.json")).read_text())
    training = manifest["training"]
    assert manifest["strategy"] == training["strategy"] == argv[1]
    assert training["syncs_in_backward"] is True
    assert training["samples_per_step"] == samples
    assert training["tokens_per_step"] == samples * 16
    assert training["config"]["layers"] == 2
    assert training["parameters"] == 1024 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 9 * 32) + 2 * 32
    traces = list(tmp_path.rglob("rank_*/*.pt.trace.json.gz"))
    assert {trace.parent.name for trace in traces} == {"rank_0", "rank_1"}


def test_what_the_backend_cannot_do_is_refused_with_the_reason(tmp_path: Path) -> None:
    done = torchrun(tmp_path, *SMALL, "--backend", "nccl")
    assert done.returncode != 0
    assert "--backend nccl" in done.stderr
    assert not list(tmp_path.rglob("run.json"))


def test_without_torchrun_it_says_how_to_start(tmp_path: Path) -> None:
    clean = {name: value for name, value in environment().items() if name != "RANK"}
    done = subprocess.run(
        [sys.executable, SCRIPT], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "torchrun" in done.stderr
