"""A run that ran out of GPU memory ends in one screen: recorded on H200, told here without a GPU."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from traceops.core.errors import InputError
from traceops.core.installation import bundled
from traceops.hangs.evidence import Frame
from traceops.hangs.stack_activity import phase_of
from traceops.launch import out_of_memory
from traceops.launch.display import Screen
from traceops.launch.plan import Cluster, Plan
from traceops.launch.telling import find_cause, tell_cause
from traceops.memory.model import MemoryChange, MemoryEstimate, RankMemory
from traceops.train.config import TrainConfig
from traceops.train.options import to_argv

RUNS = Path(__file__).resolve().parents[1] / "data" / "memory" / "runs"
GIB = 1 << 30


def told(trains, monkeypatch, name="oom_forward"):
    """What is said of the run in that folder, as one line."""
    plan = Plan(name, RUNS / name, Cluster(2), trains, {}, {})
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    found = find_cause(plan)
    assert found is not None
    tell_cause(plan, Screen(), found)
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
    text = told(["train.py", "--big"], monkeypatch)
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
    text = told([str(bundled("runners", "train.py")), *to_argv(config)], monkeypatch)
    assert (asked[0].config, asked[0].world_size, asked[0].capacity) == (config, 2, 6 * GIB)
    assert "does not fit" in text and "--batch-size 8 --grad-accum 2" in text and "traceops memory --nproc" not in text


def test_an_estimate_that_fails_takes_nothing_else_away(monkeypatch):
    def fails(*of):
        raise InputError("the process that runs the training on fake tensors ended: killed")

    monkeypatch.setattr(out_of_memory, "_estimated", fails)
    config = TrainConfig(strategy="pytorch_ddp")
    text = told([str(bundled("runners", "train.py")), *to_argv(config)], monkeypatch)
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
