"""Stands between the launcher and torchrun, so that no process of a run outlives the launcher.

``python -I -S supervise.py '{"control": 5, …}' COMMAND…`` with `SupervisorSettings` as JSON. It runs as a file and
imports the standard library only, so that it starts in some 40 ms and nothing of the user's can be in its way.

It has a session of its own, which neither the launcher's terminal nor a signal to the launcher's group reaches. The
launcher holds the other end of the pipe `control`. The kernel closes that end however the launcher dies, SIGKILL
included. On Linux it is the subreaper of all that torchrun starts: a process whose parent ends becomes its child,
whatever session the process has made for itself. So the tree can always be found and ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

# Over the pipe: kill every process at once; Ctrl-C for all processes of the command's group, as a terminal sends it.
KILL, INTERRUPT = b"k", b"i"
_LEFTOVERS_S = 1.0  # a data loader ends after its rank
_KILLING_S = 5.0
_PAUSE_S = 0.02
_AFTERWARDS_S = 10.0
_LOOK_EVERY_S = 2.0
_PROC = Path("/proc")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()
# Of which we would die, and which are the ranks': a batch system sends them to every process that it sees.
_NOT_OURS = (signal.SIGUSR1, signal.SIGUSR2, *_REAL_TIME)


@dataclass(frozen=True)
class SupervisorSettings:
    """control: descriptor of the pipe's reading end. keep: descriptors that only have to stay open while we live.

    afterwards: command that is run once all is over, if the launcher is gone by then. remove: folder to remove then.
    grace_s: for ranks to save what they captured, once the launcher is gone.
    """

    control: int
    keep: list[int] = field(default_factory=list)
    afterwards: list[str] = field(default_factory=list)
    remove: str | None = None
    grace_s: float = 35.0


def command_line(settings: SupervisorSettings, command: list[str]) -> list[str]:
    """What starts a supervisor of `command`."""
    return [sys.executable, "-I", "-S", __file__, json.dumps(asdict(settings)), *command]


def main(argv: list[str]) -> int:
    """Run the command and return its exit code, 128 + n for signal n, once all its processes have ended."""
    settings = SupervisorSettings(**json.loads(argv[0]))
    for descriptor in (settings.control, *settings.keep):
        os.set_inheritable(descriptor, False)
    linux = sys.platform.startswith("linux")
    libc = ctypes.CDLL(None, use_errno=True) if linux else None
    if libc is not None:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_ENDING, *_NOT_OURS):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, for torchrun too
            signal.signal(number, lambda number, frame: None)
    tree = Tree(_start(argv[1:], libc))
    alone = tree.watch(settings.control, wake_read, settings.grace_s)
    tree.end()
    if alone:
        if settings.remove is not None:
            shutil.rmtree(settings.remove, ignore_errors=True)
        if settings.afterwards:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(settings.afterwards, stdin=subprocess.DEVNULL, check=False, timeout=_AFTERWARDS_S)
    return tree.exit_code()


def _start(command: list[str], libc: ctypes.CDLL | None) -> int:
    """torchrun's pid. It gets SIGTERM should we die ourselves, and passes that on to its ranks."""
    us = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)  # a group of its own, as a shell gives a command
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != us:
                os._exit(143)
        for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):  # which Python ignores, and what it starts should not
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execvp(command[0], command)
    except BaseException as error:
        os.write(2, f"traceops: {command[0]} cannot be started: {error}\n".encode())
    os._exit(127)


class Tree:
    """All processes below this one.

    root: pid of the first. Without a subreaper (macOS) a process whose parent ends is found only if we saw it before.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._status: int | None = None
        self._known: set[int] = {root}

    def watch(self, control: int, wake: int, grace_s: float) -> bool:
        """Wait until the first process has ended or all are to be killed; returns whether the launcher is gone."""
        alone, deadline = False, float("inf")
        while self._status is None and time.monotonic() < deadline:
            sources = [wake] if alone else [wake, control]
            ready, _, _ = select.select(sources, [], [], min(_LOOK_EVERY_S, deadline - time.monotonic()))
            for number in os.read(wake, 256) if wake in ready else b"":
                if number in _ENDING:
                    self._ask_to_end(number)
            if control in ready:
                request = os.read(control, 1)
                if request == KILL:
                    return alone
                if request == INTERRUPT:
                    self._ask_to_end(signal.SIGINT, send=os.killpg)
                elif not request:
                    alone, deadline = True, time.monotonic() + grace_s
                    self._ask_to_end(signal.SIGTERM)
            self._reap()
            if not _PROC.joinpath("self").exists():
                self._known = descendants(self._known) | {self._root}
        until = time.monotonic() + _LEFTOVERS_S
        while not alone:
            left = time.monotonic() < until and self._reap() and bool(self._below())
            ready, _, _ = select.select([control], [], [], _PAUSE_S if left else 0)
            if ready:
                return not os.read(control, 1)
            if not left:
                break
        return alone

    def end(self) -> None:
        """Kill whatever is left, and whatever that still started."""
        until = time.monotonic() + _KILLING_S
        while self._reap() and time.monotonic() < until:
            below = self._below()
            for pid in below:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not below and self._status is not None:
                return
            time.sleep(_PAUSE_S)

    def exit_code(self) -> int:
        """Of the first process, as a shell has it."""
        if self._status is None:
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _ask_to_end(self, number: int, send: Callable[[int, int], None] = os.kill) -> None:
        if self._status is None:
            with suppress(OSError):
                send(self._root, number)
                os.kill(self._root, signal.SIGCONT)  # torchrun may be stopped; ranks that are stay so

    def _reap(self) -> bool:
        """Take the exit codes that are there; returns whether there are children left."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                self._known.discard(pid)
                if pid == self._root:
                    self._status = status
        return bool(self._known)

    def _below(self) -> set[int]:
        return descendants({os.getpid(), *self._known}) - {os.getpid()}


def descendants(roots: set[int]) -> set[int]:
    """The processes among and below `roots` that have not ended."""
    children: dict[int, list[int]] = {}
    alive = set()
    for pid, parent in _parents():
        alive.add(pid)
        children.setdefault(parent, []).append(pid)
    found, ahead = set(), list(roots)
    while ahead:
        pid = ahead.pop()
        if pid not in found:
            found.add(pid)
            ahead += children.get(pid, [])
    return found & alive


def _parents() -> list[tuple[int, int]]:
    """(pid, its parent's) of all processes but those that have ended and wait for their parents."""
    found = []
    try:
        names = [path.name for path in _PROC.iterdir() if path.name.isdigit()]
    except OSError:
        return _parents_by_ps()
    for name in names:
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            state, parent = _PROC.joinpath(name, "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                found.append((int(name), int(parent)))
    return found


def _parents_by_ps() -> list[tuple[int, int]]:
    done = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    return [(int(row[0]), int(row[1])) for row in rows if len(row) == 3 and not row[2].startswith(b"Z")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
