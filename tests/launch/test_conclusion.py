"""What a run says at its end: its steps, its traces, what memory held."""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from traceops.capture.environment import host
from traceops.capture.manifest import RankManifest, WindowRecord, write_rank
from traceops.capture.schedule import Schedule
from traceops.core.errors import InputError
from traceops.core.installation import bundled
from traceops.hangs.evidence import Frame
from traceops.hangs.stack_activity import phase_of
from traceops.launch import ended, out_of_memory, session
from traceops.launch.conclusion import find_cause, report_cause, step_lines, waits_for_disk_pct
from traceops.launch.display import Screen
from traceops.launch.plan import Cluster, Plan
from traceops.launch.process import TorchrunResult
from traceops.launch.summarize import summarize_traces
from traceops.memory.model import MemoryChange, MemoryEstimate, RankMemory
from traceops.pipeline.mapping import ranks
from traceops.train.config import TrainConfig
from traceops.train.options import to_argv


def told(ends, within):
    return step_lines([SimpleNamespace(rank=0, step_ends=ends, steps_within=within, steps_beside={})])


@pytest.mark.parametrize(
    "within, said",
    [
        ({}, ""),
        ({"SGD.step": 120}, "; SGD.step are within one"),
        ({"Adam.step": 120}, ""),
        ({"SGD.step": 40}, "; SGD.step runs in 40 of 120, so steps are of two kinds"),
        ({"Adam.step": 40}, "; another optimizer's Adam.step runs in 40 of 120, so steps are of two kinds"),
    ],
)
def test_steps_of_two_kinds_are_told(within, said):
    """A WGAN with three critic steps a generator step: 120 steps were told, and none of its 40 rounds."""
    assert told({"Adam.step": 120}, within) == [f"a step ends where Adam.step returns{said}"]


@pytest.mark.parametrize(
    ("ends", "within", "said"),
    [
        (
            {"Adam.step": 1, "RMSprop.step": 299},
            {"RMSprop.step": 1, "Adam.step": 99},
            "RMSprop.step returns; Adam.step runs in 99 of 300, so steps are of two kinds",
        ),
        ({"SGD.step": 1, "Adam.step": 99}, {"SGD.step": 99}, "Adam.step returns; SGD.step are within one"),
        ({"Adam.step": 99, "GradScaler.update": 1}, {}, "Adam.step or GradScaler.update returns"),
        ({"Adam.step": 1}, {"Adam.step": 5}, "Adam.step returns"),
    ],
)
def test_what_stood_for_its_first_round_only_is_no_end_of_steps(ends, within, said):
    """Both optimizers of a WGAN were told to end steps, and the generator's to be another's."""
    assert told(ends, within) == [f"a step ends where {said}"]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ((0, 0), ""),
        ((1, 0), "; 1 step of an optimizer in another thread is not counted on rank 0"),
        ((0, 40), "; 40 steps of optimizers in other threads are not counted on rank 1"),
        ((40, 40), "; 40 steps of optimizers in other threads are not counted"),
        ((39, 40), "; up to 40 steps of optimizers in other threads are not counted"),
    ],
)
def test_steps_in_other_threads_are_told_whichever_rank_has_them(beside, said):
    """Only those of the first rank were."""
    ranks = [
        SimpleNamespace(rank=rank, step_ends={"Adam.step": 120}, steps_within={}, steps_beside={"SGD.step": number})
        for rank, number in enumerate(beside)
    ]
    assert step_lines(ranks) == [f"a step ends where Adam.step returns{said}"]


@pytest.fixture
def told_of_steps(tmp_path, monkeypatch, capfd):
    """What the launcher says of two ranks that ended after so many steps, having recorded these whole."""
    monkeypatch.setattr(ended, "git_state", lambda folder: None)
    monkeypatch.setattr(ended, "software_versions", dict)
    monkeypatch.setattr(session, "FabricEvidence", lambda *args, **options: None)

    def say(steps, whole, status="finished"):
        out = tmp_path / "run"
        windows = [WindowRecord(0, "rank_0/t.json", whole, len(whole) == 4)]

        def training(*args, **options):
            for rank in range(2):
                own = RankManifest(
                    rank, rank, 2, host(), 1, {"type": "cpu"}, asdict(Schedule()), {},
                    status=status, traces=["rank_0/t.json"], windows=windows, steps=steps,
                )  # fmt: skip
                write_rank(out, own)
            (out / "rank_0" / "t.json").write_text("{}")
            return TorchrunResult(0, None, "")

        monkeypatch.setattr(session, "run", training)
        assert session.launch(Plan("mine", out, Cluster(2), ["train.py"], {}, {})) == 0
        return capfd.readouterr().err

    return say


def test_ranks_with_whole_steps_are_traced(told_of_steps):
    said = told_of_steps(14, [10, 11, 12, 13])
    assert "2 of 2 ranks traced in" in said
    assert "next: traceops analyze" in said


def test_ranks_without_one_are_not_and_what_would_record_them_is_said(told_of_steps):
    said = told_of_steps(10, [])
    assert "0 of 2 ranks recorded a whole step in" in said
    assert "next: run it again with --skip-first 2 --unprofiled 2 --warmup 2 --active 4" in said
    assert "ranks traced" not in said
    assert "traceops analyze" not in said


def test_where_the_program_was_not_too_short_no_schedule_is_proposed(told_of_steps):
    said = told_of_steps(40, [], status="given_way")
    assert "0 of 2 ranks recorded a whole step in" in said
    assert "run it again with" not in said


DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(
    ("error", "said"), [(MemoryError(), "not enough memory"), (KeyError("x"), "KeyError"), (OSError("gone"), "gone")]
)
def test_a_trace_that_cannot_be_summarised_is_named_and_the_others_are(tmp_path, monkeypatch, error, said):
    folder = Path(shutil.copytree(DATA / "ddp4", tmp_path / "ddp4"))
    summarize = ranks.summarize

    def fail(file, *options):
        if file.rank == 2:
            raise error
        return summarize(file, *options)

    monkeypatch.setattr(ranks, "summarize", fail)
    count, [problem] = summarize_traces(folder, {1, 2, 3})
    assert count == 2
    assert "rank_2.pt" in problem
    assert said in problem
    written = {path.name for path in folder.glob("*.summary.*")}
    assert written == {f"rank_{rank}.summary.msgpack.gz" for rank in (1, 3)}


RUNS = Path(__file__).resolve().parents[1] / "data" / "memory" / "runs"
GIB = 1 << 30


def told_of_memory(trains, monkeypatch, name="oom_forward"):
    """What is said of the run in that folder, as one line."""
    plan = Plan(name, RUNS / name, Cluster(2), trains, {}, {})
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    found = find_cause(plan)
    assert found is not None
    report_cause(plan, Screen(), found)
    return " ".join(said.getvalue().split())


def estimated(asked, limit_s):
    rank = RankMemory(0, 7 * GIB, 8 * GIB, 7 * GIB, 8 * GIB, [], [], 1, "forward", "", "", 0)
    change = MemoryChange(
        "half", ["--batch-size", "8", "--grad-accum", "2"], 4 * GIB, 5 * GIB, 3 * GIB, "same samples", "fits"
    )
    return MemoryEstimate(
        1, [], "fake_tensors", asked.config.strategy, asked.world_size, 10, [rank], 7 * GIB, 8 * GIB, 0, 0, 8 * GIB,
        0.02, asked.capacity, "does_not_fit", asked.capacity - 8 * GIB, [change], [], 1.0,
    )  # fmt: skip


def test_of_a_script(monkeypatch):
    text = told_of_memory(["train.py", "--big"], monkeypatch)
    assert "Rank 1 ran out of GPU memory, at forward (plant_memory.py:19)" in text.replace("died: it ", "")
    assert "In step 20, in forward it asked for 5.00 GiB. Tensors held 3.38 GiB: 199.98 MiB parameters" in text
    assert "may have 6.00 GiB in all" in text and "too large: 2.38 GiB more" in text
    assert "plant_memory.py:28 forward" in text and "plant_memory.py:19 forward" in text
    assert (
        "What a change would save, without a GPU: traceops memory --nproc 2 --rank 1 --capacity 6.00GiB -- "
        "train.py" in text
    )


def test_of_a_built_in_training(monkeypatch):
    asked = []
    monkeypatch.setattr(out_of_memory, "_estimated", lambda *of: (asked.append(of[0]), estimated(*of))[1])
    config = TrainConfig(strategy="pytorch_ddp", layers=4, batch_size=16)
    text = told_of_memory([str(bundled("runners", "train.py")), *to_argv(config)], monkeypatch)
    assert (asked[0].config, asked[0].world_size, asked[0].capacity) == (config, 2, 6 * GIB)
    assert "does not fit" in text and "--batch-size 8 --grad-accum 2" in text and "traceops memory --nproc" not in text


def test_an_estimate_that_fails_takes_nothing_else_away(monkeypatch):
    def fails(*of):
        raise InputError("the process that runs the training on fake tensors ended: killed")

    monkeypatch.setattr(out_of_memory, "_estimated", fails)
    config = TrainConfig(strategy="pytorch_ddp")
    text = told_of_memory([str(bundled("runners", "train.py")), *to_argv(config)], monkeypatch)
    assert "too large: 2.38 GiB more" in text and "What would fit is not known" in text


@pytest.mark.parametrize(
    ("files", "phase"),
    [
        (["torch/nn/modules/linear.py:forward", "torch/nn/modules/module.py:_call_impl", "train.py:main"], "forward"),
        (["torch/autograd/graph.py:_engine_run_backward", "torch/_tensor.py:backward", "train.py:main"], "backward"),
        (["torch/optim/adam.py:_init_group", "torch/optim/optimizer.py:wrapper", "train.py:main"], "the optimizer"),
        (["train.py:main"], None),
    ],
)
def test_the_part_of_the_step(files, phase):
    frames = [Frame(name, file) for file, name in (one.split(":") for one in files)]
    assert phase_of(frames) == phase


def test_the_helper_is_ended_after_its_time(monkeypatch):
    ended = []
    helper = SimpleNamespace(end=lambda: ended.append(True))

    class Worker:
        def __enter__(self):
            return helper

        def __exit__(self, *of):
            return None

    class Timer:
        daemon = False

        def __init__(self, seconds, call):
            self.call = call

        def start(self):
            self.call()

        def cancel(self):
            ended.append("cancelled")

    monkeypatch.setattr(out_of_memory, "worker", Worker)
    monkeypatch.setattr(out_of_memory.threading, "Timer", Timer)
    monkeypatch.setattr(out_of_memory, "estimate", lambda *of, within_s: "found")
    assert out_of_memory._estimated("asked", 1.0) == "found" and ended == [True, "cancelled"]


def test_what_linux_says_of_waiting_for_storage(tmp_path):
    assert waits_for_disk_pct(tmp_path / "none") is None
    (tmp_path / "io").write_text("some avg10=1.00 avg60=12.50 avg300=0.40 total=77\nfull avg60=3.00\n")
    assert waits_for_disk_pct(tmp_path / "io") == 12.5
