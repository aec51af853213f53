"""Which traces of one folder are of one job: in it a rank has one process, and its traces are windows of that one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from traceops.traces.windows import TraceFile, Window, group_windows

Process = tuple[str | None, int]  # host, pid
_CLEAR = 0.5  # times as far from its own job's begin as from the next nearest
_FAR_NS = 10 * 10**9  # ranks of one job begin within it


@dataclass(frozen=True)
class _Own:
    """What one process wrote as a rank."""

    rank: int
    process: Process
    files: tuple[TraceFile, ...]

    @property
    def began_ns(self) -> int:
        return min(file.started_ns for file in self.files)


def windows_of_jobs(
    files: list[TraceFile], window_in_name: dict[str, int | None], processes: Mapping[str, Process | None]
) -> tuple[tuple[Window, ...], list[tuple[str, str]], list[tuple[str, str]]]:
    """The windows of each job, the newest last; duplicates; and files that may be of another job.

    processes: by path. Where some tell none, and where each rank has one, all traces are of one job.
    """
    jobs, sure = _jobs(files, processes)
    windows: list[Window] = []
    problems: list[tuple[str, str]] = []
    for number, own in enumerate(jobs):
        found, duplicates = group_windows(own, window_in_name)
        problems += duplicates
        windows += (
            [replace(one, index=len(windows) + at, job=number) for at, one in enumerate(found)]
            if len(jobs) > 1
            else found
        )
    doubts = [
        (file.path, "may be of another of the jobs that recorded here at the same time. It is used; put each job in a "
         "folder of its own")
        for file in (() if sure else windows[-1].files)
    ]  # fmt: skip
    return tuple(windows), problems, doubts


def _jobs(files: Sequence[TraceFile], processes: Mapping[str, Process | None]) -> tuple[list[list[TraceFile]], bool]:
    """The files of each job, the newest last, and whether it is sure which belong together."""
    by_process: dict[tuple[int, Process], list[TraceFile]] = defaultdict(list)
    for file in files:
        process = processes.get(file.path)
        if process is None:
            return [list(files)], True
        by_process[file.rank, process].append(file)
    of_rank: dict[int, list[_Own]] = defaultdict(list)
    for (rank, process), held in by_process.items():
        of_rank[rank].append(_Own(rank, process, tuple(held)))
    most = max((len(own) for own in of_rank.values()), default=0)
    if most < 2:
        return [list(files)], True
    first = min(rank for rank, own in of_rank.items() if len(own) == most)
    anchors = sorted(of_rank.pop(first), key=lambda own: own.began_ns)
    jobs, sure = [list(own.files) for own in anchors], True
    for rest in of_rank.values():
        at, clear = _of_anchors(rest, anchors)
        sure &= clear
        for job, own in zip(at, rest, strict=True):
            jobs[job] += own.files
    return jobs, sure


def _of_anchors(owns: list[_Own], anchors: list[_Own]) -> tuple[list[int], bool]:
    """The job of each process of a rank, and whether that is sure.

    Ranks of a job begin to record together, and a launcher starts them one after the other. Where the two say different
    jobs, times tell if these are far apart, else pids.
    """
    by_time, by_pid = _by_time(owns, anchors), _by_pid(owns, anchors)
    apart = min(now.began_ns - before.began_ns for before, now in pairwise(anchors))
    if by_time is not None and (by_pid in (None, by_time) or apart > _FAR_NS):
        return by_time, True
    if by_pid is not None:
        return by_pid, False
    order = sorted(range(len(owns)), key=lambda own: owns[own].began_ns)
    return [order.index(own) for own in range(len(owns))], False


def _by_time(owns: Sequence[_Own], anchors: Sequence[_Own]) -> list[int] | None:
    """The nearest; None where that is not clear."""
    near = [sorted((abs(own.began_ns - one.began_ns), at) for at, one in enumerate(anchors)) for own in owns]
    clear = all(first[0] <= _CLEAR * second[0] for first, second, *_ in near)
    return _distinct([first[1] for first, *_ in near]) if clear else None


def _by_pid(owns: Sequence[_Own], anchors: Sequence[_Own]) -> list[int] | None:
    """The last one that was started before it; None on several hosts, and where pids began anew."""
    if len({own.process[0] for own in (*owns, *anchors)}) > 1:
        return None
    before = [[(one.process[1], at) for at, one in enumerate(anchors) if one.process[1] <= own.process[1]]
              for own in owns]  # fmt: skip
    return _distinct([max(own)[1] for own in before]) if all(before) else None


def _distinct(jobs: list[int]) -> list[int] | None:
    return jobs if len(set(jobs)) == len(jobs) else None
