"""Whatever fails in the capture: the script's exit code, output and result are those without it."""

import copy
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
from faults import Faults

from traceops.capture import guard
from traceops.capture.observing import memory
from traceops.capture.observing.memory import MemoryWatch, stored_bytes
from traceops.capture.observing.step_clock import allocator_bytes
from traceops.core.rank_files import OUT_OF_MEMORY, RAN_OUT, SNAPSHOT


@pytest.fixture(autouse=True)
def _signals_as_before():
    """A capture whose call to give SIGTERM back fails keeps it, and another test's SIGTERM would then end pytest."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    from fault_table import Table

    made = Table(tmp_path_factory.mktemp("faults"))
    made.run()
    return made


@pytest.fixture(scope="module")
def clean(table):
    outcome, calls = table.clean()
    assert (outcome.code, outcome.traced, outcome.reason) == (3, 2, None)
    return outcome, calls


@pytest.mark.torch
@pytest.mark.slow
def test_every_call_of_the_capture_may_fail(table, clean):
    from fault_table import ERRORS

    outcome, calls = clean
    # One of what each module calls; every call with every error: python tests/capture/fault_table.py
    chosen = {(call.file, call.called): number for number, call in reversed(list(enumerate(calls)))}
    called = {name for _, name in chosen}
    assert {"pwrite", "mkdir", "Path.replace", "profile.start", "profile.step", "profile.stop"} & called
    assert len(chosen) > 120
    for number, error in zip(chosen.values(), cycle(ERRORS), strict=False):
        failed = table.failing(number, error)
        assert (failed.code, failed.printed) == (outcome.code, outcome.printed), calls[number]
        assert failed.reason is not None or failed.traced == outcome.traced, calls[number]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("step", range(0, 9, 2))
def test_a_disk_that_is_full_from_a_step_on(table, clean, step):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(number):
        if number == step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # no file of this process can grow

    try:
        full = table.run(during=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (full.code, full.printed) == (clean[0].code, clean[0].printed)
    assert full.traced == (0 if step < 4 else 1 if step < 8 else 2)
    assert full.reason["operation"] in ("heartbeat", "export", "compress", "manifest")
    assert full.reason["step"] >= step


@pytest.mark.torch
@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_the_capture_is_the_scripts(table, clean):
    number = next(n for n, call in enumerate(clean[1]) if call.called.endswith("export_chrome_trace"))
    stopped = table.failing(number, KeyboardInterrupt())
    assert stopped.code == 130 and stopped.traced == 0
    assert (stopped.reason["operation"], stopped.reason["error"]) == ("export", "KeyboardInterrupt")


@pytest.mark.torch
@pytest.mark.slow
def test_what_a_signal_handler_of_the_script_raises_is_the_scripts():
    from traceops.capture.guard import Guard
    from traceops.core.capture_failure import CaptureOperation

    class OutOfTime(Exception):
        pass

    def alarm(number, frame):
        raise OutOfTime

    heard = []
    guard = Guard(lambda operation, error: heard.append((operation, type(error))))
    before = signal.signal(signal.SIGUSR1, alarm)
    try:
        with pytest.raises(OutOfTime):
            guard.run(CaptureOperation.EXPORT, os.kill, os.getpid(), signal.SIGUSR1)
        guard.run(CaptureOperation.EXPORT, int, "no number")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [(CaptureOperation.EXPORT, OutOfTime), (CaptureOperation.EXPORT, ValueError)]


FORKS = """
import os
from traceops.capture.guard import Guard
from traceops.core.capture_failure import CaptureOperation

guard = Guard(lambda operation, error: None)
assert guard.run(CaptureOperation.RECORD, lambda: 7) == 7
child = os.fork()
if child == 0:
    os._exit(0 if guard.run(CaptureOperation.RECORD, lambda: 7) is None else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_forked_process_captures_nothing():
    """In a process of its own: a fork of one with torch's threads may never get a lock that they hold."""
    subprocess.run([sys.executable, "-c", FORKS], check=True)


@pytest.mark.torch
@pytest.mark.slow
def test_the_heartbeat_never_writes_into_a_file_of_the_scripts(tmp_path):
    from traceops.capture.progress import ProgressWriter

    writer = ProgressWriter(tmp_path, 0)
    os.close(writer._fd)  # as a script does that closes all it did not open
    with (tmp_path / "log.txt").open("w") as log:
        assert log.fileno() == writer._fd
        log.write("the script's\n")
        with pytest.raises(OSError, match="Bad file descriptor"):
            writer.write("active", 1, None)
        writer.write("active", 2, None)
    assert (tmp_path / "log.txt").read_text() == "the script's\n"


@pytest.mark.torch
@pytest.mark.slow
def test_with_a_responder_too(table, clean):
    from traceops.capture.threads import our_threads

    threads = len(our_threads())
    watched = table.run(evidence=True)
    assert (watched.code, watched.printed, watched.traced) == (3, clean[0].printed, 2)
    assert len(our_threads()) == threads + 1, "a daemon, which ends with the process"


@pytest.mark.torch
@pytest.mark.slow
def test_room_is_looked_at_before_the_trace_is_written(table, clean, monkeypatch):
    from traceops.capture import trace_file
    from traceops.core.capture_failure import cause_text, read_failure

    usage = trace_file.shutil.disk_usage("/")
    monkeypatch.setattr(trace_file.shutil, "disk_usage", lambda path: usage._replace(free=20 << 20))
    full = table.run()
    assert (full.code, full.printed, full.traced) == (3, clean[0].printed, 0)
    failure = read_failure(full.reason)
    assert failure.operation == "room" and failure.no_space and failure.free_bytes == 20 << 20
    assert "no space left on device (needs about 3" in cause_text(failure) and "21.0 MB free" in cause_text(failure)


@pytest.mark.torch
@pytest.mark.slow
def test_a_disk_without_a_free_inode_has_no_room(table, clean, monkeypatch):
    from traceops.capture import trace_file
    from traceops.core.capture_failure import read_failure

    disk = SimpleNamespace(f_files=100, f_favail=1)
    monkeypatch.setattr(trace_file.os, "statvfs", lambda path: disk)
    full = table.run()
    assert (full.code, full.printed, full.traced) == (3, clean[0].printed, 0)
    assert read_failure(full.reason).operation == "room" and read_failure(full.reason).no_space


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", ["new\nline", 'tab\t "quotes" back\\slash %d {}', "\udcff"])
def test_odd_names_of_folders_work(table, tmp_path, name):
    from traceops.traces.discover import discover

    out = tmp_path / name
    odd = table.run(out=out)
    assert odd.code == 3 and odd.reason is None
    assert len([file for window in discover(str(out)).windows for file in window.files]) == 2


_EXPLICIT = """
import sys, torch, traceops
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with traceops.capture(sys.argv[1], schedule=traceops.Schedule(0, 1, 1, 1)) as profiler:
    while not profiler.done:
        optimizer.step()
        profiler.step()
print(profiler.steps)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_folder_that_cannot_be_made_costs_the_capture_only(python, tmp_path):
    (tmp_path / "file").write_text("")
    done = python("-c", _EXPLICIT, "file/run")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("traceops:")]
    assert len(said) == 1 and "the capture ended early: Not a directory while it was set up, in step 0" in said[0]


@pytest.mark.torch
@pytest.mark.slow
def test_an_error_that_cannot_say_itself_has_its_name():
    from traceops.capture.guard import describe

    class Odd(Exception):
        def __str__(self):
            raise ValueError("no words")

    assert describe(Odd()) == "Odd" and describe(ValueError(" x ")) == "ValueError: x"


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


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


@pytest.fixture(scope="module")
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


@pytest.mark.usefixtures("_torch")
@pytest.mark.torch
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


@pytest.mark.usefixtures("_torch")
@pytest.mark.torch
def test_no_history_without_with_memory(gpu, tmp_path):
    ran_out(gpu, tmp_path, history=False)
    assert not gpu.histories and (tmp_path / OUT_OF_MEMORY).exists()


@pytest.mark.usefixtures("_torch")
@pytest.mark.torch
def test_a_program_that_tries_again_and_again(gpu, tmp_path):
    done = iter(range(9))
    watch = MemoryWatch(tmp_path, history=False, steps=lambda: next(done))
    watch.install(torch.cuda)
    gpu.first_use()
    for _ in range(9):
        gpu.observers[0](0, MIB, 2 * MIB, 0)
    assert json.loads((tmp_path / RAN_OUT).read_text())["step"] == memory._MOST_SAVED - 1


@pytest.mark.usefixtures("_torch")
@pytest.mark.torch
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


@pytest.mark.usefixtures("_torch")
@pytest.mark.torch
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


@pytest.mark.usefixtures("_torch")
@pytest.mark.torch
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


@pytest.mark.usefixtures("_torch")
@pytest.mark.torch
def test_bytes_at_the_end_of_a_step(gpu):
    assert allocator_bytes(0) == (3 * MIB, 8 * MIB, MIB, 9 * MIB, 20 * MIB)
