"""Processes of one rank: those that join another as in Hogwild, and workers of data loaders."""

import itertools
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import closing
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from changed import replace

from traceops.capture.environment import environment_that_matters, git_state
from traceops.capture.folder import is_first, unrecorded
from traceops.capture.manifest import RankManifest
from traceops.capture.observing import loader_workers
from traceops.capture.observing.loader_workers import LoaderWorkers, look
from traceops.capture.observing.stacks import NoLooks
from traceops.capture.responder import carried
from traceops.capture.threads import our_threads
from traceops.capture.trace_file import recorded_collectives
from traceops.core.documents import json_text
from traceops.core.rank_files import LOADER_GLOB, MAGIC, RECORDED_KEY, STEPS_FILE
from traceops.core.rank_text import unrecorded_sentences
from traceops.launch.outcome import gone_unseen
from traceops.traces.observed import read_observed

JOIN = "import sys; from pathlib import Path; from traceops.capture.folder import is_first; "
JOIN += "print(is_first(Path(sys.argv[1]), 0), flush=True); sys.stdin.read()"


def joins(out: Path) -> subprocess.Popen:
    """A process that is rank 0, or would be, and lives until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", JOIN, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.first = process.stdout.readline().strip() == "True"
    return process


@pytest.mark.slow
def test_a_process_beside_the_recorded_one_and_one_after_it_are_told_apart(tmp_path):
    """Ranks that were started again, and two processes that share a model, passed for one rank that had finished."""
    first = joins(tmp_path)
    beside = joins(tmp_path)
    first.communicate()
    after = joins(tmp_path)
    for process in (beside, after):
        process.communicate()
    assert (first.first, beside.first, after.first) == (True, False, False)
    found = list(unrecorded(tmp_path, [1, 0]))
    assert [(one.rank, one.pid, one.restarted) for one in found] == [(0, beside.pid, False), (0, after.pid, True)]


def test_a_rank_alone_leaves_nothing_to_tell(tmp_path):
    assert is_first(tmp_path, 3) and not list(unrecorded(tmp_path, [0, 3]))
    (tmp_path / "rank_3" / ".joined").write_text("")  # as earlier versions left it
    assert not is_first(tmp_path, 3)
    assert [one.restarted for one in unrecorded(tmp_path, [3])] == []


def test_what_is_said_of_them():
    again = [{"rank": rank, "pid": 10 + rank, "restarted": True} for rank in range(2)]
    assert unrecorded_sentences(again) == [
        "ranks 0–1 were started again after the recorded process had ended: no step since then is recorded"
    ]
    assert unrecorded_sentences([{"rank": 0, "pid": 7, "restarted": False}]) == [
        "another process (pid 7) trained as rank 0 too and is not recorded"
    ]
    assert unrecorded_sentences([{"rank": "0"}, None, 3]) == []


def test_a_rank_that_was_killed_and_started_again_did_not_finish():
    """The command ended with 0, so the rank that was killed at step 17 'finished' with code 0."""
    killed, raised, good = (
        RankManifest(rank, rank, 3, "h", 1, {"type": "cpu"}, {}, {}, status)
        for rank, status in enumerate(("running", "failed", "running"))
    )
    completed = [replace(one, status="finished", exit_code=0) for one in (killed, good)]
    told = gone_unseen([killed, raised, good], [completed[0], raised, completed[1]], {0, 1})
    assert [(one.status, one.exit_code) for one in told] == [("failed", None), ("failed", None), ("finished", 0)]
    assert told[0].error == "it ended in the middle of its training"


SCRIPT = """
import json, os, torch, torch.distributed as dist
from torch import nn
from traceops.capture.responder import carried
from traceops.capture.responder import _groups
os.environ.update(RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert carried(_groups()) == []
inner = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 64))
inner[1].bias.requires_grad_(False)
model = nn.parallel.DistributedDataParallel(inner, bucket_cap_mb=0.02)
print(json.dumps(carried(_groups())))
del model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
sharded = nn.Sequential(nn.Linear(64, 30), nn.Linear(30, 5))
fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
sharded(torch.randn(2, 64)).sum().backward()
print(json.dumps(carried(_groups())))
"""


@pytest.mark.torch
@pytest.mark.slow
def test_the_models_of_ddp_and_fsdp(python):
    done = python("-c", SCRIPT, compiler=True)
    assert done.returncode == 0, done.stderr
    (ddp,), (fsdp,) = map(json.loads, done.stdout.splitlines())
    assert ddp == {
        "strategy": "ddp",
        "group": "0",
        "cap_bytes": int(0.02 * 1024 * 1024),
        "parameters": [["0.weight", 64_000, 256_000], ["1.weight", 4096, 16384]],
    }
    whole = 64 * 30 + 30 + 30 * 5 + 5
    assert (fsdp["strategy"], fsdp["elements"], fsdp["shard"], fsdp["count"]) == ("fsdp", whole, whole, 4)
    assert fsdp["names"] == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_torch_that_has_it_otherwise_costs_only_that_model(monkeypatch):
    module = ModuleType("torch.nn.parallel.distributed")

    class DistributedDataParallel:
        process_group = "the world"
        parameters_to_ignore = frozenset({"frozen"})

        def __init__(self, cap):
            if cap is not None:
                self.bucket_bytes_cap = cap
            self.module = SimpleNamespace(named_parameters=lambda: iter(named))

    def parameter(size, trained=True):
        return SimpleNamespace(requires_grad=trained, numel=lambda: size, element_size=lambda: 4)

    named = [("a", parameter(10)), ("frozen", parameter(5)), ("b", parameter(20, trained=False)), ("c", parameter(30))]
    module.DistributedDataParallel = DistributedDataParallel
    monkeypatch.setitem(sys.modules, module.__name__, module)
    models = [DistributedDataParallel(cap) for cap in (100, None)]
    (row,) = carried({"the world": "0"})
    assert (row["group"], row["parameters"]) == ("0", [("a", 10, 40), ("c", 30, 120)]) and len(models) == 2


def git(folder, *arguments):
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_the_branch_is_named_and_where_ci_detached_it_ci_says(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "--quiet", "--initial-branch=topic/a")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "one")
    github = {"GITHUB_HEAD_REF": "fix", "GITHUB_REF_NAME": "12/merge"}
    assert git_state(tmp_path, github)["branch"] == "topic/a"
    git(tmp_path, "checkout", "--quiet", "--detach")
    assert git_state(tmp_path, {})["branch"] is None
    assert git_state(tmp_path, github)["branch"] == "fix"
    assert git_state(tmp_path, {"GITHUB_HEAD_REF": "", "GITHUB_REF_NAME": "main"})["branch"] == "main"
    assert git_state(tmp_path, {"CI_COMMIT_REF_NAME": "mr"})["branch"] == "mr"


def test_a_variable_that_is_no_utf8_can_be_written_as_json():
    kept = environment_that_matters({"NCCL_SOCKET_IFNAME": "eth\udcff0"})
    assert kept == {"NCCL_SOCKET_IFNAME": "eth\\udcff0"} and json_text(kept).encode()


ENTRY = {
    "profiling_name": "gloo:all_reduce", "process_group": ["3", "mesh_tp"], "collective_seq_id": 4,
    "time_created_ns": 99,
    "input_sizes": [[2, 3], [4]], "output_sizes": [[10]], "input_dtypes": ["Float"],
}  # fmt: skip


@pytest.fixture
def torch_says(monkeypatch):
    def say(backend, dumped):
        here = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_backend_config=lambda: backend
        )
        native = SimpleNamespace(_dump_fr_trace_json=lambda **_: json.dumps(dumped))
        monkeypatch.setitem(sys.modules, "torch.distributed", here)
        monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", native)

    return say


def test_collectives_of_gloo_are_told(torch_says):
    torch_says("cpu:gloo,cuda:nccl", {"entries": [ENTRY, {**ENTRY, "profiling_name": "nccl:all_reduce"}]})
    (row,) = recorded_collectives()
    assert dict(zip(RECORDED_KEY, row, strict=True)) == {
        "name": "gloo:all_reduce", "group": "3", "description": "mesh_tp", "sequence": 4, "elements_in": 10,
        "elements_out": 10, "dtype": "Float", "created_ns": 99,
    }  # fmt: skip


@pytest.mark.parametrize("dumped", [{}, {"entries": [{"profiling_name": "gloo:barrier"}]}])
def test_a_record_of_another_kind_is_left(torch_says, dumped):
    torch_says("cpu:gloo", dumped)
    assert recorded_collectives() == []


def test_nothing_is_asked_of_nccl(torch_says, monkeypatch):
    torch_says("cuda:nccl", {"entries": [ENTRY]})
    assert recorded_collectives() == []
    monkeypatch.delitem(sys.modules, "torch._C._distributed_c10d")
    assert recorded_collectives() == []


WORKER = "torch.utils.data._utils.worker"
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "rank_0").mkdir()
    header = {"rank": 0, "started_ns": 1, "first": 0}
    (tmp_path / "rank_0" / STEPS_FILE).write_bytes(MAGIC + json.dumps(header).encode() + b"\n")
    for name, seconds in (("FIRST_S", 0.0), ("LOOK_S", 0.001), ("FLUSH_S", 0.0)):
        monkeypatch.setattr(loader_workers, name, seconds)
    return tmp_path / "rank_0"


def is_worker(monkeypatch, number):
    monkeypatch.setitem(sys.modules, WORKER, SimpleNamespace(_worker_info=SimpleNamespace(id=number)))


def slow_item(folder):
    """Until it was looked at; the first looks may be at what multiprocessing does before."""
    until = time.monotonic() + 600  # the test fails then, and does not hang
    while time.monotonic() < until and not any(b"slow_item" in path.read_bytes() for path in folder.glob(LOADER_GLOB)):
        time.sleep(0.001)


def _worker_loop(folder, told=None):
    """Has the name of torch's."""
    module = sys.modules.setdefault(WORKER, SimpleNamespace())
    if getattr(module, "_worker_info", None) is None:  # started anew, maybe by a server that has torch loaded
        module._worker_info = SimpleNamespace(id=0)
    other_work(folder, told) if told else slow_item(folder)


def names_of_threads():
    return [one.name for one in (*threading.enumerate(), *our_threads())]


def other_work(folder, told):
    told.send(names_of_threads())


def threads_of(work, context=FORK):
    """Of a process that multiprocessing starts for this work."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(None, theirs), daemon=True)
    process.start()
    process.join()
    with ours, theirs:
        return ours.recv()


def functions(folder):
    loaders = read_observed(str(folder.parent), 0)[0].loaders
    return [{one.frames[n].function for stack in one.stacks for n in stack} for one in loaders]


def test_a_forked_worker_writes_where_it_is(folder, monkeypatch):
    workers = LoaderWorkers(folder)
    is_worker(monkeypatch, 1)
    process = FORK.Process(target=_worker_loop, args=(folder,), daemon=True)
    process.start()
    process.join()
    [path] = folder.glob(LOADER_GLOB)
    assert path.name == f"loader.1.{process.pid}.jsonl"
    [seen] = functions(folder)
    assert "slow_item" in seen
    workers.close()  # the observer has ended
    assert threads_of(_worker_loop) == ["MainThread"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_that_is_started_anew_does_so_too(folder, method):
    context = multiprocessing.get_context(method)
    with closing(LoaderWorkers(folder)):
        process = context.Process(target=_worker_loop, args=(folder,), name='it\'s "one"', daemon=True)
        process.start()
        process.join()
        [path] = folder.glob(LOADER_GLOB)
        assert path.name == f"loader.0.{process.pid}.jsonl"
        assert "slow_item" in functions(folder)[0]
        assert threads_of(_worker_loop, context) == ["MainThread", "traceops-loader"]
        assert threads_of(other_work, context) == ["MainThread"]
    assert threads_of(_worker_loop, context) == ["MainThread"]


def pickled(process):
    """What multiprocessing sends to a process that starts anew, and what that makes of it."""
    sent = ForkingPickler.dumps(process)
    return bytes(sent), pickle.loads(sent)


def test_only_the_pickle_of_a_loaders_worker_is_another(folder, monkeypatch):
    told = []  # an error in it is nobody's
    monkeypatch.setattr(loader_workers, "begin_in_worker", lambda folder: told.append(folder) or 1 / 0)
    spawn = multiprocessing.get_context("spawn")
    kinds = (multiprocessing.Process, spawn.Process, multiprocessing.get_context("forkserver").Process)
    names = ["a", "it's", 'a "b" \\ \n {c}']
    for kind, name in itertools.product(kinds, names):
        worker, other = (kind(target=work, args=(1,), name=name) for work in (_worker_loop, other_work))
        for one in (worker, other):
            del one._config["authkey"]  # is pickled for a child alone
        as_ever = [pickled(one)[0] for one in (worker, other)]
        workers = LoaderWorkers(folder)
        try:
            assert pickled(other)[0] == as_ever[1]
            sent, made = pickled(worker)
            assert sent != as_ever[0]
            assert {**vars(made), "_parent_pid": None} == {**vars(worker), "_parent_pid": None}
            assert type(made.name) is str
            assert told.pop() == str(folder) and not told
        finally:
            workers.close()
        assert pickled(worker)[0] == as_ever[0]


def test_whatever_else_is_forked_has_no_thread_of_ours(folder, monkeypatch):
    workers = LoaderWorkers(folder)
    is_worker(monkeypatch, 0)  # as in a loader's worker, which forks something itself
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, " ".join(names_of_threads()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1000) == b"MainThread"
    for one in (read, write):
        os.close(one)
    assert threads_of(other_work) == ["MainThread"]
    assert threads_of(_worker_loop) == ["MainThread", "traceops-loader"]
    workers.close()


def test_an_observer_that_could_not_end_adds_no_second_thread(folder, monkeypatch):
    is_worker(monkeypatch, 0)
    left, workers = LoaderWorkers(folder.parent / "earlier"), LoaderWorkers(folder)
    assert threads_of(_worker_loop) == ["MainThread", "traceops-loader"]
    workers.close()
    assert threads_of(_worker_loop) == ["MainThread"]
    left.close()


@pytest.mark.parametrize("number", [None, 2, "x"])
def test_who_is_no_worker_or_one_of_many_writes_nothing(folder, monkeypatch, number):
    if number is not None:
        is_worker(monkeypatch, number)
    else:
        monkeypatch.setitem(sys.modules, WORKER, SimpleNamespace(_worker_info=None))
    look(folder, threading.get_ident(), NoLooks())
    assert not list(folder.glob(LOADER_GLOB))


def test_epochs_without_end_do_not_fill_the_folder(folder, monkeypatch):
    is_worker(monkeypatch, 0)
    for number in range(loader_workers.MOST_FILES):
        (folder / f"loader.0.{number}.jsonl").touch()
    look(folder, threading.get_ident(), NoLooks())
    assert len(list(folder.glob(LOADER_GLOB))) == loader_workers.MOST_FILES


def test_an_error_in_a_worker_is_nobodys(folder, monkeypatch):
    is_worker(monkeypatch, 0)
    monkeypatch.setattr(loader_workers, "Stacks", lambda thread: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        look(folder, threading.get_ident(), NoLooks())
    monkeypatch.setattr(loader_workers, "_is_here_loaders", lambda: True)
    LoaderWorkers(folder)._begin_if_loader()  # in a thread of its own, which contains it
    for thread in our_threads():
        if thread.name == "traceops-loader":
            thread.join()
