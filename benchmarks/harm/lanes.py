"""Cases side by side: each lane is a process with two cores of those that the harness has."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import TypeVar

from benchmarks.harm.cases import RANDOM, Case

T = TypeVar("T")
_CORES_EACH = 2
_FIRST = (RANDOM, "signals", "faults", "windows", "strangers")  # files whose cases begin first, for they have to fit
_LEAST_TIMES = 9.0  # a case that begins when less than so many times what it takes is left would be cut off
_MOST_SLEEP_S = 10.0  # what sleeps longer is ended
_SLEEPS = re.compile(r"\bsleep\((\d+(?:\.\d+)?)\)")


def side_by_side(
    work: Callable[[Case, float], T], cases: list[Case], lanes: int, deadline: float
) -> Iterator[tuple[Case, T | None]]:
    """Results in the order of the cases; None where no time was left for one.

    The files of _FIRST begin in their order, then the others; of each what takes longest.

    `work` gets the case and the deadline, of `time.monotonic()`.
    """
    processes = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(lanes, processes, _take_cores, (processes.Value("i", 0), lanes)) as pool:
        first = sorted(cases, key=lambda case: (_place(case), -seconds_about(case)))
        running = {case.name: pool.submit(_within, work, case, deadline) for case in first}
        yield from ((case, running[case.name].result()) for case in cases)


def _place(case: Case) -> int:
    return _FIRST.index(case.file) if case.file in _FIRST else len(_FIRST)


def _within(work: Callable[[Case, float], T], case: Case, deadline: float) -> T | None:
    return work(case, deadline) if deadline - time.monotonic() > _LEAST_TIMES * seconds_about(case) else None


def _take_cores(begun: Synchronized[int], lanes: int) -> None:
    """Pin this lane to its cores. Neighbors share some where there are fewer than two for each."""
    with begun.get_lock():
        lane, begun.value = begun.value, begun.value + 1
    cores = sorted(os.sched_getaffinity(0))
    first = lane * len(cores) // lanes
    if lanes > 1:
        with suppress(OSError):  # a sandbox may not let it choose
            os.sched_setaffinity(0, {cores[(first + more) % len(cores)] for more in range(_CORES_EACH)})


def seconds_about(case: Case) -> float:
    """How long it takes compared with others: processes that import torch, and the time that it sleeps."""
    of_ranks = case.way == "run" or any("torch" in word for word in case.command)
    imports = 6.0 if of_ranks else 2.0 if "torch" in case.main else 0.5
    sleeps = [float(case.words[0])] if case.begins == "saves" else map(float, _SLEEPS.findall(case.main))
    return imports + 2 * (case.settle_s + case.after_s + min(max(sleeps, default=0.0), _MOST_SLEEP_S))


def reason_to_skip(case: Case) -> str:
    """What the case needs that this machine lacks, or nothing."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    for tool in case.command[:1]:
        if "/" not in tool and not shutil.which(tool, path=path):
            return f"there is no {tool} here"
    return _why_no_mounts() if case.own_mounts else ""


@cache
def _why_no_mounts() -> str:
    if os.getuid() != 0:
        return "it takes root"
    with tempfile.TemporaryDirectory() as folder:
        words = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=9", "none", folder]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"no mounts here: {error}"
    return f"no mounts here: {done.stderr.strip()[-100:]}" if done.returncode else ""
