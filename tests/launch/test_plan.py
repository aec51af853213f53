"""What `traceops run` plans from its options, and one rank that trains in place of many."""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from changed import replace
from started import environment

from traceops.capture.manifest import RankManifest
from traceops.capture.progress import Progress
from traceops.cli import main
from traceops.cli import run as command
from traceops.cli.training_options import RUN
from traceops.core import torch_here
from traceops.core.errors import UsageError, reported_codes
from traceops.launch.ended import with_last_steps
from traceops.launch.outcome import Failure, first_failure, left_early, with_exit_codes
from traceops.launch.plan import RANK, Cluster, Fallback, Plan, alone, parse_assignments, stands_for
from traceops.train.config import TrainConfig


def traceops_run(*argv):
    parser = argparse.ArgumentParser()
    RUN.add_to(parser)
    return command.main(parser.parse_args(argv))


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("traceops.cli.run.gpu_count", lambda: 0)
    (tmp_path / "train.py").write_text("")
    return tmp_path


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--steps", "11"], r"needs 14 steps.*only 11"),
        (["--active", "0"], "--active 0"),
        (["--step-unit", "batch", "--grad-accum", "16"], "--grad-accum 16"),
        (["--backend", "nccl", "--device", "cpu"], "nccl"),
        (["--device", "cuda"], "no GPU"),
        (["--env", "NCCL_DEBUG"], "KEY=VALUE"),
        (["--nnodes", "2"], "--rdzv-endpoint"),
        (["--nnodes", "2", "--master-addr", "a"], "--node-rank"),
        (["--nproc", "0"], "--nproc 0"),
        (["--", "missing.py"], "missing.py does not exist"),
        (["--", "no-such-program", "run"], "neither a script here nor an installed program"),
        (["--", "-m"], "name the module"),
        (["--layers", "3", "--", "train.py"], "--layers is for built-in strategies"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_is_written(argv, reason, empty_folder):
    with pytest.raises(UsageError, match=reason) as refused:
        traceops_run(*argv)
    assert refused.value.exit_code == 2
    assert not (empty_folder / "profile").exists()


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("traceops.cli.run.gpu_count", lambda: 2)
    with pytest.raises(UsageError, match="--nproc 4: this machine has 2 GPUs"):
        traceops_run("--nproc", "4", "--", "train.py")
    assert traceops_run("--nproc", "4", "--device", "cpu", "--dry-run", "--", "train.py") == 0


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_without_torch_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch_here, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install torch"):
        traceops_run("--", "train.py")


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_a_folder_with_another_run_is_refused_unless_its_name_was_ours_to_choose(empty_folder, capsys):
    taken = empty_folder / "profile" / "train"
    (taken / "rank_0").mkdir(parents=True)
    (taken / "rank_0" / "x.pt.trace.json.gz").write_text("")
    for argv in (["--name", "train"], ["--out", "profile/train"]):
        with pytest.raises(UsageError, match=r"another run; add --overwrite"):
            traceops_run(*argv, "--", "train.py")
    assert traceops_run("--dry-run", "--", "train.py") == 0
    assert "profile/train-2" in capsys.readouterr().out
    assert traceops_run("--dry-run", "--overwrite", "--", "train.py") == 0
    assert "profile/train/" in capsys.readouterr().out
    assert (taken / "rank_0" / "x.pt.trace.json.gz").exists(), "a dry run removes nothing"


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_dry_run_prints_what_would_run(capsys, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    argv = ["--nproc", "3", "--active", "6", "--with-stack", "--env", "A=b c", "--dry-run"]
    assert traceops_run(*argv, "--", "train.py", "--lr", "1", "--", "x y") == 0
    words = shlex.split(capsys.readouterr().out)
    settings = dict(word.split("=", 1) for word in words[: next(i for i, w in enumerate(words) if "=" not in w)])
    assert json.loads(settings["TRACEOPS_CAPTURE"])["schedule"] == {"active": 6}
    assert json.loads(settings["TRACEOPS_CAPTURE"])["with_stack"] is True
    assert (settings["A"], settings["OMP_NUM_THREADS"]) == ("b c", "1")
    assert "--standalone" in words and "--nproc-per-node=3" in words
    assert words[-7:] == ["--", str(RANK), "train.py", "--lr", "1", "--", "x y"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert traceops_run("--dry-run", "--", "train.py") == 0
    assert "OMP_NUM_THREADS" not in capsys.readouterr().out


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_several_nodes_meet_as_torchrun_has_it():
    elastic = Cluster(8, 2, rdzv_endpoint="head:29400").torchrun_options("name")
    assert elastic[2:] == ["--rdzv-backend=c10d", "--rdzv-endpoint=head:29400", "--rdzv-id=name"]
    static = Cluster(8, 2, node_rank=1, master_addr="head", master_port=5).torchrun_options("name")
    assert static[2:] == ["--node-rank=1", "--master-addr=head", "--master-port=5"]


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_assignments_keep_what_follows_the_first_sign():
    assert parse_assignments(["A=1=2", "B="]) == {"A": "1=2", "B": ""}


_REPORT = """
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 5653)
Root Cause (first observed failure):
[0]:
  rank      : 2 (local_rank: 2)
  exitcode  : {code} (pid: 5654)
"""


def manifest(rank, status="failed", exit_code=1, ended_ns=0, error=None):
    return RankManifest(rank, rank, 3, "h", 1, {"type": "cpu"}, {}, {}, status, exit_code=exit_code,
                        ended_ns=ended_ns, error=error)  # fmt: skip


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_the_first_failure_is_the_cause_not_the_echo():
    reported = reported_codes(_REPORT.format(code=-9))
    assert reported == {0: 1, 2: -9}
    ranks = [manifest(0, ended_ns=5, error="E: echo"), manifest(2, "running", None)]
    assert first_failure(ranks, reported).rank == 2
    assert first_failure(ranks, reported).exit_code == 137
    completed = with_exit_codes(ranks, reported, default=None)
    assert (completed[1].exit_code, completed[1].status) == (137, "failed")
    raised = [manifest(0, ended_ns=9, error="E: echo"), manifest(1, exit_code=7, ended_ns=3, error="E: cause")]
    assert first_failure(raised, {0: 1, 1: 7}) == Failure(1, 7, "E: cause")
    # one that left no manifest at all: os._exit(3)
    assert first_failure([], reported_codes(_REPORT.format(code=3))) == Failure(2, 3, "exit code 3")
    assert first_failure([manifest(0, "finished", 0)], {}) is None


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_a_rank_that_is_killed_after_it_ended_well_did_not_end_with_exit_code_0():
    ranks = [manifest(0, "given_way", 0), manifest(1, "finished", 0), manifest(2, "finished", 0)]
    completed = with_exit_codes(ranks, {0: -11, 1: -15}, default=None)
    assert [(rank.exit_code, rank.status) for rank in completed] == [
        (139, "failed"), (0, "finished"), (0, "finished"),
    ]  # fmt: skip
    assert completed[0].error == "killed by SIGSEGV"


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize(("reported", "code"), [({0: 1}, 1), ({0: -2}, 130), ({0: -15}, 130), ({}, 130)])
def test_an_interrupted_rank_has_the_exit_code_that_torchrun_saw(reported, code):
    """With CUDA, Python 3.12 ended with 1 after Ctrl-C, where it should end by SIGINT."""
    interrupted = [manifest(0, "terminated", 130, error="KeyboardInterrupt")]
    assert with_exit_codes(interrupted, reported, default=None)[0].exit_code == code


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_a_rank_that_somebody_ended_comes_before_those_that_lost_it():
    """Torchrun ended rank 0 with SIGTERM, too, after it had raised."""
    lost = manifest(0, exit_code=143, ended_ns=5, error="RuntimeError: Connection closed by peer [::1]:1")
    ranks = [lost, manifest(1, "terminated", 143, ended_ns=3)]
    assert first_failure(ranks, {0: -15, 1: -15}) == Failure(1, 143, "ended by SIGTERM")
    assert first_failure(ranks, {1: -15, 0: -15}).rank == 0, "torchrun saw rank 0 end first"
    # One that could not write its manifest any more, as its disk was full.
    ranks = [lost, manifest(1, "running", 1, ended_ns=9, error="OSError: [Errno 27] File too large")]
    assert first_failure(ranks, {0: -15, 1: 1}) == Failure(1, 1, "OSError: [Errno 27] File too large")


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_a_run_that_somebody_ended_with_sigterm_says_so():
    """It ended with torchrun's code 1, and without a word."""
    ranks = [manifest(0, "terminated", 143, ended_ns=3), manifest(1, "finished", 0, ended_ns=2)]
    assert first_failure(ranks, {0: -15}) == Failure(0, 143, "ended by SIGTERM")
    assert first_failure([manifest(0, "running", None)], {0: -15}).exit_code == 143
    assert first_failure(ranks, {0: -15, 1: 5}).exit_code == 5, "torchrun ends the others of a rank that fails"


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("gone", [(), (0,), (0, 1), (1,), (1, 0)])
def test_a_rank_that_left_is_found_however_late_we_look(gone):
    """Rank 1 called os._exit(0). Where both ended between two looks, the looks say nothing of the order."""
    failure = Failure(0, 1, "RuntimeError: Connection reset by peer")
    ranks = [manifest(0, ended_ns=9, error=failure.reason), manifest(1, "running", None, ended_ns=None)]
    assert left_early(ranks, gone, failure, {0: 1}) == Failure(1, 0, "it ended while the others still needed it")


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_a_rank_that_did_not_end_first_is_not_the_one_that_left():
    failure = Failure(0, 1, "RuntimeError: Connection reset by peer")
    echo = manifest(0, ended_ns=9, error=failure.reason)
    later, ended_by_torchrun = manifest(1, "finished", 0, ended_ns=12), manifest(1, "running", None)
    elsewhere = replace(manifest(1, "running", None, ended_ns=None), host="another")
    assert left_early([echo, later], (0, 1), failure, {0: 1}) is None
    assert left_early([echo, ended_by_torchrun], (0,), failure, {0: 1, 1: -15}) is None
    assert left_early([echo, elsewhere], (0,), failure, {0: 1}) is None, "its own launcher knows how it ended"
    own = Failure(0, 1, "ValueError: bad batch")
    assert left_early([echo, replace(elsewhere, host="h")], (1,), own, {0: 1}) is None


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_a_rank_that_torchrun_killed_out_of_impatience_is_not_the_first():
    log = (
        "W torch/distributed/elastic/multiprocessing/api.py:1031] Unable to shutdown process 4295 via 15, forcefully "
        "exiting via 9\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 4295)\n"
        "Root Cause (first observed failure):\n"
        "  rank      : 3 (local_rank: 3)\n  exitcode  : 3 (pid: 4296)\n"
    )

    assert reported_codes(log) == {2: -15, 3: 3}
    assert first_failure([], reported_codes(log)) == Failure(3, 3, "exit code 3")


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_a_script_is_told_how_much_to_accumulate_and_the_samples_of_a_step():
    fallback = Fallback(8)
    plan = Plan("mine", Path("/runs/mine"), Cluster(1), ["train.py"], {}, {}, fallback=fallback)
    assert plan.environment({})["TRACEOPS_FALLBACK_RANKS"] == "8" and "TRACEOPS_FALLBACK_RANKS=8" in plan.shell({})
    assert [line.split() for line in fallback.table()[1:3]] == [
        ["of", "script", "1", "4", "16", "64"],
        ["1", "8", "8", "32", "128", "512"],
    ]
    _, built_in = alone(replace(TrainConfig(), batch_size=4, grad_accum=2), 8)
    assert [line.split() for line in built_in.table()] == [
        ["ranks", "batch", "accumulation", "samples", "a", "step"],
        ["all", "ranks", "8", "4", "2", "64"],
        ["one", "rank", "1", "4", "16", "64"],
    ]


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_steps_after_a_ranks_last_word_are_counted():
    """Ray kills its workers at the end: run.json had 13 steps, those until the window's end, of 40."""
    killed, done = (replace(manifest(rank, ended_ns=ended), steps=13) for rank, ended in ((0, None), (1, 5)))
    last = [Progress(rank, 1, "done", 40, None, 0) for rank in (0, 1)]
    assert [rank.steps for rank in with_last_steps([killed, done], last)] == [40, 13]
    assert [rank.steps for rank in with_last_steps([killed, done], [])] == [13, 13]
    earlier = [replace(record, pid=2) for record in last]  # of an attempt before: torchrun has begun anew
    assert [rank.steps for rank in with_last_steps([killed, done], earlier)] == [13, 13]


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
@pytest.mark.torch
def test_torchrun_takes_no_option_of_the_scripts():
    """`--nproc` of a script's was "ambiguous" to it, and nothing ran."""
    from torch.distributed.run import parse_args

    script = ["train.py", "--nproc", "3", "--no", "-m", "x y", "--", "--help"]
    words = Plan("mine", Path("/runs/mine"), Cluster(1), script, {}, {}).command()
    parsed = parse_args(words[words.index("torch.distributed.run") + 1 :])
    assert parsed.training_script == str(RANK)
    assert parsed.training_script_args == script


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_settings_name_the_schedule_and_the_folder_and_options_win(empty_folder, capsys):
    (empty_folder / "traceops.toml").write_text('[run]\nfolder = "runs"\nskip_first = 20\nactive = 8\n')
    assert traceops_run("--dry-run", "--active", "3", "--", "train.py") == 0
    printed = capsys.readouterr().out
    assert f'"out": "{empty_folder}/runs/train"' in printed
    assert '"schedule": {"skip_first": 20, "active": 3}' in printed


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("active = 0", r"traceops.toml: run: --active 0"),
        ("activ = 3", "did you mean active"),
        ("folder = 3", "run.folder must be a folder"),
    ],
)
def test_settings_that_cannot_work_are_named_with_their_file(table, reason, empty_folder):
    (empty_folder / "traceops.toml").write_text(f"[run]\n{table}\n")
    with pytest.raises(UsageError, match=reason):
        traceops_run("--dry-run", "--", "train.py")


@pytest.mark.torch
@pytest.mark.usefixtures("empty_folder")
def test_only_an_active_run_can_be_stopped(empty_folder):
    with pytest.raises(UsageError, match="no run is active in profile/x"):
        traceops_run("--stop", "profile/x")
    with pytest.raises(UsageError, match=r"traceops run --stop -- train\.py"):
        traceops_run("--stop", "train.py")


_TRAINED = Path(__file__).with_name("trained.py")
_SMALL = (
    "--layers", "1", "--dim", "32", "--heads", "2", "--vocab", "64", "--seq-len", "16", "--batch-size", "2",
    "--grad-accum", "2", "--precision", "fp64", "--steps", "4", "--unprofiled", "1", "--skip-first", "1",
    "--warmup", "1", "--active", "1", "--lr", "0.01",
)  # fmt: skip


@pytest.fixture
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


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("strategy", ["pytorch_ddp", "zero2"])
def test_the_model_after_every_step_is_that_of_all_ranks(strategy, capsys, tmp_path):
    (tmp_path / "many").mkdir()
    (tmp_path / "one").mkdir()
    options = ("--strategy", strategy, "--nproc", "3")
    many, _ = train(capsys, tmp_path / "many", *options)
    one, said = train(capsys, tmp_path / "one", *options, "--fallback", "single")
    assert (many["world_size"], one["world_size"]) == (3, 1)
    assert "one rank in place of 3" in said and "gradient accumulation 6" in said
    assert "one rank       1      2             6              12" in said
    assert ("pytorch_ddp for zero2" in said) == (strategy == "zero2")
    assert len(one["losses"]) == len(many["losses"]) == 4
    assert one["losses"] == pytest.approx(many["losses"], rel=1e-9)
    assert one["losses"][0] != pytest.approx(one["losses"][1], rel=1e-4), "steps too small to tell runs apart"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("on_the_cpu")
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


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("on_the_cpu")
def test_a_script_is_told_how_to_do_it_itself(tmp_path, capsys):
    Path("mine.py").write_text("")
    assert main(["run", "--nproc", "8", "--nnodes", "2", "--fallback", "single", "--dry-run", "--", "mine.py"]) == 0
    printed, said = capsys.readouterr()
    assert "--nproc-per-node=1" in printed and "--nnodes=1" in printed and "--standalone" in printed
    assert "multiply its gradient accumulation by 16" in said


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("on_the_cpu")
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


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("on_the_cpu")
def test_what_one_rank_cannot_stand_for_is_refused():
    with pytest.raises(UsageError, match="first node only"):
        stands_for(4, 2, 1, None, 2)
    with pytest.raises(UsageError, match="leave --step-unit out"):
        alone(TrainConfig(step_unit="batch"), 4)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("on_the_cpu")
def test_ranks_that_share_a_model_have_no_stand_in():
    with pytest.raises(UsageError, match="the ranks of pytorch_pp share a model"):
        alone(TrainConfig(strategy="pytorch_pp"), 2)
