"""SIGTERM ends a rank without unwinding it: what was captured is saved first, even while it waits for peers."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from traceops.capture.guard import contained
from traceops.capture.threads import daemon_thread
from traceops.capture.timing import uses_gpu


def wait_for_device(timeout_s: float) -> bool:
    """Wait until the device has finished what was queued, at most about `timeout_s`; returns whether it has.

    A rank that ends early leaves its peers inside NCCL kernels that spin until the watchdog's timeout,
    minutes later, and stopping the profiler waits for the device. So if time runs out, and only when the
    training is ending anyway, the communicators are aborted, which ends their kernels.
    """
    if not uses_gpu() or _finished(timeout_s):
        return True
    abort_nccl()
    return _finished(timeout_s)


def _finished(timeout_s: float) -> bool:
    import torch

    # A thread of its own: there is no query that covers all streams, and synchronize has no timeout.
    waiting = daemon_thread("traceops-synchronize", torch.cuda.synchronize)
    waiting.start()
    waiting.join(timeout_s)
    return not waiting.is_alive()


def abort_nccl() -> None:
    """Abort this process's NCCL communicators, if it has any. Nothing can be sent afterwards."""
    dist = sys.modules.get("torch.distributed")
    if not uses_gpu() or dist is None or not dist.is_initialized() or "nccl" not in dist.get_backend():
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)  # experimental in torch 2.6 to 2.13
    if abort is not None:
        abort()


def close_connections() -> None:
    """Shut down this process's TCP connections: gloo and the store then raise where they wait for a peer. Gloo has no
    abort that frees who waits in it. Nothing can be sent afterwards."""
    if (dist := sys.modules.get("torch.distributed")) is None or not dist.is_available():
        return
    for path in Path("/dev/fd").iterdir():
        # What is no socket, or only listens for connections, raises an OSError.
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as connection:
            if connection.family != socket.AF_UNIX and connection.getpeername():
                connection.shutdown(socket.SHUT_RDWR)


# A handler runs between two bytecodes; a rank that takes longer to get there is waiting in C, for its peers.
_BLOCKED_AFTER_S = 3.0
_STOP = b"\0"  # no signal has the number 0


class Saver:
    """Runs `save` once on SIGTERM and then dies of it, as the process would have without us. over: nothing is saved any
    more."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._pid = os.getpid()
        self._holds = 0
        self._waiting = False
        self.over = False
        self.reached = threading.Event()

    def held(self) -> Saver:
        """A block that puts a SIGTERM off until its end."""
        return self

    def __enter__(self) -> None:  # of `held`: a generator's would cost each step more than all else here
        self._holds += 1

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._holds -= 1
        if kind is None and self._waiting and self._holds == 0:
            self._waiting = False  # or the saving, which is a block like this one, would save again
            self(signal.SIGTERM, None)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.over:
            contained(_deaf_to_children)
        if (
            os.getpid() == self._pid and not self.over
        ):  # what was forked just now may still have the handler, not the duty
            self.reached.set()
            if self._holds:
                self._waiting = True
                return
            with self.held():
                self._save()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _deaf_to_children() -> None:
    """Stop handling SIGCHLD, now that the process dies. torchrun ends the whole process group: the data-loader workers
    go first, and torch's handler would raise that they are gone in the middle of the saving."""
    if callable(signal.getsignal(signal.SIGCHLD)):
        # Not SIG_DFL: Python complains of a signal that has come but whose handler is gone.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)


@contextmanager
def saving_on_sigterm(save: Callable[[], None]) -> Iterator[Saver]:
    """Call `save` when SIGTERM comes while inside the block and would end the process. A training that handles SIGTERM
    itself (to write a checkpoint, say) is left alone: it is not about to die."""
    saver = Saver(save)
    in_main = threading.current_thread() is threading.main_thread()  # Python sets handlers there only
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield saver
        return
    os.register_at_fork(after_in_child=lambda: contained(_default_again, saver))
    signal.signal(signal.SIGTERM, saver)
    try:
        with _freed_when_blocked(saver):
            yield saver
    finally:
        saver.over = True  # should it stay installed
        if _installed(saver):  # the script may have set its own since
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _freed_when_blocked(saver: Saver) -> Iterator[None]:
    """Inside the block, a thread frees the main thread if it waits for its peers when SIGTERM comes. Python writes the
    number of each signal to this socket at once, whatever the main thread is doing."""
    read, write = socket.socketpair()
    write.setblocking(False)
    descriptor = write.fileno()
    before = signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    if before != -1:  # somebody's event loop listens there
        signal.set_wakeup_fd(before)
        read.close()
        write.close()
        yield
        return

    known = {end: os.fstat(end.fileno()) for end in (read, write)}

    # A script may close every file that it has not opened itself, and open others under their numbers.
    def ours(end: socket.socket) -> bool:
        return os.path.samestat(os.fstat(end.fileno()), known[end])

    def stop() -> None:
        if ours(write):
            write.send(_STOP)  # closing would not do: data-loader workers hold the other end too
            thread.join(10.0)

    def close(end: socket.socket) -> None:
        if contained(ours, end):
            end.close()
        else:
            end.detach()

    def free() -> None:
        while ours(read) and (received := read.recv(1)):
            if received == _STOP:
                return
            to_die = received[0] == signal.SIGTERM and _installed(saver)
            if to_die and not saver.reached.wait(_BLOCKED_AFTER_S):
                abort_nccl()
                close_connections()

    try:
        os.register_at_fork(after_in_child=lambda: contained(_silence, descriptor))
        thread = daemon_thread("traceops-sigterm", free)
        thread.start()
    except BaseException:
        signal.set_wakeup_fd(-1)
        raise
    try:
        yield
    finally:
        # One that fails keeps none of the others: who listens for nobody is to end all the same.
        contained(_silence, descriptor)  # refused in another thread than the main one
        contained(stop)
        contained(close, write)
        contained(close, read)


def _installed(saver: Saver) -> bool:
    handler: object = signal.getsignal(signal.SIGTERM)
    return handler is saver


def _default_again(saver: Saver) -> None:
    """In a forked child, where ours would wait for code in C to return before SIGTERM ends it."""
    if _installed(saver):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _silence(own: int) -> None:
    """Stop Python writing signals to `own`, which a forked child shares though its signals are its own."""
    if (before := signal.set_wakeup_fd(-1)) not in (-1, own):
        signal.set_wakeup_fd(before)
