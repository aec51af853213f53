"""One rank in the place of many trains the same model."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from started import environment

from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.launch.plan import RANK, alone, stands_for
from traceops.train.config import TrainConfig

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_TRAINED = Path(__file__).with_name("trained.py")
_SMALL = (
    "--layers", "1", "--dim", "32", "--heads", "2", "--vocab", "64", "--seq-len", "16", "--batch-size", "2",
    "--grad-accum", "2", "--precision", "fp64", "--steps", "4", "--unprofiled", "1", "--skip-first", "1",
    "--warmup", "1", "--active", "1", "--lr", "0.01",
)  # fmt: skip


@pytest.fixture(autouse=True)
def on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("traceops.cli.run.gpu_count", lambda: 0)


def train(capsys, folder, *options):
    """Run what --dry-run prints, with a look at each step; returns what was seen and what was said."""
    assert main(["run", "--device", "cpu", *options, *_SMALL, "--dry-run"]) == 0
    printed, said = capsys.readouterr()
    words = shlex.split(printed)
    nproc = next(word for word in words if word.startswith("--nproc-per-node"))
    script = words.index(str(RANK)) + 1
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", nproc, str(_TRAINED)]
    settings = json.dumps({"out": str(folder / "out"), "schedule": {
        "skip_first": 1, "unprofiled": 1, "warmup": 1, "active": 1}})  # fmt: skip
    done = subprocess.run(
        [*command, str(folder / "losses.json"), *words[script:]],
        env=environment(CUDA_VISIBLE_DEVICES="", TRACEOPS_CAPTURE=settings),
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "losses.json").read_text()), said


@pytest.mark.parametrize("strategy", ["pytorch_ddp", "zero2"])
def test_the_model_after_every_step_is_that_of_all_ranks(strategy, capsys, tmp_path):
    (tmp_path / "many").mkdir()
    (tmp_path / "one").mkdir()
    options = ("--strategy", strategy, "--nproc", "3")
    many, _ = train(capsys, tmp_path / "many", *options)
    one, said = train(capsys, tmp_path / "one", *options, "--fallback", "single")
    assert (many["world_size"], one["world_size"]) == (3, 1)
    assert "one rank in the place of 3" in said and "gradient accumulation 6" in said
    assert "one rank       1      2             6              12" in said
    assert ("pytorch_ddp for zero2" in said) == (strategy == "zero2")
    assert len(one["losses"]) == len(many["losses"]) == 4
    assert one["losses"] == pytest.approx(many["losses"], rel=1e-9)
    assert one["losses"][0] != pytest.approx(one["losses"][1], rel=1e-4), "steps too small to tell runs apart"


def test_a_whole_run(tmp_path):
    command = [sys.executable, "-m", "traceops", "run", "--device", "cpu", "--nproc", "3", "--fallback", "single"]
    done = subprocess.run(
        [*command, *_SMALL], cwd=tmp_path, env=environment(compiler=True), text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "profile" / "pytorch_ddp-single" / "run.json").read_text())
    assert (run["world_size"], run["training"]["samples_per_step"]) == (1, 3 * 2 * 2)
    assert run["fallback"] == {
        "kind": "single", "ranks": 3, "grad_accum": 6, "strategy": "pytorch_ddp", "asked": "pytorch_ddp",
        "batch_size": 2,
    }  # fmt: skip
    assert run["settings"] is None


def test_a_script_is_told_how_to_do_it_itself(tmp_path, capsys):
    Path("mine.py").write_text("")
    assert main(["run", "--nproc", "8", "--nnodes", "2", "--fallback", "single", "--dry-run", "--", "mine.py"]) == 0
    printed, said = capsys.readouterr()
    assert "--nproc-per-node=1" in printed and "--nnodes=1" in printed and "--standalone" in printed
    assert "multiply its gradient accumulation by 16" in said


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [
        ({"nproc": 4, "nnodes": 2, "told": 16}, 8),  # what the user says comes first
        ({"nproc": None, "nnodes": 1, "told": 16}, 16),
        ({"nproc": None, "nnodes": 3, "told": None}, 6),
    ],
)
def test_the_ranks_it_stands_for(asked, ranks):
    assert stands_for(node_rank=None, here=2, **asked) == ranks


def test_what_one_rank_cannot_stand_for_is_refused():
    with pytest.raises(UsageError, match="first node only"):
        stands_for(4, 2, 1, None, 2)
    with pytest.raises(UsageError, match="leave --step-unit out"):
        alone(TrainConfig(step_unit="batch"), 4)


def test_ranks_that_share_a_model_have_no_stand_in():
    with pytest.raises(UsageError, match="the ranks of pytorch_pp share a model"):
        alone(TrainConfig(strategy="pytorch_pp"), 2)
