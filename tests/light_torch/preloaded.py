"""A process that has loaded torch, and forks others for the one that started it, whose children they are.

The doctor starts many ranks without loading torch itself, and tests many commands that start torch.distributed.run.
Only on Linux, where a process can make a sibling.
"""

import contextlib
import ctypes
import importlib
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import forked

_HERE = str(Path(__file__).resolve().parent)
_ROOM = "." * 8000  # for the arguments of those that are forked
_MORE_ROOM = {"ROOM": "." * 30000}  # and for their variables
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
_CLONE_PARENT, _CHILD_CLEARTID, _CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_GET_TID_ADDRESS = 40
_LONGEST = 1 << 17
_LAUNCH = [["run"], ["doctor"], ["sweep"], ["scale"]]
_IMPORTS_TORCH = re.compile(r"^import (.*, )?torch\b", re.MULTILINE)  # what comes before it finds torch loaded, too


class Preloaded:
    """Starts one such process for each set of variables that matters, when the first of them is asked for."""

    def __init__(self, *programs):
        self._programs = [one if one == "-c" else ["-m", one] for one in programs]  # modules, or code that needs torch
        self._lock = threading.Lock()
        self._known = {}

    def fork(self, asked):
        """The pid, or None where it has to be executed."""
        names = dict(os.environb) if asked.env is None else forked.variables(asked.env)
        light = names.get(b"PYTHONPATH", b"").split(os.fsencode(os.pathsep))[0] == os.fsencode(_HERE)
        if not _CLONE or not light or asked.keep or not self._runs(asked.words):
            return None
        with self._lock:
            key = frozenset(forked.read_when_loaded(names).items())
            if key not in self._known:
                if threading.current_thread() is not threading.main_thread():
                    return None  # for the kernel, the thread that starts a process is its parent
                self._known[key] = _start(names)
            return _ask(self._known[key][0], asked, names)

    def _runs(self, words):
        if len(words) < 3 or words[0] != sys.executable:
            return False
        if words[1] == "-c":
            return "-c" in self._programs and _IMPORTS_TORCH.search(words[2]) is not None
        if words[1:3] == ["-m", "traceops"] and words[3:4] not in _LAUNCH:
            return False  # it needs no torch, and must not find it
        start = ["-m"] if words[1].endswith("/traceops/core/as_module.py") else words[1:2]
        return [*start, words[2]] in self._programs


def _start(names):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), _ROOM],
            env={**{os.fsdecode(name): os.fsdecode(value) for name, value in names.items()}, **_MORE_ROOM},
            pass_fds=[theirs.fileno()], cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    return ours, process


def _ask(connection, asked, names):
    told = {
        "words": asked.words, "names": [f"{os.fsdecode(name)}={os.fsdecode(value)}" for name, value in names.items()],
        "folder": str(Path.cwd() / (asked.folder or "")), "new_session": asked.new_session,
        "ignored": [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN],
    }  # fmt: skip
    taken = [fd if fd >= 0 else number for number, fd in enumerate(asked.standard)]
    try:
        socket.send_fds(connection, [json.dumps(told).encode()], taken)
        return int(connection.recv(64))
    except (OSError, ValueError):  # it is gone, or takes no message as long as this
        return None


def _load():
    """torch, and what torch.distributed.run and `traceops run` import."""
    import torch  # noqa: F401

    for name in ("torch.distributed.run", "traceops.cli.run", "traceops.launch.session", "traceops.hangs.diagnose"):
        with contextlib.suppress(ImportError):  # of another version
            importlib.import_module(name)


def _serve(connection):
    _load()
    while True:
        text, taken, _, _ = socket.recv_fds(connection, _LONGEST, 3)
        if not text:
            return
        pid = _sibling()
        if not pid:
            told = json.loads(text)
            ignored = told.pop("ignored")
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
            names = list(map(os.fsencode, told.pop("names")))
            forked.become(forked.Asked(env=names, standard=tuple(taken), **told))
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
