"""Data loaders: what the first steps get of them, and where their workers are.

A forked worker looks at its own main thread, as the rank does at its.

A process that multiprocessing has forked tells us what its work is, before it does it. Where that is a loader's loop,
it gets a thread. Whatever else the program forks stays as it is: with a second thread it could not enter a namespace of
its own (`unshare`), say. One that is spawned, or started by a fork server, is told by its parent (`StartedAnew`).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from traceops.capture.after_import import when_loaded
from traceops.capture.guard import Guard, contained
from traceops.capture.observing.stacks import Looks, Stacks, looks
from traceops.capture.short_way.ways import LongWay
from traceops.capture.threads import daemon_thread
from traceops.core.rank_files import LOADER_GLOB, loader_file

_KINDS = ("Process", "SpawnProcess", "ForkServerProcess")
_LINES = """
try:
    from traceops.capture.observing.loader_workers import begin_in_worker
    begin_in_worker({folder!r})
except Exception:
    pass
"""


class StartedAnew:
    """Gives a loader's worker that is spawned, or started by a fork server, what a forked one inherits.

    multiprocessing sends such a process its work as a pickle, and the pickle of a loader's worker brings a line along
    that is run where it is read. All other pickles stay as they are. If the line fails, the worker runs unobserved.

    folder: where a worker that is started now is to write, None where it is to know nothing.

    is_loaders: whether a process of multiprocessing's is a loader's worker.
    """

    def __init__(self, folder: Callable[[], Path | None], is_loaders: Callable[[Any], bool]) -> None:
        self._folder, self._is_loaders = folder, is_loaders
        self._undo: list[Callable[[], Any]] = []
        quiet = Guard(lambda operation, error: None)
        contained(when_loaded, {"multiprocessing.context": self._install}, quiet, self._undo)

    def close(self) -> None:
        """Have multiprocessing pickle its processes as ever."""
        while self._undo:
            contained(self._undo.pop())

    def _install(self, context: Any) -> None:
        reducers = context.reduction.ForkingPickler._extra_reducers
        for kind in (getattr(context, name, None) for name in _KINDS):
            if kind is not None and (kind not in reducers or _is_ours(reducers[kind])):
                reducers[kind] = self._reduced
                self._undo.append(partial(_remove, reducers, kind, self._reduced))

    def _reduced(self, process: Any) -> Any:
        found = contained(self._with_lines, process)
        return process.__reduce_ex__(4) if found is None else found

    def _with_lines(self, process: Any) -> Any:
        if (folder := self._folder()) is None or not self._is_loaders(process):
            return None
        make, arguments, state = process.__reduce_ex__(4)[:3]
        # The name comes last, when all that the worker needs is loaded.
        rest = {key: value for key, value in state.items() if key != "_name"}
        return make, arguments, {**rest, "_name": _Name(state["_name"], folder)}


class _Name:
    """The name of a process, which runs our lines where it is read, and is a plain string there."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        lines = _LINES.format(folder=self._folder)
        return eval, (f"exec({lines!r}) or {self._name!r}", {"__name__": __name__})


def _is_ours(reducer: Any) -> bool:
    """An observer that could not end leaves its own behind."""
    return isinstance(getattr(reducer, "__self__", None), StartedAnew)


def _remove(reducers: dict[Any, Any], kind: Any, ours: Any) -> None:
    if reducers.get(kind) == ours:
        del reducers[kind]


_FIRST_STEPS, _MOST_ENDS = 3, 4  # later ones go a short way, past us
_PLACES, _PLACE_BYTES = 8, 512  # of a tensor that are read
_MOST_LEAVES, _DEEPEST = 16, 4  # of a batch
_SPLITS_THE_MODEL = ("torch.distributed.pipelining", "torch.distributed.tensor.parallel")


class FirstSamples:
    """What the first steps train on, as a number each: without a DistributedSampler it is the same on all ranks. Reads
    some bytes of the batches that torch's DataLoader gives to the first steps, without a call of torch's that runs
    anything, and then puts everything back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []
        self._batches: list[int] = []
        self._steps: list[int] = []
        self._ends, self._done = 0, False
        quiet = Guard(lambda operation, error: None)
        contained(when_loaded, {"torch.utils.data.dataloader": self._install}, quiet, self._undo)

    def step_ended(self) -> list[Any] | None:
        """What is known of the first steps, once they are over: a line of the observer's, if ranks can be compared."""
        if self._done:
            return None
        self._ends += 1
        if self._batches:
            self._steps.append(zlib.crc32(repr(self._batches).encode()))
            self._batches = []
        if len(self._steps) < _FIRST_STEPS and self._ends < _MOST_ENDS:
            return None
        self.close()
        known = len(self._steps) == _FIRST_STEPS
        return ["d", self._steps] if known and contained(_each_rank_has_the_model) else None

    def close(self) -> None:
        """Leave the loaders alone."""
        self._done = True
        while self._undo:
            contained(self._undo.pop())

    def _install(self, module: Any) -> None:
        kind = module._BaseDataLoaderIter
        original = kind.__next__

        def __next__(iterator: Any) -> Any:
            batch = original(iterator)
            if not self._done:
                contained(self._saw, batch)
            return batch

        kind.__next__ = __next__
        self._undo.append(partial(_put_back, kind, __next__, original))

    def _saw(self, batch: Any) -> None:
        found: list[Any] = []
        _leaves(batch, found, _DEEPEST)
        if found and len(self._batches) < _MOST_LEAVES:
            self._batches.append(zlib.crc32(repr(found).encode()))


def _put_back(kind: Any, ours: Any, original: Any) -> None:
    if kind.__next__ is ours:  # else somebody has wrapped it since
        kind.__next__ = original


def _leaves(value: Any, found: list[Any], depth: int) -> None:
    """Some of what each tensor on the CPU, and each text or number, in a batch holds."""
    if len(found) >= _MOST_LEAVES:
        return
    if isinstance(value, (str, int, float)):
        found.append(value)
    elif isinstance(value, (list, tuple, dict)) and depth:
        for each in value.values() if isinstance(value, dict) else value:
            _leaves(each, found, depth - 1)
    elif type(value) is sys.modules["torch"].Tensor and value.device.type == "cpu" and value.is_contiguous():
        size = value.numel() * value.element_size()
        part = min(_PLACE_BYTES, size)
        places = sorted({(size - part) * place // (_PLACES - 1) for place in range(_PLACES)}) if size else ()
        begin = value.data_ptr()
        found.append((tuple(value.shape), [zlib.crc32(ctypes.string_at(begin + place, part)) for place in places]))


def _each_rank_has_the_model(modules: Any = sys.modules) -> bool:
    """Whether all ranks train the whole model: where some share it, they have to see the same samples."""
    distributed: Any = modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return False
    split = [name for name in _SPLITS_THE_MODEL if name in modules]
    if split and "torch.distributed.fsdp" not in modules:  # which loads the second one itself
        return False
    world = distributed.get_world_size()
    groups = distributed.distributed_c10d._world.pg_group_ranks.values()
    return world > 1 and not any(1 < len(ranks) < world for ranks in groups)


FIRST_S = 0.5  # until a worker knows its number
LOOK_S = 0.04  # between two looks, on average: 31 µs each, less than 0.1 % of a core
MOST_WORKERS = 2  # by their numbers: all do the same work
MOST_FILES = 16  # of a rank: a loader without persistent workers forks anew for each epoch
FLUSH_S = 1.0  # what a worker saw last is lost: it ends without a word
SLOWER_AFTER = 5_000  # looks: then half as often
_WORKER = "torch.utils.data._utils.worker"
_LOOP = "_worker_loop"  # torch's, and of loaders made like it


class LoaderWorkers:
    """Made in a rank; `close` there, or the next one, ends it for processes that are forked later."""

    def __init__(self, folder: Path) -> None:
        self._folder: Path | None = folder.absolute()
        self._asked = False
        if not _newest:
            os.register_at_fork(after_in_child=lambda: _newest[0].forked())  # once: Python forgets none of these
        _newest[:] = [self]
        self._started_anew = StartedAnew(lambda: self._folder, _is_loaders)

    def close(self) -> None:
        """What is started from now on is left alone."""
        self._folder = None
        self._started_anew.close()

    def forked(self) -> None:
        """Called in a process that was forked just now."""
        if self._folder is not None and not self._asked:
            contained(self._ask)

    def _ask(self) -> None:
        """Have multiprocessing, if that is what has forked, call us once it knows what this process is for."""
        util: Any = sys.modules.get("multiprocessing.util")  # a program without it is not to get it from us
        if util is not None:
            util.register_after_fork(self, LoaderWorkers._begin_if_loader)
            self._asked = True  # in what is forked from here too

    def _begin_if_loader(self) -> None:
        if self._folder is not None and contained(_is_here_loaders):
            contained(_begin, self._folder)


_newest: list[LoaderWorkers] = []  # one at most: an observer that could not end leaves its own behind


def begin_in_worker(folder: str) -> None:
    """In a loader's worker that was started anew, right before its work begins."""
    _begin(Path(folder))


def _is_loaders(process: Any) -> bool:
    return getattr(getattr(process, "_target", None), "__name__", "") == _LOOP


def _is_here_loaders() -> bool:
    """Whether this process has been started to be a loader's worker; what a worker forks itself is none."""
    processes: Any = sys.modules["multiprocessing.process"]
    return _is_loaders(processes.current_process())


def _begin(folder: Path) -> None:
    daemon_thread("traceops-loader", partial(look, folder, threading.get_ident(), looks(LongWay()))).start()


def look(folder: Path, thread: int, waiting: Looks) -> None:
    """Look at this thread until `waiting` is ended, if this process is a loader's worker. folder: of the rank; its
    files are there."""
    waiting.wait(FIRST_S, False)
    number = worker_number()
    if number is None or number >= MOST_WORKERS or len(list(folder.glob(LOADER_GLOB))) >= MOST_FILES:
        return
    path = folder / loader_file(number, os.getpid())
    stacks, drawn = Stacks(thread), 1 + number
    begun: list[list[Any]] = [["w", time.time_ns()]]
    last = flushed = time.perf_counter_ns()
    while True:
        # Looks at even intervals would see an even program always at the same places.
        drawn = (1103515245 * drawn + 12345) & 0x7FFFFFFF
        often = 1 << min(stacks.count // SLOWER_AFTER, 6)
        over = waiting.wait(LOOK_S * often * (0.5 + drawn / 0x7FFFFFFF), True)
        found = waiting.take()
        now = time.perf_counter_ns() if found is None else found[0]
        if not over:
            stacks.sample(0, max(now - last, 0) // 1000, found)
            last = now
        if over or now - flushed > FLUSH_S * 1e9:
            flushed = now
            if lines := stacks.take():
                _append(path, [*begun, *lines])
                begun = []
        if over:
            return


def worker_number() -> int | None:
    """Of this process among its loader's workers; None where it is none, or torch's record of that is another."""
    module: Any = sys.modules.get(_WORKER)
    number = getattr(getattr(module, "_worker_info", None), "id", None)
    return number if isinstance(number, int) else None


def _append(path: Path, lines: list[list[Any]]) -> None:
    text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())
