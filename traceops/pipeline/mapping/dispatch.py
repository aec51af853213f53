"""Gives files to workers, a few more than they can process at a time, and handles workers that died."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Generic, Protocol, TypeVar

from traceops.pipeline.mapping.executors import WorkerPool, cores, open_workers, processes
from traceops.traces.discover import TraceFile

Result = TypeVar("Result")
Taken = TypeVar("Taken", contravariant=True)

_AHEAD = 2  # tasks a worker has been given, so that it need not wait for us
_TICK_S = 0.25
_KILLED = "its process was killed (out of memory?); try --jobs 1"


class Taker(Protocol[Taken]):
    """What takes results, in the order in which they come."""

    def take(self, file: TraceFile, result: Taken, elsewhere: bool) -> None: ...

    def fail(self, file: TraceFile, what: str) -> None: ...

    def tick(self) -> None: ...


def map_files(
    do: Callable[[TraceFile], Result],
    files: Sequence[TraceFile],
    taker: Taker[Result],
    jobs: int | None,
    executor: str | Executor | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """`do` for each file, the largest first; where a worker dies, `fail` for the file that it was at.

    `executor`: see `open_workers`; processes of this machine where there is none, or where the one given broke.
    `jobs`: how many at a time, None for as many as there are cores or workers. `meanwhile` is called as soon as
    all have something to do.
    """
    left = sorted(files, key=lambda file: -file.size_bytes)
    if executor is not None:
        left = _on_others(do, left, taker, jobs, executor, meanwhile)
    most = jobs or cores()
    while left and most:
        try:
            with processes(min(most, len(left))) as workers:
                lost, left = _Run(do, taker, workers)(left, meanwhile)
        except _NoProcess:
            most = min(most, len(left)) // 2
            continue
        # The first process that dies takes all others with it: each file of theirs gets one of its own.
        for file in lost:
            with processes(1) as workers:
                if any(_Run(do, taker, workers)([file])):
                    taker.fail(file, _KILLED)
    for file in left:  # the system gives us no process but this one
        taker.take(file, do(file), elsewhere=False)


def _on_others(
    do: Callable[[TraceFile], Result],
    files: Sequence[TraceFile],
    taker: Taker[Result],
    jobs: int | None,
    executor: str | Executor,
    meanwhile: Callable[[], None] | None,
) -> list[TraceFile]:
    """The same on workers that somebody else started; returns the files that an executor which broke left."""
    with open_workers(executor, jobs) as workers:
        run = _Run(do, taker, workers)
        lost, left = run(files, meanwhile)
        if isinstance(executor, Executor) and run.broken:
            return [*lost, *left]
        for file in (*lost, *left):  # one at a time: it may have been another on the same worker that killed it
            if any(run([file])):
                taker.fail(file, f"no worker brought it to an end ({run.why})")
    return []


class _NoProcess(Exception):
    """The system has no process left for us, or no memory for one."""


class _Run(Generic[Result]):
    """One pass over files on some workers."""

    def __init__(self, do: Callable[[TraceFile], Result], taker: Taker[Result], workers: WorkerPool) -> None:
        self._do, self._taker, self._workers = do, taker, workers
        self.broken = False
        self.why = ""

    def __call__(
        self, files: Sequence[TraceFile], meanwhile: Callable[[], None] | None = None
    ) -> tuple[list[TraceFile], list[TraceFile]]:
        """The files whose worker was lost, and those that an executor which broke was not given."""
        waiting = deque(files)
        running: dict[Future[Result], TraceFile] = {}
        lost: list[TraceFile] = []
        self.broken = False
        try:
            while running or (waiting and not self.broken):
                while waiting and not self.broken and len(running) < _AHEAD * self._workers.slots:
                    try:
                        running[self._workers.executor.submit(self._do, waiting[0])] = waiting[0]
                        waiting.popleft()
                    except BrokenExecutor as error:
                        self._note(error)
                    except OSError as error:
                        if self._workers.elsewhere:
                            raise
                        raise _NoProcess from error
                if meanwhile is not None:
                    meanwhile()
                    meanwhile = None
                done = wait(running, _TICK_S, FIRST_COMPLETED).done
                if not done:
                    self._workers.end_if_one_died()
                for future in done:
                    file = running.pop(future)
                    try:
                        result = future.result()
                    except self._workers.undone as error:
                        self._note(error)
                        lost.append(file)
                    else:
                        self._taker.take(file, result, self._workers.elsewhere)
                    del future
                self._taker.tick()
        except BaseException:
            if self._workers.elsewhere:  # our own processes are killed, and a pool that breaks minds cancelled futures
                for future in running:
                    future.cancel()
            raise
        return lost, list(waiting)

    def _note(self, error: Exception) -> None:
        self.broken = self.broken or isinstance(error, BrokenExecutor)
        if type(error).__name__ == "KilledWorker":  # dask's, whose text is about its own names
            self.why = "each was killed; out of memory?"
        else:
            self.why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
