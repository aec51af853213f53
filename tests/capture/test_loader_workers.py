"""Workers of data loaders look at themselves, and whatever else is forked is left alone."""

import itertools
import json
import multiprocessing
import os
import pickle
import sys
import threading
import time
from contextlib import closing
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest

from traceops.capture.observing import loader_workers
from traceops.capture.observing.loader_workers import LoaderWorkers, look
from traceops.capture.observing.stacks import NoLooks
from traceops.capture.threads import our_threads
from traceops.core.rank_files import LOADER_GLOB, MAGIC, STEPS_FILE
from traceops.traces.observed import read_observed

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
    until = time.monotonic() + 120  # the test fails then, and does not hang
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
