"""A process that the script forks behind a window must be able to end, as it could without us.

Kineto, which is in torch's profiler, starts a thread and joins it where the process exits. A forked process does not
have that thread and would wait for it for ever. So its exit ends here: what Python and the script have to do at an exit
is done by then, C's files are written, and C and C++ libraries that were loaded before the fork are not torn down.
"""

from __future__ import annotations

import ctypes
import os

from traceops.capture.guard import contained

_watched = False


def end_forked_processes() -> None:
    """From now on; to be called before torch's profiler first starts. Once a process is enough.

    Where the C library has no `on_exit` (it is glibc's), nothing is done.
    """
    global _watched
    if _watched:
        return
    _watched = True
    libc = ctypes.CDLL(None)
    try:
        on_exit, before = libc.on_exit, libc.__cxa_atexit
        end = ctypes.cast(libc._exit, ctypes.c_void_p)
        flush = ctypes.cast(libc.fflush, ctypes.c_void_p)
    except AttributeError:
        return

    def forked() -> None:
        """The last that is registered comes first: fflush(NULL), then _exit(status)."""
        on_exit(end, None)
        before(flush, None, None)

    os.register_at_fork(after_in_child=lambda: contained(forked))
