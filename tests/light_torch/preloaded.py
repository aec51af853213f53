"""A process that has loaded torch, and forks ranks for the one that started it, whose children they are.

The doctor starts many ranks without loading torch itself. Only on Linux, where a process can make a sibling.
"""

import ctypes
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import forked

_HERE = str(Path(__file__).resolve().parent)
_ROOM = "." * 4000  # for the arguments of those that are forked
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
_CLONE_PARENT, _CHILD_CLEARTID, _CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_GET_TID_ADDRESS = 40
_LONGEST = 1 << 17


class Preloaded:
    """Starts one such process for each set of variables that matters, when the first of them is asked for."""

    def __init__(self, *modules):
        self._modules = modules  # those that are run so
        self._lock = threading.Lock()
        self._known = {}

    def fork(self, words, env, standard, new_session):
        """The pid, or None where it has to be executed."""
        names = dict(os.environb) if env is None else forked.variables(env)
        light = names.get(b"PYTHONPATH", b"").split(os.fsencode(os.pathsep))[0] == os.fsencode(_HERE)
        if (
            words != [sys.executable, "-m", words[-1]]
            or words[-1] not in self._modules
            or not light
            or not _CLONE
        ):
            return None
        with self._lock:
            key = frozenset(forked.read_when_loaded(names).items())
            if key not in self._known:
                if threading.current_thread() is not threading.main_thread():
                    return None  # for the kernel, the thread that starts a process is its parent
                self._known[key] = _start(names)
            return _ask(self._known[key][0], words, names, standard, new_session)


def _start(names):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), _ROOM], env=names, pass_fds=[theirs.fileno()], cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return ours, process


def _ask(connection, words, names, standard, new_session):
    asked = {
        "words": words, "names": [f"{os.fsdecode(name)}={os.fsdecode(value)}" for name, value in names.items()],
        "folder": str(Path.cwd()), "new_session": bool(new_session),
        "ignored": [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN],
    }  # fmt: skip
    taken = [fd if fd >= 0 else number for number, fd in enumerate(standard)]
    try:
        socket.send_fds(connection, [json.dumps(asked).encode()], taken)
        return int(connection.recv(64))
    except (OSError, ValueError):  # it is gone, or takes no message as long as this
        return None


def _serve(connection):
    import torch  # noqa: F401

    while True:
        text, taken, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        if not text:
            return
        pid = _sibling()
        if not pid:
            asked = json.loads(text)
            os.chdir(asked["folder"])
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN if number in asked["ignored"] else signal.SIG_DFL)
            forked.become(asked["words"], list(map(os.fsencode, asked["names"])), taken, asked["new_session"])
        for fd in taken:
            os.close(fd)
        connection.send(str(pid).encode())


def _sibling():
    """os.fork, but with the parent of this process. It has one thread, or locks might be held for ever."""
    assert len(list(Path("/proc/self/task").iterdir())) == 1
    library, word = ctypes.PyDLL(None), ctypes.c_long
    thread_id, nothing = (
        word(),
        word(),
    )  # where the C library keeps the thread's number: the kernel writes the new one
    library.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(thread_id))
    flags = _CLONE_PARENT | signal.SIGCHLD | (_CHILD_SETTID | _CHILD_CLEARTID if thread_id.value else 0)
    last = (thread_id, nothing) if platform.machine() == "x86_64" else (nothing, thread_id)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = library.syscall(word(_CLONE), word(flags), nothing, nothing, *last)
    if pid:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return pid


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
