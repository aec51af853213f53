"""The job that the evidence is of: what is of another one, how many ranks it has, and the setting that it runs in."""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from time import gmtime
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.errors import InputError
from traceops.hangs.evidence import HangEvidence, LogEvent, LogKind, RankRecord, is_borne_out
from traceops.hangs.readers.steps import LogTimes, Moment, moment_of, read_times, seconds_of
from traceops.hangs.readers.went_on import as_outlived
from traceops.hangs.readers.whole_lines import ends_of
from traceops.traces.run_manifest import MOST_RANKS
from traceops.traces.text_lines import holds_any, words_in

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
    if not (jobs := [job for same_world in by_world.values() for job in _by_time(same_world)]):
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
        return reason("hangs", "other_world", ranks=len(world), usual=len(usual))
    return reason("hangs", "other_ranks" if usual and not _members(record) <= set(usual) else "other_time")


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
            later = reason("hangs", "later_dump", path=ranks[record.rank].path, rank=record.rank)
            dropped.append((record.path, later))
        else:
            ranks[record.rank] = record
    for record in doubtful:
        free = [rank for rank in _possible(record) if rank not in ranks]
        if len(free) == 1:
            ranks[free[0]] = replace(record, rank=free[0])
        else:
            dropped.append((record.path, reason("hangs", "wrong_rank", rank=record.rank)))
    return dict(sorted(ranks.items())), dropped


def _possible(record: RankRecord) -> list[int]:
    """The ranks that are in every group this rank belongs to."""
    groups = [set(group.ranks) for group in record.groups.values() if group.ranks]
    return sorted(set.intersection(*groups)) if groups else [record.rank]


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
    of_texts = {str(text): job for text in texts if (job := slurm_job(text)) is not None}
    of_events = {event.path: job for event in log if (job := slurm_job(event.path)) is not None}
    if len(set(of_texts.values())) < 2 or not of_events:
        return list(log), []
    kept = max(of_events.values())
    name = f"{kept[0]}" if kept[1] < 0 else f"{kept[0]}_{kept[1]}"
    others = [path for path, job in of_events.items() if job != kept]
    later = sorted(path for path, job in of_texts.items() if job > kept)
    problems = [(path, reason("hangs", "slurm_other", job=name, path=path)) for path in others]
    problems += [(path, reason("hangs", "slurm_later", job=name)) for path in later]
    return [event for event in log if event.path not in others], problems


def with_earlier_starts(log: Sequence[LogEvent]) -> list[LogEvent]:
    """The events, those of a start after which another began in files of its own as 'outlived'."""
    earlier = {path: _was_started_again(Path(path)) for path in {event.path for event in log}}
    return [
        as_outlived(event) if earlier[event.path] and event.kind not in ("status", "trouble") else event
        for event in log
        if not (earlier[event.path] and event.kind == "status")
    ]


def _was_started_again(path: Path) -> bool:
    for folder in path.parents[:4]:
        if (own := _ATTEMPT.match(folder.name)) is not None:
            attempts = (_ATTEMPT.match(other.name) for other in folder.parent.glob("attempt_*") if other.is_dir())
            return any(other is not None and int(other[1]) > int(own[1]) for other in attempts)
    if (found := _PREVIOUS.search(path.name)) is None:
        return False
    before, after = path.name[: found.start()], path.name[found.end() :]
    names = (f"{before}{after}", f"{before}{after}".lstrip("._-"), f"{before}{found[0][:1]}current{after}")
    return any(name not in ("", path.name) and (path.parent / name).is_file() for name in names)


_SHOWN = 4
_MOST_CLAIMS = 64  # of one log: each rank says it
# run: run.json or a rank's own groups. members: a process group's list. log: a line that counts the ranks.
# sizes: what an all-gather or reduce-scatter makes of its input. seen: the highest rank that anything names.
WorldSource = Literal["run", "members", "log", "sizes", "seen"]
_MOST_TRUSTED: tuple[WorldSource, ...] = ("run", "members", "log", "sizes", "seen")
# What names the ranks of a job: torch, NCCL, Lightning, vLLM, DeepSpeed, the environment.
_COUNTED = re.compile(
    rb"\b(?:global_|dist_)?(?:world[_ ]?size|WORLD_SIZE|num_processes|n_?[rR]anks)[\"']?"
    rb"(?: is)? ?[=: ] ?[\"']?(\d{1,7})\b"
    rb"|\bMEMBER: \d{1,7}/(\d{1,7})\b|\bStarting with (\d{1,7}) processes\b"
    rb"|store[- ]based barrier\b[^\n]{0,120}? with (\d{1,7}) nodes\b"
    rb"|\brank \d{1,7} ?(?:/|out of|of) ?(\d{1,7})\b(?! ?[/.])"
)
_PER_NODE = re.compile(rb"--nproc[_-]per[_-]node[= ](\d{1,5})\b")
_NODES = re.compile(rb"--nnodes[= ](\d{1,5})\b(?!:)")
_NEEDLES = (b"size", b"SIZE", b"anks", b"MEMBER", b"processes", b" nodes", b"per_node", b"per-node", b"rank ")
_GATHERS = ("all_gather", "_all_gather_base", "all_gather_into_tensor")
_SCATTERS = ("reduce_scatter", "_reduce_scatter_base")


class World(Struct, frozen=True):
    """The number of ranks, and what tells it."""

    size: int
    source: WorldSource


def world_of(told: Iterable[World], own: Collection[int], named: Collection[int]) -> World | None:
    """The ranks of the job; None where nothing tells how many. told: what manifests, groups and logs say. own: ranks
    that left files; named: those in logs. Without a size that is told, the highest rank tells it only where enough of
    those below are known too. What says least may be of a smaller group, so the largest counts."""
    claims = [claim for claim in told if 0 < claim.size <= MOST_RANKS]
    own, named = ({rank for rank in ranks if 0 <= rank < MOST_RANKS} for ranks in (own, named))
    ranks = sorted(own | named)
    dense = 0
    for count, rank in enumerate(ranks, 1):
        if not is_borne_out(rank + 1, count):
            break
        dense = rank + 1
    if claims:
        largest = max(claims, key=lambda claim: (claim.size, -_MOST_TRUSTED.index(claim.source)))
        world = largest if largest.size >= dense else World(dense, "seen")
        return None if any(rank >= world.size for rank in own) else world
    return World(dense, "seen") if ranks and dense == ranks[-1] + 1 else None


def worlds_in_logs(texts: Iterable[Path], events: Sequence[LogEvent]) -> list[World]:
    """What lines of logs say of the number of ranks, and what the sizes of a collective say of its group. Raises
    InputError where a file cannot be read."""
    found = [World(size, "sizes") for event in events if (size := _of_sizes(event)) is not None]
    for path in texts:
        sizes: set[int] = set()
        per_node, nodes = 0, 1
        for _, block in ends_of(str(path)):
            if len(sizes) > _MOST_CLAIMS or not holds_any(block, _NEEDLES):
                continue
            sizes.update(int(match[match.lastindex or 1]) for match in _COUNTED.finditer(block))
            per_node = max([per_node, *map(int, _PER_NODE.findall(block))])
            nodes = max([nodes, *map(int, _NODES.findall(block))])
        found += [World(size, "log") for size in (*sizes, per_node * nodes) if size > 0]
    return found


def _of_sizes(event: LogEvent) -> int | None:
    """How many ranks a gather or scatter has, from its elements in and out."""
    sent, received = event.elements_in, event.elements_out
    if event.kind != "timeout" or not sent or not received:
        return None
    one, all_of = (sent, received) if event.op in _GATHERS else (received, sent)
    if event.op not in (*_GATHERS, *_SCATTERS) or all_of % one or all_of == one:
        return None
    return all_of // one


def can_blame(evidence: HangEvidence) -> set[int]:
    """Ranks whose silence in what was read tells something: others left what these did not, and nobody left it out.
    Everybody else in a job may be on another host whose files nobody brought. So a silent rank counts where the
    collection is known to be whole: traceops' own run folder, a file of all other ranks, or a log in which every rank
    says something."""
    everybody = set(evidence.everybody)
    known = {*evidence.records, *evidence.stacks, *evidence.processes}
    heard = set[int]().union(*(event.named for event in evidence.log))
    if evidence.is_own_run:
        return everybody
    filed = {rank for rank, record in evidence.records.items() if record.source != "log"}
    filed |= {*evidence.stacks, *evidence.rank_files}
    silent = everybody - filed
    if len(filed) > 1 and len(silent) <= max(1, len(filed) // 4):
        return everybody
    seen_elsewhere = {*evidence.stacks, *evidence.processes}
    return everybody if everybody <= known | heard else seen_elsewhere


def within_world(events: Sequence[LogEvent], world: int) -> tuple[tuple[LogEvent, ...], list[tuple[str, str]]]:
    """The events without ranks that the job does not have, and (file, what was left out of it)."""
    kept: list[LogEvent] = []
    strange: dict[str, tuple[int, set[int]]] = {}
    for event in events:
        if outside := {rank for rank in event.named if rank >= world}:
            strange.setdefault(event.path, (event.line, set()))[1].update(outside)
            own = None if event.rank in outside else event.rank
            accused = tuple(rank for rank in event.accused if rank not in outside)
            event = replace(event, rank=own, accused=accused)
        kept.append(event)
    problems = []
    for path, (line, out) in strange.items():
        first = ", ".join(map(str, sorted(out)[:_SHOWN]))
        listed = f"{first} … ({len(out)} in all)" if len(out) > _SHOWN else first
        if len(out) == 1:
            problems.append((path, reason("hangs", "strange_rank", one=listed, world=world, line=line)))
        else:
            problems.append((path, reason("hangs", "strange_ranks", listed=listed, world=world, line=line)))
    return tuple(kept), problems


class _Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    setting: str
    signs: tuple[str, ...]
    bring: str


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    about: str
    settings: tuple[_Setting, ...]
    default: str


@lru_cache(maxsize=1)
def _settings() -> _Settings:
    return msgspec.json.decode(Path(__file__).with_name("settings.json").read_bytes(), type=_Settings)


def setting_of(texts: Iterable[Path]) -> str | None:
    """The first setting of which a text has a sign; None without any. Raises InputError where one cannot be read."""
    known = _settings().settings
    signs = [sign.encode() for one in known for sign in one.signs]
    seen = {word for text in texts for _, block in ends_of(str(text)) for word in words_in(block, signs)}
    return next((one.setting for one in known if any(sign.encode() in seen for sign in one.signs)), None)


def how_to_bring(setting: str | None) -> str:
    """How to get each rank's own output there, as the middle of a sentence."""
    known = _settings()
    return next((one.bring for one in known.settings if one.setting == setting), known.default)


_XID = "Xid ("
_PID = re.compile(r"\bpid=(\d{1,10})\b|Killed process (\d{1,10})\b")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# '[Fri Nov 20 09:00:00 2026]' of dmesg -T, 'Nov 20 09:00:00 node7 kernel: ' of syslog.
_DATE = re.compile(
    rf"(?P<month>{'|'.join(_MONTHS)}) {{1,2}}(?P<day>\d{{1,2}}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
    r"(?: (?P<year>\d{4})\b)?"
)
_SINCE_BOOT = re.compile(r"^\s{0,8}(?:<\d{1,3}>)?\[ {0,8}\d{1,9}\.\d{1,9}\]")
_BEHIND_S = 600  # the kernel's line may come so long after the last of the job's
_STEP_S = 60  # and the last step so long after it: what follows is another's
_ZONE_S = 900  # clocks of two logs may be in two zones, which differ by quarters of an hour
_ZONES_S = 14 * 3600
_FAILED: tuple[LogKind, ...] = (
    "error", "memory", "cuda", "nccl", "connection", "timeout", "exit", "monitor", "mismatch", "missing",
)  # fmt: skip
_OWN: tuple[LogKind, ...] = ("error", "memory")  # what no GPU's failure explains
_SAVED = re.compile(r"[/\\]evidence[/\\]kernel\.[^/\\]{1,253}\.txt$")  # by `traceops run`: lines since the run began


def with_kernel_joined(log: Sequence[LogEvent], texts: Sequence[Path]) -> list[LogEvent]:
    """The events; what the kernel says that nothing joins to the job beside it is 'trouble', with what is not known.
    Without a job's log, or where a process id, the time or the kind of failure joins them, it stays what it is."""
    if not (said := [event for event in log if _is_of_kernel(event)]):
        return list(log)
    own = [event for event in log if event not in said]
    failed = {event.path for event in own if event.kind != "trouble"}
    asked = sorted({pid for event in said if (pid := _pid(event)) is not None})
    job: list[LogTimes] = []
    for text in dict.fromkeys(map(str, texts)):
        with contextlib.suppress(InputError):
            times = read_times(text, asked)
            job += [times] if times.steps or text in failed else []
    if not job:
        return list(log)
    pids = set[int]().union(*(times.pids for times in job))
    failures = {event.kind for event in own}.intersection(_FAILED)
    joined = []
    for event in log:
        why = _apart(event, job, failures) if event in said and _pid(event) not in pids else None
        joined.append(event if why is None else replace(event, kind="trouble", text=f"{event.text} ({why})"))
    return joined


def _is_of_kernel(event: LogEvent) -> bool:
    return (
        _SAVED.search(event.path) is None
        and event.kind in ("cuda", "memory", "error")
        and (_XID in event.text or ("Killed process" in event.text and _PID.search(event.text) is not None))
    )


def _pid(event: LogEvent) -> int | None:
    match = _PID.search(event.text)
    return None if match is None else int(match[1] or match[2])


def _apart(event: LogEvent, job: Sequence[LogTimes], failures: set[LogKind]) -> str | None:
    """Why the line is not taken for a cause, None where it may be one. failures: kinds in the job's own logs."""
    clocks = [(own, times) for times in job if times.last is not None and (own := _when(event, times.last)) is not None]
    if not clocks:
        # Of a line whose time cannot be compared: a failure that a GPU's may be behind keeps it a cause.
        if _XID not in event.text or "cuda" in failures or (failures and not failures.intersection(_OWN)):
            return None
        return reason("hangs", "since_boot" if _SINCE_BOOT.match(event.text) else "no_times")
    whys = [_by_clock(own, times) for own, times in clocks]
    return None if None in whys else whys[0]


def _by_clock(when: int, job: LogTimes) -> str | None:
    assert job.last is not None
    end = job.last[1]
    begin = end if job.first is None or job.first[0] != job.last[0] else job.first[1]
    step = job.last_step[1] if job.last_step is not None and job.last_step[0] == job.last[0] else None
    if when > end + _BEHIND_S or when < begin:
        shift = round((end - when) / _ZONE_S) * _ZONE_S  # of a line of the job's last minutes, in another zone's time
        shifted = when + shift
        if 0 < abs(shift) <= _ZONES_S and (end if step is None else step) - _STEP_S <= shifted <= end + _STEP_S:
            return reason("hangs", "time_zone")
        if when > end:
            return reason("hangs", "after_end", time=_long(when - end))
        return reason("hangs", "before_begin", time=_long(begin - when))
    if step is not None and step > when + _STEP_S:
        return reason("hangs", "steps_after", time=_long(step - when))
    return None


def _when(event: LogEvent, like: Moment) -> int | None:
    """When the line was written, as the job's log counts; None where it has no date."""
    text = event.text[:160]
    if (moment := moment_of(text.encode())) is not None:
        return moment[1] if moment[0] == like[0] else None
    if (match := _DATE.search(text)) is None:
        return None
    of_log = 2000 if like[0] == "glog" else gmtime(like[1]).tm_year
    year = of_log if match["year"] is None or like[0] == "glog" else int(match["year"])
    month, day = _MONTHS.index(match["month"]) + 1, int(match["day"])
    return seconds_of(year, month, day, int(match["h"]), int(match["m"]), int(match["s"]))


def _long(seconds: int) -> str:
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
