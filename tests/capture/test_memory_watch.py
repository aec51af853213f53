"""What is saved where memory runs out on a GPU, by a capture that must not disturb the program."""

import copy
import json
import os
import pickle
import sys
from pathlib import Path

import pytest

from traceops.capture import guard
from traceops.capture.observing import memory
from traceops.capture.observing.memory import MemoryWatch, stored_bytes
from traceops.capture.observing.step_clock import allocator_bytes
from traceops.core.rank_files import OUT_OF_MEMORY, RAN_OUT, SNAPSHOT

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from faults import Faults

pytestmark = pytest.mark.torch

MIB = 1 << 20
TAKEN = {"segments": [], "device_traces": [[]]}
STATS = {
    "allocated_bytes": {"all": {"current": 3 * MIB, "peak": 9 * MIB}},
    "reserved_bytes": {"all": {"current": 8 * MIB, "peak": 20 * MIB}},
    "inactive_split_bytes": {"all": {"current": MIB, "peak": 2 * MIB}},
    "num_alloc_retries": 2,
}


class Gpu:
    """torch.cuda as far as the watch asks it: calls that wait for the first use of a GPU, and what was turned on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.on = False
        self.waiting, self.observers, self.histories = [], [], []
        patch.setattr(torch.cuda, "is_initialized", lambda: self.on)
        patch.setattr(torch.cuda, "_lazy_call", lambda call: self.waiting.append(call))
        patch.setattr(torch.cuda, "memory_allocated", lambda: 3 * MIB)
        patch.setattr(torch.cuda.memory, "_snapshot", lambda: TAKEN)
        patch.setattr(torch.cuda.memory, "_record_memory_history", lambda *a, **k: self.histories.append((a, k)))
        for name, call in (
            ("_cuda_attach_out_of_memory_observer", self.observers.append),
            ("_cuda_isHistoryEnabled", lambda: False),
            ("_cuda_memoryStats", lambda device: STATS),
        ):
            patch.setattr(torch._C, name, call, raising=False)

    def first_use(self) -> None:
        self.on = True
        for call in self.waiting:
            call()


@pytest.fixture(autouse=True, scope="module")
def _torch():
    """Loaded only where a test runs: every worker of pytest collects all of them."""
    global torch
    import torch


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch)


def ran_out(gpu, folder, history=True):
    """A watch from before the first use of a GPU until memory ran out in step 7."""
    watch = MemoryWatch(folder, history=history, steps=lambda: 7)
    watch.install(torch.cuda)
    assert not gpu.observers, "nothing is asked of a GPU that the program has not used"
    gpu.first_use()
    for observer in gpu.observers:
        assert observer(0, 64 * MIB, 100 * MIB, 5 * MIB) is None
    watch.save()
    watch.close()


def test_what_is_saved(gpu, tmp_path):
    ran_out(gpu, tmp_path)
    told = json.loads((tmp_path / RAN_OUT).read_text())
    assert told["step"] == 7 and told["asked_bytes"] == 64 * MIB and told["free_bytes"] == 5 * MIB
    assert told["allocated_bytes"] == 3 * MIB and told["reserved_bytes"] == 8 * MIB and told["retries"] == 2
    assert set(told["held"]) == {"parameters", "gradients", "optimizer_state"}
    for name in (OUT_OF_MEMORY, SNAPSHOT):
        assert pickle.loads((tmp_path / name).read_bytes()) == TAKEN
    assert [how for how, _ in gpu.histories] == [("all",)]
    assert gpu.histories[0][1]["max_entries"] == memory.HISTORY


def test_no_history_without_with_memory(gpu, tmp_path):
    ran_out(gpu, tmp_path, history=False)
    assert not gpu.histories and (tmp_path / OUT_OF_MEMORY).exists()


def test_a_program_that_tries_again_and_again(gpu, tmp_path):
    done = iter(range(9))
    watch = MemoryWatch(tmp_path, history=False, steps=lambda: next(done))
    watch.install(torch.cuda)
    gpu.first_use()
    for _ in range(9):
        gpu.observers[0](0, MIB, 2 * MIB, 0)
    assert json.loads((tmp_path / RAN_OUT).read_text())["step"] == memory._MOST_SAVED - 1


def test_another_rank_ran_out(gpu, tmp_path):
    watch = MemoryWatch(tmp_path / "rank_1", history=True, steps=lambda: 0)
    (tmp_path / "rank_1").mkdir()
    gpu.on = True
    watch.save_beside_others()
    assert not (tmp_path / "rank_1" / SNAPSHOT).exists()
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0" / RAN_OUT).write_text("{}")
    watch.save_beside_others()
    assert (tmp_path / "rank_1" / SNAPSHOT).exists()


def test_no_call_that_fails_reaches_the_program(gpu, tmp_path):
    """Each call that the watch makes fails in turn; torch hears of none, and the files are whole or not there."""
    ours = str(Path(memory.__file__))
    faults = Faults(lambda file: file == ours, frozenset({guard.contained.__code__}))
    small, few = memory.gc.get_objects, [torch.nn.Linear(2, 2).weight]
    memory.gc.get_objects = lambda: few
    try:
        with faults.counted() as calls:
            ran_out(gpu, tmp_path)
        count = len(calls)
        for number in range(count):
            folder = tmp_path / str(number)
            folder.mkdir()
            gpu.on, gpu.waiting, gpu.observers = False, [], []
            with faults.failing(number, copy.copy(OSError(28, os.strerror(28)))):
                ran_out(gpu, folder)
            for path in folder.iterdir():
                json.loads(path.read_text()) if path.suffix == ".json" else pickle.loads(path.read_bytes())
    finally:
        memory.gc.get_objects = small
    assert count > 20


def test_what_takes_the_memory():
    before = stored_bytes("cpu")
    model = torch.nn.Linear(1000, 100, bias=False)  # 400,000 bytes
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    found = stored_bytes("cpu")
    assert found["parameters"] - before["parameters"] == 400_000
    assert found["gradients"] - before["gradients"] == 400_000
    assert found["optimizer_state"] - before["optimizer_state"] == 800_000 + 4  # and the count of steps
    assert stored_bytes("cuda") == {"parameters": 0, "gradients": 0, "optimizer_state": 0}


def test_bytes_at_the_end_of_a_step(gpu):
    assert allocator_bytes(0) == (3 * MIB, 8 * MIB, MIB, 9 * MIB, 20 * MIB)
