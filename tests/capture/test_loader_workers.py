"""Workers of data loaders look at themselves, and whatever else is forked is left alone."""

import json
import multiprocessing
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from traceops.capture.observing import loader_workers
from traceops.capture.observing.loader_workers import LoaderWorkers, look
from traceops.core.step_log import LOADER_GLOB, MAGIC, STEPS_FILE
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
    while not any(b"slow_item" in path.read_bytes() for path in folder.glob(LOADER_GLOB)):
        time.sleep(0.001)


def _worker_loop(folder, told=None):
    """Has the name of torch's."""
    other_work(folder, told) if told else slow_item(folder)


def other_work(folder, told):
    told.send([one.name for one in threading.enumerate()])


def threads_of(work):
    """Of a process that multiprocessing forks for this work."""
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=work, args=(None, theirs), daemon=True)
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


def test_whatever_else_is_forked_has_no_thread_of_ours(folder, monkeypatch):
    workers = LoaderWorkers(folder)
    is_worker(monkeypatch, 0)  # as in a loader's worker, which forks something itself
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, " ".join(one.name for one in threading.enumerate()).encode())
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
    look(folder, threading.get_ident())
    assert not list(folder.glob(LOADER_GLOB))


def test_epochs_without_end_do_not_fill_the_folder(folder, monkeypatch):
    is_worker(monkeypatch, 0)
    for number in range(loader_workers.MOST_FILES):
        (folder / f"loader.0.{number}.jsonl").touch()
    look(folder, threading.get_ident())
    assert len(list(folder.glob(LOADER_GLOB))) == loader_workers.MOST_FILES


def test_an_error_in_a_worker_is_nobodys(folder, monkeypatch):
    is_worker(monkeypatch, 0)
    monkeypatch.setattr(loader_workers, "Stacks", lambda thread: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        look(folder, threading.get_ident())
    monkeypatch.setattr(loader_workers, "_is_loaders", lambda: True)
    LoaderWorkers(folder)._told()  # in a thread of its own, which contains it
    for thread in threading.enumerate():
        if thread.name == "traceops-loader":
            thread.join()
