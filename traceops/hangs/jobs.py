"""Which of the dumps found belong together: one job's, one a rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from traceops.hangs.evidence import RankRecord

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
