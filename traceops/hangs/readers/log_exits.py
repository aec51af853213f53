"""Which processes ended and how, as torchrun, Slurm, MPI and torch.multiprocessing say in a log."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from traceops.core.errors import reported_codes, signal_name

_REPORTED_RANK = re.compile(r"^\s{0,8}rank\s{0,8}: \d{1,7} \(local_rank: \d{1,7}\)\s{0,8}$")
_PID = re.compile(r"\(pid: (\d{1,10})\)")
_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,7})(?: \(pid: (\d{1,10})\)|\s{0,8}$)")
_CHILD = re.compile(r"^Child process (\d{1,10}) \(local_rank (\d{1,7})\) FAILED \(exitcode (-?\d{1,5})\)")
# Our own launcher, in `tell`: below srun its tasks are nodes.
_TRACEOPS = re.compile(
    r"traceops: rank (\d{1,7})(?: on [^\s:]{1,200})? (?:failed|ended) first, exit code (-?\d{1,3})\b"
)
_SRUN = re.compile(r"srun: error: [^\s:]{1,200}: tasks? ([\d,\-]{1,2000}): (.{1,200})")
_SRUN_CODE = re.compile(r"Exited with exit code (\d{1,5})")
_MPI = re.compile(r"noticed that process rank (\d{1,7}) .{0,200}?exited on signal (\d{1,3})")
# Cray's mpiexec; Composer's launcher; Horovod's.
_PALS = re.compile(
    r"^[^\s:]{1,200}: rank (?P<rank>\d{1,7})"
    r" (?:died from signal (?P<signal>\d{1,3})|exited with code (?P<code>\d{1,3}))"
)
_COMPOSER = re.compile(
    r"(?:\bRank (?P<rank>\d{1,7}) crashed with exit|^Global rank (?P<of>\d{1,7}) \(PID \d{1,10}\) exited with)"
    r" code (?P<code>-?\d{1,3})\b"
)
_HOROVOD = re.compile(r"\bProcess (?P<rank>\d{1,7}) exit with status code (?P<code>\d{1,3})\.")
# mpirun's report, which has a line for each: 'Process name: [[32288,1],0]'.
_PROCESS = re.compile(r"\s{0,8}Process name: \[\[\d{1,10},\d{1,10}\],(\d{1,7})\]\s{0,8}$")
_SIGNALLED = 128  # of a mere exit code all ranks' own lines, which mpirun passes on, tell more
_ITS_CODE = re.compile(r"\s{0,8}Exit code: {1,8}(\d{1,5})\s{0,8}$")
_SPAWN = re.compile(r"process (\d{1,7}) terminated with (?:signal (SIG[A-Z]{1,10})|exit code (\d{1,5}))")
# Slurm's words for a signal, as strsignal has them.
_SIGNALS = {
    "Killed": signal.SIGKILL, "Segmentation fault": signal.SIGSEGV, "Aborted": signal.SIGABRT,
    "Terminated": signal.SIGTERM, "Bus error": signal.SIGBUS, "Out Of Memory": signal.SIGKILL,
    "Floating point exception": signal.SIGFPE, "Illegal instruction": signal.SIGILL,
}  # fmt: skip
_MOST_TASKS = 1 << 16


@dataclass(frozen=True)
class Exit:
    """A process of `ranks` ended. sure: the numbers are ranks; else a launcher's count that may differ."""

    line: int
    ranks: tuple[int, ...]
    code: int
    text: str
    root: bool = False
    sure: bool = True
    pid: int | None = None


class Exits:
    """Reads a launcher's lines; the reports of torchrun and mpirun take two lines a rank."""

    def __init__(self) -> None:
        self._in_root = False
        self._rank_line: str | None = None
        self._at: int | None = None
        self._process: re.Match[str] | None = None  # whose exit code is on the next line

    @property
    def is_open(self) -> bool:
        return self._rank_line is not None or self._process is not None

    @property
    def rank(self) -> int | None:
        """The rank that torchrun's report is at."""
        return self._at

    def take(self, number: int, body: str) -> Exit | None:
        if body.startswith(("Failures:", "=====")):
            self._in_root, self._at = False, None
        elif body.startswith("Root Cause"):
            self._in_root = True
        if self._rank_line is not None:
            line, self._rank_line = self._rank_line, None
            return self._reported(number, f"{line}\n{body}")
        if "local_rank: " in body and _REPORTED_RANK.match(body) is not None:
            self._rank_line = body
            return None
        process = self._process
        self._process = _PROCESS.match(body) if "Process name: " in body else None
        if process is not None and (its := _ITS_CODE.match(body)) is not None and int(its[1]) > _SIGNALLED:
            return _of_rank(number, process[1], int(its[1]), f"mpirun: rank {process[1]}, exit code {its[1]}")
        return _failed(number, body)

    def _reported(self, number: int, lines: str) -> Exit | None:
        pid = _PID.search(lines)
        for rank, code in reported_codes(lines).items():
            self._at = rank
            root = " (root cause)" if self._in_root else ""
            text = f"torchrun: rank {rank} {_ended(code)}{root}"
            return Exit(number, (rank,), code, text, self._in_root, pid=None if pid is None else int(pid[1]))
        return None


def _failed(number: int, body: str) -> Exit | None:
    if "exitcode: " in body and (match := _FAILED.search(body)) is not None:
        code, local = int(match[1]), int(match[2])
        text = f"torchrun: local rank {local} {_ended(code)}"
        pid = None if match[3] is None else int(match[3])  # the line may be cut behind the rank
        return Exit(number, (local,), code, text, root=True, sure=False, pid=pid)
    if "exitcode " in body and (match := _CHILD.search(body)) is not None:  # torch 1.9
        code, local = int(match[3]), int(match[2])
        text = f"torchrun: local rank {local} {_ended(code)}"
        return Exit(number, (local,), code, text, root=True, sure=False, pid=int(match[1]))
    if " first, exit code " in body and (match := _TRACEOPS.search(body)) is not None:
        text = f"traceops: rank {match[1]} {_ended(int(match[2]))} first"
        return Exit(number, (int(match[1]),), int(match[2]), text, root=True)
    if "srun: error: " in body and (match := _SRUN.search(body)) is not None:
        srun = _srun_code(match[2])
        return None if srun is None else Exit(number, _tasks(match[1]), srun, match[0], sure=False)
    if "exited on signal" in body and (match := _MPI.search(body)) is not None:
        return Exit(number, (int(match[1]),), -int(match[2]), match[0], root=True)
    if (" died from signal " in body or ": rank " in body) and (match := _PALS.match(body)) is not None:
        return _of_rank(number, match["rank"], -int(match["signal"] or 0) or int(match["code"]), match[0])
    if " code " in body and (match := _COMPOSER.search(body)) is not None:
        return _of_rank(number, match["rank"] or match["of"], int(match["code"]), match[0])
    if " code " in body and (match := _HOROVOD.search(body)) is not None:
        return _of_rank(number, match["rank"], int(match["code"]), match[0])
    if "terminated with " in body and (match := _SPAWN.search(body)) is not None:
        code = int(match[3]) if match[3] else -getattr(signal, match[2], 0)
        return Exit(number, (int(match[1]),), code, match[0], sure=False) if code else None
    return None


def _of_rank(number: int, rank: str, code: int, text: str) -> Exit | None:
    """What a launcher says of a rank itself; a shell or a wrapper adds 128 to a signal."""
    code = 128 - code if 128 < code < 128 + signal.NSIG else code
    return Exit(number, (int(rank),), code, text) if code else None


def _srun_code(words: str) -> int | None:
    exited = _SRUN_CODE.match(words)
    if exited is not None:
        code = int(exited[1])
        return 128 - code if 128 < code < 128 + signal.NSIG else code  # a shell between srun and the rank
    return next((-number for name, number in _SIGNALS.items() if words.startswith(name)), None)


def _tasks(text: str) -> tuple[int, ...]:
    """'0-2,5' as numbers."""
    tasks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first.isdecimal() and len(first) < 8 and (not dash or (last.isdecimal() and len(last) < 8)):
            end = int(last) if dash else int(first)
            tasks += range(int(first), min(end, int(first) + _MOST_TASKS - len(tasks)) + 1)
    return tuple(tasks[:_MOST_TASKS])


def _ended(code: int) -> str:
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
