"""Runs commands and measures them: wall and CPU seconds, and memory over all their processes."""

from __future__ import annotations

import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Timed:
    """Seconds of the wall, and of CPU over the command and the processes it waited for."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Watched(Timed):
    """The same of a command whose memory was sampled meanwhile, which takes CPU from it.

    `peak_mb` is the most of the proportional set sizes summed over the command, its children and those of
    `beside`; `main_peak_mb` the most that the command's own process had resident. `alone_after_s` is when its
    last child had ended, to one sample, None where it had none.
    """

    peak_mb: float
    main_peak_mb: float
    alone_after_s: float | None


def run_timed(command: Sequence[str], env: Mapping[str, str] | None = None) -> Timed:
    """Run to the end, output discarded. Raises SystemExit with its errors where it fails."""
    return _run(command, env, None)


def run_watched(
    command: Sequence[str], sample_s: float, env: Mapping[str, str] | None = None, beside: Sequence[psutil.Process] = ()
) -> Watched:
    """Run to the end and sample memory every so many seconds; `beside` are processes that work for it."""
    watch = _Watch(sample_s, beside)
    timed = _run(command, env, watch)
    return Watched(timed.seconds, timed.cpu_seconds, watch.peak / 1e6, watch.main_peak / 1e6, watch.alone_after_s)


def _run(command: Sequence[str], env: Mapping[str, str] | None, watch: _Watch | None) -> Timed:
    with tempfile.TemporaryFile() as errors:
        cpu, started = _cpu_of_children(), time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=env)
        if watch is not None:
            watch.until_it_ends(process)
        code = process.wait()
        timed = Timed(time.perf_counter() - started, _cpu_of_children() - cpu)
        if code:
            errors.seek(0)
            raise SystemExit(f"{list(command)[:6]} failed:\n{errors.read().decode()[-3000:]}")
    return timed


class _Watch:
    """Samples a process and its children until it ends."""

    def __init__(self, sample_s: float, beside: Sequence[psutil.Process]) -> None:
        self.sample_s = sample_s
        self.beside = beside
        self.peak = 0
        self.main_peak = 0
        self.alone_after_s: float | None = None

    def until_it_ends(self, process: subprocess.Popen[bytes]) -> None:
        started = time.perf_counter()
        main = psutil.Process(process.pid)
        had_children = False
        while process.poll() is None:
            children = _children(main)
            helpers = [each for other in self.beside for each in (other, *_children(other))]
            everyone = {main, *children, *helpers}
            self.peak = max(self.peak, sum(_bytes(each, "smaps_rollup", "Pss:") for each in everyone))
            # The kernel's own maximum: getrusage's begins at that of the process that started this one.
            self.main_peak = max(self.main_peak, _bytes(main, "status", "VmHWM:"))
            if had_children and not children:
                self.alone_after_s = time.perf_counter() - started
            had_children = bool(children)
            time.sleep(self.sample_s)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children(recursive=True)
        return children
    except psutil.Error:
        return []


def _bytes(process: psutil.Process, file: str, field: str) -> int:
    try:
        for line in Path(f"/proc/{process.pid}/{file}").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # it has just ended
    return 0
