"""Which dumps and logs belong to one job and to its last start."""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from traceops.hangs.evidence import LogEvent, RankRecord
from traceops.hangs.readers.went_on import as_outlived

# Ranks of one hanging job all stop calling collectives within their timeout, half an hour at most by default.
_GAP_NS = 3600 * 10**9
_LATEST = 16  # operations: they are in program order, so nearly in that of time

Dropped = tuple[str, str]


def one_job(records: Sequence[RankRecord]) -> tuple[dict[int, RankRecord], list[Dropped]]:
    """The records of the job with most ranks (the latest of equals), and (file, why) for those left out."""
    dropped: list[Dropped] = []
    by_world: dict[tuple[int, ...] | None, list[RankRecord]] = defaultdict(list)
    for record in records:
        by_world[_world(record)].append(record)
    untold = by_world.pop(None, [])
    by_size = sorted(by_world, key=lambda world: -len(by_world[world]))
    for record in untold:  # it may belong to any job that has all ranks it knows of
        fitting = (world for world in by_size if _members(record) <= set(world or ()))
        by_world[next(fitting, None)].append(record)
    jobs = [job for same_world in by_world.values() for job in _by_time(same_world)]
    if not jobs:
        return {}, []
    kept = max(jobs, key=lambda job: (len({record.rank for record in job}), _latest(job)))
    for job in jobs:
        if job is not kept:
            dropped += [(record.path, _why(record, kept)) for record in job]
    ranks, doubled = _one_a_rank(kept)
    return ranks, dropped + doubled


def _world(record: RankRecord) -> tuple[int, ...] | None:
    """The job's ranks; None where the rank has not used the group of all ranks: torch lists those used only."""
    known = [group.ranks for group in record.groups.values() if group.ranks and group.is_of_all]
    return max(known, key=len, default=None)


def _members(record: RankRecord) -> set[int]:
    """All ranks that the record tells of."""
    return {rank for group in record.groups.values() for rank in group.ranks or ()}


def _last_call(record: RankRecord) -> int | None:
    latest = record.operations[-_LATEST:]
    return max((op.created_ns for op in latest if op.created_ns), default=None)


def _latest(job: Sequence[RankRecord]) -> int:
    return max((_last_call(record) or 0 for record in job), default=0)


def _by_time(records: list[RankRecord]) -> list[list[RankRecord]]:
    timed = sorted((r for r in records if _last_call(r)), key=lambda record: _last_call(record) or 0)
    untimed = [record for record in records if not _last_call(record)]
    jobs: list[list[RankRecord]] = [timed[:1]] if timed else []
    for before, record in pairwise(timed):
        if (_last_call(record) or 0) - (_last_call(before) or 0) > _GAP_NS:
            jobs.append([])
        jobs[-1].append(record)
    if not jobs:
        return [untimed]
    max(jobs, key=lambda job: (len(job), _latest(job))).extend(untimed)
    return jobs


def _why(record: RankRecord, kept: Sequence[RankRecord]) -> str:
    worlds = Counter(_world(other) for other in kept)
    world, usual = _world(record), worlds.most_common(1)[0][0]
    if world != usual and world and usual:
        return f"it is of another job, with {len(world)} ranks where the others have {len(usual)}; left out"
    if usual and not _members(record) <= set(usual):
        return "it is of another job, with ranks that the others do not know; left out"
    return "it is of another job, over an hour before or after the others; left out"


def _one_a_rank(records: Sequence[RankRecord]) -> tuple[dict[int, RankRecord], list[Dropped]]:
    """Each rank's record; a file that claims a rank which its groups exclude is of the rank they leave."""
    ranks: dict[int, RankRecord] = {}
    dropped: list[Dropped] = []
    claims = Counter(record.rank for record in records)
    doubtful: list[RankRecord] = []
    for record in sorted(records, key=lambda record: (_last_call(record) or 0, record.path), reverse=True):
        if claims[record.rank] > 1 and record.rank not in _possible(record):
            doubtful.append(record)
        elif record.rank in ranks:
            dropped.append((record.path, f"{ranks[record.rank].path} is a later dump of rank {record.rank}"))
        else:
            ranks[record.rank] = record
    for record in doubtful:
        free = [rank for rank in _possible(record) if rank not in ranks]
        if len(free) == 1:
            ranks[free[0]] = replace(record, rank=free[0])
        else:
            dropped.append(
                (record.path, f"its name says rank {record.rank}, its groups do not; name it …_rank_<number>")
            )
    return dict(sorted(ranks.items())), dropped


def _possible(record: RankRecord) -> list[int]:
    """The ranks that are in every group this rank belongs to."""
    groups = [set(group.ranks) for group in record.groups.values() if group.ranks]
    return sorted(set.intersection(*groups)) if groups else [record.rank]


# Which start of which job a log is of, by its name: Slurm's, torchrun's attempts, kubectl's --previous.


_SLURM = re.compile(r"^slurm-(\d{1,18})(?:_(\d{1,9}))?(?=[._-])")
_ATTEMPT = re.compile(r"^attempt_(\d{1,6})$")
_PREVIOUS = re.compile(r"(?:^|[._-])prev(?:ious)?(?=[._-]|$)", re.IGNORECASE)

Job = tuple[int, int]  # Slurm's numbers of the job and of the task of its array, -1 without


def slurm_job(path: str | Path) -> Job | None:
    """The job that Slurm's default name of a log tells: slurm-123.out, slurm-123_4.out."""
    match = _SLURM.match(Path(path).name)
    return None if match is None else (int(match[1]), int(match[2] or -1))


def one_slurm_job(log: Sequence[LogEvent], texts: Sequence[Path]) -> tuple[list[LogEvent], list[tuple[str, str]]]:
    """The events of the latest job that tells any and of files that name none, and (file, why) of what is left out."""
    jobs = {job for text in texts if (job := slurm_job(text)) is not None}
    telling = {job for event in log if (job := slurm_job(event.path)) is not None}
    if len(jobs) < 2 or not telling:
        return list(log), []
    kept = max(telling)
    left_out = dict.fromkeys(event.path for event in log if slurm_job(event.path) not in (kept, None))
    problems = [
        (path, f"it is of another job of Slurm than what is told here ({_named(kept)}): traceops diagnose {path}")
        for path in left_out
    ]
    later = sorted(str(text) for text in texts if (job := slurm_job(text)) is not None and job > kept)
    problems += [
        (path, f"it is of a later job of Slurm than {_named(kept)}, and tells of no failure") for path in later
    ]
    return [event for event in log if event.path not in left_out], problems


def with_earlier_starts(log: Sequence[LogEvent]) -> list[LogEvent]:
    """The events, those of a start after which another began in files of its own as 'outlived'."""
    earlier = {path: _was_started_again(Path(path)) for path in {event.path for event in log}}
    return [
        as_outlived(event) if earlier[event.path] and event.kind not in ("status", "trouble") else event
        for event in log
        if not (earlier[event.path] and event.kind == "status")
    ]


def _named(job: Job) -> str:
    return f"{job[0]}" if job[1] < 0 else f"{job[0]}_{job[1]}"


def _beside(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [other for other in folder.parent.iterdir() if other.is_dir()]
    return []


def _is_later(folder: Path, attempt: int) -> bool:
    match = _ATTEMPT.match(folder.name)
    return match is not None and int(match[1]) > attempt


def _was_started_again(path: Path) -> bool:
    for folder in path.parents[:4]:
        if (match := _ATTEMPT.match(folder.name)) is not None:
            return any(_is_later(other, int(match[1])) for other in _beside(folder))
    if (found := _PREVIOUS.search(path.name)) is None:
        return False
    before, after = path.name[: found.start()], path.name[found.end() :]
    names = (f"{before}{after}", f"{before}{after}".lstrip("._-"), f"{before}{found[0][:1]}current{after}")
    return any(name not in ("", path.name) and (path.parent / name).is_file() for name in names)
