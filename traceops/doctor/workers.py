"""The worker processes of one job: start, watch and end them, whatever state they are in."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

import traceops
from traceops.core.as_module import command_of
from traceops.core.errors import InputError
from traceops.doctor.failure_cause import FailureCause
from traceops.doctor.job import Job, Reports, WorkerTask, child_environment

_TAIL_BYTES = 64 << 10
_DEATH_S = 5.0  # for processes that were killed; inside a driver that hangs they do not die
_ROOM_BYTES = 1 << 20  # what ranks report and print unless something is very wrong
_LINES = 8
_LONG_LINE = 400
# Tells nothing of the failure: where in Python or in torch it came from, and warnings.
_NOISE = re.compile(
    r"^(\s|Traceback |frame #|Exception raised from|During handling of|The above exception|\S+Warning:)"
    r"|Warning: |^\[W\d|\]:\[W\d|<unknown function>|^<omitting python frames>"
)
_NCCL_WARN = re.compile(r"NCCL WARN\b.*")


class WorkerProcess(Struct):
    """One rank. exit: its return code once it has ended (negative: of a signal)."""

    rank: int
    process: subprocess.Popen[bytes]
    reports: Reports
    stderr: Path
    exit: int | None = None

    def refresh(self) -> None:
        """Learn whether it has ended, and what it has reported until then."""
        ended = self.process.poll()
        if ended is not None and self.exit is None:
            _kill(self.process.pid)  # what it started; at once, as its number may soon be somebody else's
        self.exit = ended
        self.reports.refresh()

    def has(self, stage: str, event: str) -> bool:
        return bool(self.reports.of(stage, event))

    @property
    def error(self) -> str | None:
        """The exception it ended with."""
        return next((found["text"] for found in self.reports.events if found["event"] == "error"), None)

    @property
    def cause(self) -> FailureCause | None:
        """Why it cannot test anything, where it found that itself."""
        return next((found["cause"] for found in self.reports.events if found.get("cause")), None)

    @property
    def failed(self) -> bool:
        """Whether it said why it cannot go on, or ended before it was done."""
        return self.error is not None or (self.exit is not None and not self.left)

    @property
    def left(self) -> bool:
        """Whether it was done with everything."""
        return any(found["event"] == "left" for found in self.reports.events)

    @property
    def at(self) -> str | None:
        """What it did last, as far as it said."""
        last = [found for found in self.reports.events if found["event"] in ("at", "begin")]
        return last[-1].get("what") if last else None

    def said(self) -> list[str]:
        """The last lines of its error output that mean something, and of its exception."""
        lines = [*tail(self.stderr), *(self.error or "").splitlines()]
        told = dict.fromkeys(line.strip()[:_LONG_LINE] for line in lines if line and not _NOISE.search(line))
        return list(told)[-_LINES:]


class Workers:
    """All ranks of a job on this machine. `end` must be called.

    Raises InputError where there is no room for what the ranks report.
    """

    def __init__(self, job: Job, environ: Mapping[str, str], folder: Path, logs: Path) -> None:
        self.children: list[WorkerProcess] = []
        self._logs = logs
        for where, which in ((folder, "TMPDIR"), (logs, "-o DIR")):
            if shutil.disk_usage(where).free < _ROOM_BYTES:
                raise InputError(f"no space is left for the tests' reports in {where}; make room, or see {which}")
        try:
            for number in range(len(job.devices)):
                task = WorkerTask(job, job.first_rank + number, str(folder), os.getpid())
                self.children.append(_start(task, environ, logs))
        except BaseException:
            self.end()
            raise

    def refresh(self) -> None:
        for child in self.children:
            child.refresh()

    def end(self) -> list[WorkerProcess]:
        """Kill every process that is left, and what it started. Returns those that do not die."""
        for child in self.children:
            if child.process.returncode is None:  # else its number may be somebody else's by now
                _kill(child.process.pid)
        until = time.monotonic() + _DEATH_S
        for child in self.children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(timeout=max(0.0, until - time.monotonic()))
        return [child for child in self.children if child.process.poll() is None]

    def nccl_logs(self) -> list[Path]:
        return sorted(self._logs.glob("nccl.*.log"))

    def nccl_warnings(self) -> list[str]:
        """What NCCL warned of, each once, whoever said it."""
        texts = (found[0] for path in self.nccl_logs() for line in tail(path) if (found := _NCCL_WARN.search(line)))
        return list(dict.fromkeys(text[:_LONG_LINE] for text in texts))[-_LINES:]


def _start(task: WorkerTask, environ: Mapping[str, str], logs: Path) -> WorkerProcess:
    out, err = (logs / f"rank_{task.rank}.{name}.txt" for name in ("stdout", "stderr"))
    env = child_environment(task, environ, logs)
    # Last: found where traceops is not installed, and in front of nothing that would be found otherwise.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), _HOME)))
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            command_of("traceops.doctor.worker"),
            env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    return WorkerProcess(task.rank, process, Reports(task.reports), err)


def _kill(session: int) -> None:
    """Every rank has a session of its own: end it, and what it started in it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


_HOME = str(Path(traceops.__file__).parent.parent)


def tail(path: Path) -> Iterable[str]:
    """The last lines of a file that may be of any size and hold anything."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()
