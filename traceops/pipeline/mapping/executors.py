"""Who does the work: processes of this machine, a dask cluster, MPI's ranks, or an executor that is given."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from traceops.core.errors import UsageError
from traceops.version import __version__

if TYPE_CHECKING:
    from traceops.traces.discover import TraceFile

Task = TypeVar("Task")
Result = TypeVar("Result")

_CGROUP_SHARE = Path("/sys/fs/cgroup/cpu.max")  # of the container, where there is one
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl
_ANSWER_S = 15  # how long a scheduler may take to answer
_TCP_HINT = "a scheduler with TLS is named tls://HOST:PORT"
_TLS_HINT = (
    "dask takes its certificates from its own settings: DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT and "
    "…__CLIENT__KEY"
)
# What the future of a task raises that never ran to its end: its worker died, was lost, or lacks traceops.
_UNDONE: tuple[type[Exception], ...] = (
    BrokenExecutor, CancelledError, OSError, RuntimeError, ImportError, AttributeError,
)  # fmt: skip


class WorkerPool(Struct, frozen=True):
    """An executor that does `slots` tasks at a time; `undone` is what futures raise whose task did not run to its end.

    Workers `elsewhere` may be on machines that have other files. `end_if_one_died` is for whoever waits for a result.
    """

    executor: Executor
    slots: int
    undone: tuple[type[Exception], ...] = _UNDONE
    elsewhere: bool = True
    end_if_one_died: Callable[[], None] = lambda: None


def cores() -> int:
    """The cores this process may use: those it may run on, and no more than a container's share of time allows."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_SHARE.read_text().split()
        return max(min(allowed, math.ceil(int(quota) / int(period))), 1)
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup v2, or no limit ("max")
        return allowed


@contextlib.contextmanager
def processes(jobs: int) -> Iterator[WorkerPool]:
    """Processes that are forked from this one where the system can. An error in the block, Ctrl-C too, ends them. Where
    this one may have none, being a daemon such as the workers of a multiprocessing.Pool, a thread does the work."""
    import multiprocessing  # what needs no processes starts sooner without it
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from multiprocessing.connection import wait

    if multiprocessing.current_process().daemon:
        thread = ThreadPoolExecutor(1)
        try:
            yield WorkerPool(thread, 1, (BrokenExecutor,), elsewhere=False)
        finally:
            thread.shutdown(cancel_futures=True)
        return
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(os.getpid(),))
    results: Any = pool._result_queue

    def end() -> None:
        for process in list((pool._processes or {}).values()):  # from Python 3.14 on there is kill_workers()
            process.kill()
        # Who is killed while it writes a result leaves half of it in the pipe. The pool's thread reads on, and is
        # not told that a process died, until nobody is left who could write the rest.
        results._writer.close()

    def end_if_one_died() -> None:
        if wait([process.sentinel for process in list((pool._processes or {}).values())], timeout=0):
            end()

    try:
        yield WorkerPool(pool, jobs, (BrokenExecutor,), elsewhere=False, end_if_one_died=end_if_one_died)
    except BaseException:
        end()
        # Waits for the pool's thread, as Python does at its end: there it would wake it first, by a pipe that the
        # thread may just have closed, and print a traceback.
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()


def _begin(parent: int) -> None:
    """In a new process: Ctrl-C is the parent's to handle, and when the parent is killed this ends too.

    Handlers of the parent's stay behind. A pool whose worker died ends the others with SIGTERM and waits for them: who
    handled it would go on writing a result that nobody reads, and the pool would wait for ever.

    What the parent no longer used is not collected here: its destructors would end threads and sockets that only the
    parent has. One of torch's would abort the process.
    """
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT"):  # Windows has but the first
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


@contextlib.contextmanager
def open_workers(chosen: str | Executor, jobs: int | None) -> Iterator[WorkerPool]:
    """The workers named by `dask://HOST:PORT`, `tls://HOST:PORT` (dask's) or `mpi`, or those of an executor. At most
    `jobs` of them at a time. Raises UsageError for another name, where a package is missing, and where nobody
    answers."""
    if isinstance(chosen, Executor):
        slots = getattr(chosen, "_max_workers", None) or cores()
        yield WorkerPool(chosen, min(jobs or slots, slots))
        return
    if (address := _dask_address(chosen)) is not None:
        opened = _dask(chosen, address)
    elif chosen == "mpi":
        opened = _mpi()
    else:
        raise UsageError(
            f"--executor takes dask://HOST:PORT or mpi, not {chosen!r}; tls://HOST:PORT is a dask scheduler with TLS"
        )
    with opened as workers:
        yield WorkerPool(workers.executor, min(jobs or workers.slots, workers.slots), workers.undone)


def _dask_address(chosen: str) -> str | None:
    """The address of a scheduler as dask writes it: tls://…, or tcp://… where `chosen` says dask:// alone."""
    within = chosen.removeprefix("dask://")
    protocol, sign, where = within.rpartition("://")
    if protocol in ("tls", "tcp") and where:
        return within
    return f"tcp://{within}" if within != chosen and within and not sign else None


@contextlib.contextmanager
def _dask(chosen: str, address: str) -> Iterator[WorkerPool]:
    import asyncio

    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise UsageError(
            f"--executor {chosen} needs dask's scheduler: pip install distributed (traceops's extra [dask])"
        ) from error
    try:
        client = Client(address, timeout=_ANSWER_S, set_as_default=False)
    except (OSError, ValueError, RuntimeError, TypeError, asyncio.TimeoutError) as error:
        hint = _TLS_HINT if address.startswith("tls:") else _TCP_HINT
        raise UsageError(f"--executor {chosen}: no dask scheduler answers there ({error}); {hint}") from error
    executor = client.get_executor(pure=False)
    try:
        try:
            executor.submit(cores).result()
        except (RuntimeError, ImportError, AttributeError) as error:  # which one depends on dask's version
            raise UsageError(
                f"--executor {chosen}: its scheduler and its workers need traceops {__version__} too; install it there"
            ) from error
        threads = sum(client.nthreads().values())
        # TypeError: its executor unpacks a result as an error where the worker died since it had it
        undone = (*_UNDONE, KilledWorker, asyncio.TimeoutError, TypeError)
        yield WorkerPool(executor, max(threads, 1), undone)
    finally:
        executor.shutdown(wait=False)  # takes back what nobody waits for any more
        client.close()


@contextlib.contextmanager
def _mpi() -> Iterator[WorkerPool]:
    try:
        from mpi4py.futures import MPIPoolExecutor
    except ImportError as error:
        raise UsageError(
            "--executor mpi needs mpi4py: pip install mpi4py (traceops's extra [mpi]), and then "
            "mpiexec -n 8 python -m mpi4py.futures -m traceops analyze … --executor mpi"
        ) from error
    pool = MPIPoolExecutor()
    try:
        yield WorkerPool(pool, max(pool.num_workers, 1))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def map_in_processes(function: Callable[[Task], Result], tasks: Sequence[Task], jobs: int) -> Iterator[Result]:
    """Results in the order of the tasks. What a process took with it when it was killed is done again here."""
    done = 0
    if min(jobs, len(tasks)) > 1:
        with contextlib.suppress(BrokenExecutor), processes(min(jobs, len(tasks))) as workers:
            for result in workers.executor.map(function, tasks):
                done += 1
                yield result
    yield from map(function, tasks[done:])


Given = TypeVar("Given")
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
    do: Callable[[TraceFile], Given],
    files: Sequence[TraceFile],
    taker: Taker[Given],
    jobs: int | None,
    executor: str | Executor | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """`do` for each file, the largest first; where a worker dies, `fail` for the file that it was at. `executor`: see
    `open_workers`; processes of this machine where there is none, or where the one given broke. `jobs`: how many at a
    time, None for as many as there are cores or workers. `meanwhile` is called as soon as all have something to do."""
    left = sorted(files, key=lambda file: -file.size_bytes)
    if executor is not None:
        with open_workers(executor, jobs) as workers:
            run = _Run(do, taker, workers)
            left = [file for part in run(left, meanwhile) for file in part]
            if not (isinstance(executor, Executor) and run.broken):
                for file in left:  # one at a time: it may have been another on the same worker that killed it
                    if any(run([file])):
                        taker.fail(file, f"no worker brought it to an end ({run.why})")
                left = []
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


class _NoProcess(Exception):
    """The system has no process left for us, or no memory for one."""


class _Run(Generic[Given]):
    """One pass over files on some workers."""

    def __init__(self, do: Callable[[TraceFile], Given], taker: Taker[Given], workers: WorkerPool) -> None:
        self._do, self._taker, self._workers = do, taker, workers
        self.broken = False
        self.why = ""

    def __call__(
        self, files: Sequence[TraceFile], meanwhile: Callable[[], None] | None = None
    ) -> tuple[list[TraceFile], list[TraceFile]]:
        """The files whose worker was lost, and those that an executor which broke was not given."""
        waiting = deque(files)
        running: dict[Future[Given], TraceFile] = {}
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
                if not (done := wait(running, _TICK_S, FIRST_COMPLETED).done):
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
