"""Finds which files under a path are traces, of which rank and which capture window."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.capture_failure import (
    UNSEEN_STEPS_ADVICE,
    advice_text,
    by_cause,
    cause_text,
    counted,
    shorter_schedule,
)
from traceops.core.documents import copied
from traceops.core.errors import InputError, problem_of
from traceops.traces.event import LATEST_NS, first_times_us
from traceops.traces.kineto import SEVERAL, read_meta
from traceops.traces.run_manifest import (
    MOST_RANKS,
    RecordedSteps,
    capture_failures,
    profiled_itself_early,
    read_run_manifest,
    recorded_steps,
)
from traceops.traces.scan import Scanner
from traceops.traces.source import chunks, is_remote, open_binary
from traceops.traces.windows import (
    ANEW,
    PAIRS,
    SUFFIX,
    Candidate,
    TraceFile,
    Window,
    assign_ranks,
    chosen_window,
    group_windows,
    join_beside,
    join_elsewhere,
    latest_window,
    leads_out,
    list_files,
    of_evaluation,
    of_newest_job,
    read_header,
    trace_stem,
    without_other_runs,
)

Process = tuple[str | None, int]  # host, pid
_CLEAR = 0.5  # times as far from its own job's begin as from the next nearest
_FAR_NS = 10 * 10**9  # ranks of one job begin within it


class _Own(Struct, frozen=True):
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
    """The windows of each job, the newest last; duplicates; and files that may be of another job. processes: by path.
    Where some tell none, and where each rank has one, all traces are of one job."""
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
        if (process := processes.get(file.path)) is None:
            return [list(files)], True
        by_process[file.rank, process].append(file)
    of_rank: dict[int, list[_Own]] = defaultdict(list)
    for (rank, process), held in by_process.items():
        of_rank[rank].append(_Own(rank, process, tuple(held)))
    if (most := max((len(own) for own in of_rank.values()), default=0)) < 2:
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
    """The job of each process of a rank, and whether that is sure. Ranks of a job begin to record together, and a
    launcher starts them one after the other. Where the two say different jobs, times tell if these are far apart, else
    pids."""
    near = [sorted((abs(own.began_ns - one.began_ns), at) for at, one in enumerate(anchors)) for own in owns]
    clear = all(first[0] <= _CLEAR * second[0] for first, second, *_ in near)
    by_time, by_pid = (_distinct([first[1] for first, *_ in near]) if clear else None), _by_pid(owns, anchors)
    apart = min(now.began_ns - before.began_ns for before, now in pairwise(anchors))
    if by_time is not None and (by_pid in (None, by_time) or apart > _FAR_NS):
        return by_time, True
    if by_pid is not None:
        return by_pid, False
    order = sorted(range(len(owns)), key=lambda own: owns[own].began_ns)
    return [order.index(own) for own in range(len(owns))], False


def _by_pid(owns: Sequence[_Own], anchors: Sequence[_Own]) -> list[int] | None:
    """The last one that was started before it; None on several hosts, and where pids began anew."""
    if len({own.process[0] for own in (*owns, *anchors)}) > 1:
        return None
    before = [[(one.process[1], at) for at, one in enumerate(anchors) if one.process[1] <= own.process[1]]
              for own in owns]  # fmt: skip
    return _distinct([max(own)[1] for own in before]) if all(before) else None


def _distinct(jobs: list[int]) -> list[int] | None:
    return jobs if len(set(jobs)) == len(jobs) else None


_HOST_EVENT = re.compile(
    rb'"ph"\s*:\s*"X"\s*,\s*"cat"\s*:\s*"(?:cpu_op|user_annotation|cuda_runtime|python_function)"[^{}]{0,400}?'
    rb'"pid"\s*:\s*(\d{1,10})'
)
_END = re.compile(rb'"Record Window End"[^{}]{0,200}?"ts"\s*:\s*([0-9.]+)')  # kineto's last event
_TAIL = 1 << 16


def process_of(head: bytes) -> int | None:
    """The pid of the first event of a host in a trace's beginning."""
    match = _HOST_EVENT.search(head)
    return None if match is None else int(match.group(1))


def with_processes(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, with a process only where several of them are of it. Such files name no rank, lie in one folder,
    have one pid, and each begins behind the end of the one before. Ranks of containers that have one pid record at
    the same time."""
    alike: dict[tuple[str, int], list[Candidate]] = defaultdict(list)
    for one in candidates:
        if one.process is not None and one.rank_in_name is None and one.rank_inside is None and not one.summarized:
            alike[str(PurePosixPath(one.trace).parent), one.process].append(one)
    same = {one.path for own in alike.values() if len(own) > 1 and _in_turn(own) for one in own}
    return [one if one.path in same else replace(one, process=None) for one in candidates]


def _in_turn(own: Sequence[Candidate]) -> bool:
    """Whether each begins behind the end of the one before."""
    ordered = sorted(own, key=lambda one: one.started_ns)
    for one, following in pairwise(ordered):
        if (span := _span_ns(one.path)) is None or one.started_ns + span > following.started_ns:
            return False
    return True


def _span_ns(path: str) -> int | None:
    """From a trace's first event to the end of its recording; None where it does not tell that."""
    first, tail = None, b""
    try:
        with open_binary(path) as file:
            for piece in chunks(file):
                if first is None:
                    first = next(iter(first_times_us(piece)), None)
                tail = (tail + piece)[-_TAIL:]
    except InputError:
        return None
    ends = _END.findall(tail)
    return None if first is None or not ends else int((float(ends[-1]) - first) * 1000)


__all__ = ["PAIRS", "Discovery", "TraceFile", "Window", "discover"]

_RANK = re.compile(r"(?:^|[^a-z])(?:rank|worker)[_-]?(\d+)(?=\D|$)", re.IGNORECASE)
_WINDOW = re.compile(r"(?:^|[._-])window[_-]?(\d+)(?=\D|$)", re.IGNORECASE)
_AT_ONCE = 16  # files of a remote store whose beginnings are asked for together
_HEAD_BYTES = 1 << 18
_LABELLED = re.compile(rb'"pid"\s*:\s*"\[[^"\]]*\] \d')  # as SGLang's merger has pids: "[TP01] 4711"
_ENDED = {"failed": "failed", "hung": "hung"}  # status in run.json: what the program did

Inspected = tuple[Candidate | None, str | None]


class Discovery(Struct, frozen=True):
    """What was found: windows in time order, the run's own manifest, and files that could not be used."""

    root: str
    name: str
    windows: tuple[Window, ...]
    manifest: dict[str, Any] = field(default_factory=dict)
    problems: tuple[tuple[str, str], ...] = ()  # path, what is wrong with it
    notes: tuple[str, ...] = ()
    doubts: tuple[tuple[str, str], ...] = ()  # path of a file that is used, what contradicts itself in it

    @property
    def latest(self) -> Window:
        """The window to analyse."""
        return chosen_window(self.windows, self.manifest)

    def left_out(self, used: Window) -> tuple[int, int]:
        """How many windows besides are of the same job, and how many of other jobs."""
        others = [own for own in self.windows if own is not used]
        same = sum(own.job == used.job for own in others)
        return same, len(others) - same

    def job_of(self, paths: Sequence[str]) -> tuple[Window, ...]:
        """The windows of the job that recorded these files; of all, where none is known."""
        asked = {*paths}
        jobs = {own.job for own in self.windows for file in own.files if file.path in asked or file.summary in asked}
        return tuple(own for own in self.windows if not jobs or own.job in jobs)


def discover(path: str) -> Discovery:
    """Traces and summaries of traces under a folder, or one such file; local or remote. Raises InputError where there
    is nothing to analyse. Files that look like traces and are empty or no JSON become problems, not errors, as long as
    one good file is left."""
    root, sizes = list_files(path)
    if not is_remote(root) and Path(root, PAIRS).is_file():
        raise InputError(
            f"{path} holds the runs of a series, base and head in turn: traceops compare {path} compares them, "
            f"traceops analyze {Path(path, 'head_1')} analyses one"
        )
    candidates, problems = [], []
    for (file, size), (candidate, problem) in zip(sizes.items(), _inspect_all(list(sizes), root), strict=True):
        if candidate is not None:
            candidates.append(replace(candidate, size_bytes=size))
        elif problem is not None:
            problems.append((file, problem))
    candidates = join_beside(candidates)
    problems = _without_spare(problems, candidates)
    if not candidates:
        if problems:
            raise _none_readable(path, problems)
        if not is_remote(root) and Path(root, "report.json").is_file():
            raise InputError(f"{path} is a report and holds no traces: show it with: traceops show {path}")
        raise InputError(f"{path} holds no traces{_why_none(read_run_manifest(root)[0])}")
    manifest, manifest_problem = read_run_manifest(root)
    if manifest_problem:
        problems.append(manifest_problem)
    candidates, foreign = without_other_runs(candidates)
    problems.extend(foreign)
    candidates, outdated = _with_steps(candidates, recorded_steps(manifest, root))
    problems.extend(outdated)
    if not candidates:
        raise _none_readable(path, problems)
    files, notes, doubts = assign_ranks(with_processes(candidates))
    listed = bool(manifest.get("ranks"))  # run.json tells the process of each rank
    windows, duplicates, unsure = windows_of_jobs(
        join_elsewhere(files),
        {c.path: c.window for c in candidates},
        {c.path: None if listed or c.process is None else (c.host, c.process) for c in candidates},
    )
    problems.extend(duplicates)
    if (jobs := len({own.job for own in windows})) > 1:
        notes.append(
            f"a rank has several processes: the traces are of {jobs} jobs, of one that was restarted, or of copies of "
            "one that number their ranks alike. The newest is meant; --select all analyses each. Put each in a folder "
            "of its own"
        )
    if (chosen := chosen_window(windows, manifest)) is not windows[-1]:
        why = "more ranks recorded two whole steps there"
        if latest_window(of_newest_job(windows)) is windows[-1]:
            why = "the later steps took no less, and were recorded to show shorter ones"
        elif of_evaluation(windows[-1]):
            why = "that one is of evaluation"
        notes.append(f"window {chosen.index} is analysed, and not window {windows[-1].index}: {why}")
    name = trace_stem(PurePosixPath(root.rstrip("/")).name or "traces") or "trace"
    return Discovery(root, name, windows, manifest, tuple(problems), tuple(notes), (*doubts, *unsure))


def _none_readable(path: str, problems: Sequence[tuple[str, str]]) -> InputError:
    listed = "\n".join(f"  {file}: {what}" for file, what in problems[:20])
    return InputError(f"{path} holds no readable trace:\n{listed}")


def _inspect_all(paths: Sequence[str], root: str) -> list[Inspected]:
    alone = len(paths) == 1
    if not is_remote(root):
        return [_inspect(path, root, alone) for path in paths]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda path: _inspect(path, root, alone), paths))


def _inspect(path: str, root: str, alone: bool) -> Inspected:
    """Read a file's first bytes: a trace, a summary, something else (None, None), or a file that is no use."""
    within = PurePosixPath(path).name if alone and path == root else path.removeprefix(root)
    rank_in_name = _rank_in_name(within)
    looks_like_trace = alone or rank_in_name is not None or ".trace." in PurePosixPath(path).name
    try:
        if not is_remote(path) and leads_out(path, root):
            return None, "it is a link out of this folder, and is not followed: give what it leads to, or copy it here"
        if not is_remote(path) and not Path(path).is_file():
            return None, "it is no regular file, or a link to nothing" if looks_like_trace else None
    except OSError as error:  # its folder may be listed, but not entered
        return None, error.strerror if looks_like_trace else None
    match = _WINDOW.search(PurePosixPath(path).name)
    window = int(match.group(1)) if match else None
    try:
        if path.endswith(SUFFIX):
            return _summary(path, rank_in_name, window), None
        with open_binary(path, _HEAD_BYTES) as file:
            scanner = Scanner(chunks(file), path)
            head = scanner.peek()
    except InputError as error:
        return None, problem_of(error)
    if not head:
        what = "; ".join(scanner.damage) or "its list of events is cut off before the first one"
        return None, what if looks_like_trace else None
    if not looks_like_trace and b'"ph"' not in head:
        return None, None
    if _LABELLED.search(head):
        return None, SEVERAL
    meta = read_meta(scanner.meta)
    base = scanner.meta.get("baseTimeNanoseconds")
    base = base if isinstance(base, int) and 0 <= base < LATEST_NS else 0
    started = int(next(iter(first_times_us(head)), 0.0) * 1000) + base
    told = Candidate(path, path, rank_in_name, meta.rank, meta.world_size, window, started)
    return replace(told, process=process_of(head), host=meta.host), None


def _summary(path: str, rank_in_name: int | None, window: int | None) -> Candidate:
    header = read_header(path)
    inside = header.rank_inside
    if rank_in_name is None and header.rank_from == "name":  # of the trace, whose name may have been changed
        inside = header.rank
    own = {"path": path, "rank_in_name": rank_in_name, "rank_inside": inside, "window": window, "summarized": True}
    return copied(Candidate, header, **own)


def _why_none(manifest: dict[str, Any]) -> str:
    """What run.json says of why a run has no trace, as the end of a sentence; else what is a trace."""
    if early := by_cause(capture_failures(manifest)):
        told = "; ".join(
            f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))}: {cause_text(failure)} "
            f"({advice_text(failure)})"
            for ranks, failure in early
        )
        return f", because the capture ended early: {told}"
    if any(rank.get("status") == "given_way" for rank in manifest.get("ranks") or ()):
        return (
            ", because the program started a profiler of its own and two cannot record at once, or ends its steps in "
            "several threads (run.json says which): take its profiler out for this run, or analyze the folder that it "
            "writes to"
        )
    steps = 0 if manifest.get("ranks") == [] else manifest.get("steps")  # without ranks nobody ended a step
    ended = _ENDED.get(str(manifest.get("status")))
    if isinstance(steps, int) and ended is not None:
        when = f"after {counted(steps)}" if steps else "before its first step ended"
        return f": the program {ended} {when}"
    if manifest.get("status") == "finished" and steps == 0:
        return f": no process was seen to train; {UNSEEN_STEPS_ADVICE}"
    known = steps if isinstance(steps, int) else 0
    shorter = shorter_schedule(manifest.get("schedule"), known)
    if shorter is not None and profiled_itself_early(manifest):
        return (
            f": the program ended after {counted(known)}, with a profiler of its own at work, and two cannot record at "
            "once: take its profiler out for this run, or analyze the folder that it writes to"
        )
    if shorter is not None:
        return (
            f": the program ended after {counted(known)}, and the schedule needs {shorter.needed}; record it with: "
            f"traceops run {shorter.flags}"
        )
    return (
        ". Expected torch.profiler's *.json or *.json.gz, such as rank_0/host_123.pt.trace.json.gz; capture some "
        "with: traceops run --strategy pytorch_ddp"
    )


def _without_spare(problems: Sequence[tuple[str, str]], candidates: Sequence[Candidate]) -> list[tuple[str, str]]:
    """A summary that is no use costs nothing where its trace is there."""
    traces = {trace_stem(c.path) for c in candidates if not c.summarized}
    return [(p, what) for p, what in problems if not (p.endswith(SUFFIX) and trace_stem(p) in traces)]


def _with_steps(
    candidates: Sequence[Candidate], recorded: dict[str, RecordedSteps]
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """The steps that the capture recorded whole; a summary that was made without knowing them is left out."""
    of_stem = {trace_stem(path): steps for path, steps in recorded.items()}
    kept, outdated = [], []
    for candidate in candidates:
        told = of_stem.get(trace_stem(candidate.path))
        steps = candidate.steps if told is None else told.numbers
        if not candidate.summarized or steps == candidate.steps:
            kept.append(replace(candidate, steps=steps))
        elif candidate.steps is None and told is not None and told.complete:
            kept.append(candidate)
        else:
            outdated.append((candidate.path, f"was made when run.json told of other whole steps; {ANEW}"))
    return kept, outdated


def _rank_in_name(within: str) -> int | None:
    """The rank in the file's name, or else in the name of the nearest folder that has one."""
    for part in reversed(PurePosixPath(within).parts):
        matches = _RANK.findall(part)
        if matches and len(matches[-1]) < 10 and int(matches[-1]) < MOST_RANKS:
            return int(matches[-1])
    return None
