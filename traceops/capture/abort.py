"""Frees a rank that waits for peers that are gone or hang, so that it can still save its trace."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

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
    """Shut down this process's TCP connections: gloo and the store then raise where they wait for a peer.

    Gloo has no abort that frees who waits in it. Nothing can be sent afterwards.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        return
    for path in Path("/dev/fd").iterdir():
        # What is no socket, or only listens for connections, raises an OSError.
        with suppress(OSError), socket.socket(fileno=os.dup(int(path.name))) as connection:
            if connection.family != socket.AF_UNIX and connection.getpeername():
                connection.shutdown(socket.SHUT_RDWR)
