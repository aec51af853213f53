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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

# Over the pipe: kill every process at once; Ctrl-C for all processes of the command's group, as a terminal sends it.
KILL, INTERRUPT = b"k", b"i"
_LEFTOVERS_S = 1.0  # a data loader ends after its rank
_KILLING_S = 5.0
_PAUSE_S = 0.02
_AFTERWARDS_S = 10.0
_LOOK_EVERY_S, _LOGS_EVERY_S = 2.0, 0.2
_READ_BYTES = 1 << 18
_PROC = Path("/proc")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()
# Of which we would die, and which are the ranks': a batch system sends them to every process that it sees.
_NOT_OURS = (signal.SIGUSR1, signal.SIGUSR2, *_REAL_TIME)


@dataclass(frozen=True)
class SupervisorSettings:
    """control: descriptor of the pipe's reading end. keep: descriptors that only have to stay open while we live.

    afterwards: command that is run once all is over, if the launcher is gone by then. remove: the folder of the ranks'
    records, to be removed then.
    grace_s: for ranks to save what they captured, once the launcher is gone. outputs: pipes that the ranks write to,
    each with its log.
    """

    control: int
    keep: list[int] = field(default_factory=list)
    afterwards: list[str] = field(default_factory=list)
    remove: str | None = None
    grace_s: float = 35.0
    outputs: list[tuple[str, str]] = field(default_factory=list)


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
    tree, logs = Tree(_start(argv[1:], libc)), Logs(settings.outputs)
    alone = tree.watch(settings.control, wake_read, settings.grace_s)
    go_on = tree.end(settings.remove)
    logs.end()
    if go_on and settings.outputs and os.fork() == 0:
        logs.go_on([settings.control, *settings.keep])
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
    if pid := os.fork():
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
    """All processes below this one. root: pid of the first. Without a subreaper (macOS) a process whose parent ends is
    found only if we saw it before."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._status: int | None = None
        self._known: set[int] = {root}
        self._asked = False

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
                if (request := os.read(control, 1)) == KILL:
                    self._asked = True
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

    def end(self, records: str | None = None) -> bool:
        """Kill whatever is left, and whatever that still started; returns whether anything goes on. That is what the
        program gave a session of its own, if it came to its end: it was to outlive it. records: of the ranks, which
        torchrun gives sessions of their own, too."""
        until = time.monotonic() + _KILLING_S
        well = self._status == 0 and not self._asked
        sessions = {os.getsid(0), *_ranks_in(records)}
        while self._reap() and time.monotonic() < until:
            below = self._below()
            apart = {pid for pid in below if _session(pid) not in sessions} if well else set()
            below -= apart
            for pid in below:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not below and self._status is not None:
                return bool(apart)
            time.sleep(_PAUSE_S)
        return False

    def exit_code(self) -> int:
        """Of the first process, as a shell has it."""
        if self._status is None:
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _ask_to_end(self, number: int, send: Callable[[int, int], None] = os.kill) -> None:
        self._asked = True
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


class Logs:
    """Keeps what the ranks print: a thread reads their pipes, so that no print() of theirs fails for a full disk.
    outputs: pipes and their logs. What a log does not take goes to our own output, as long as somebody reads that."""

    def __init__(self, outputs: list[tuple[str, str]]) -> None:
        self._outputs = outputs
        self._logs = {os.open(pipe, os.O_RDWR | os.O_NONBLOCK): Path(log) for pipe, log in outputs}
        self._files: dict[Path, int] = {}
        self._lost, self._why = 0, ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The ranks have ended: keep the rest."""
        self._over.set()
        self._thread.join(_KILLING_S)
        if self._lost:
            told = f"traceops: {self._lost} bytes of the ranks' output are not in their logs ({self._why})\n"
            with suppress(OSError):
                os.write(2, told.encode())

    def go_on(self, others: list[int]) -> NoReturn:
        """In a child: keep what processes print that outlive the run, until none of them is left."""
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        reading = {os.open(pipe, os.O_RDONLY | os.O_NONBLOCK): Path(log) for pipe, log in self._outputs}
        for descriptor in (*others, *self._logs):
            os.close(descriptor)
        self._logs = reading
        while self._logs:
            for descriptor in select.select(list(self._logs), [], [])[0]:
                if not self._keep(descriptor):
                    del self._logs[descriptor]
        os._exit(0)

    def _run(self) -> None:
        over = False
        while self._logs:
            ready, _, _ = select.select(list(self._logs), [], [], 0 if over else _LOGS_EVERY_S)
            for descriptor in ready:
                self._keep(descriptor)
            if over and not ready:
                return
            over = self._over.is_set()  # once more then: what was written until now

    def _keep(self, descriptor: int) -> bool:
        """Write what there is to its log; returns whether there was anything."""
        try:
            data = found = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        try:
            while data:
                data = data[os.write(self._log(self._logs[descriptor]), data) :]
        except OSError as error:
            self._lost, self._why = self._lost + len(data), str(error.strerror)
            with suppress(OSError):
                while data and select.select([], [1], [], 0)[1]:
                    data = data[os.write(1, data[: select.PIPE_BUF]) :]
        return bool(found)

    def _log(self, path: Path) -> int:
        if path not in self._files:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[path] = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        return self._files[path]


def _ranks_in(records: str | None) -> Iterator[int]:
    """The processes of the ranks that wrote a record in this folder."""
    for path in Path(records).glob("rank_*.json") if records is not None else ():
        with suppress(OSError, ValueError, KeyError, TypeError):
            yield int(json.loads(path.read_bytes())["pid"])


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended
        return os.getsid(0)


def descendants(roots: set[int]) -> set[int]:
    """The processes among and below `roots` that have not ended."""
    children: dict[int, list[int]] = {}
    alive = set()
    for pid, parent in _parents():
        alive.add(pid)
        children.setdefault(parent, []).append(pid)
    found, ahead = set(), list(roots)
    while ahead:
        if (pid := ahead.pop()) not in found:
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
