"""What the kernel's log and NCCL Inspector say of a job's machines, and whether anything joins it to the job."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import gmtime

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.errors import InputError
from traceops.core.rank_text import who, who_first
from traceops.fabric.measured import Inspector, InspectorRank
from traceops.hangs.evidence import LogEvent, LogKind
from traceops.hangs.readers.steps import LogTimes, Moment, moment_of, read_times, seconds_of

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


class _Job(Struct, frozen=True):
    """The logs of the job with what was read of them."""

    times: Mapping[str, LogTimes]
    failures: tuple[LogEvent, ...]

    @property
    def pids(self) -> frozenset[int]:
        return frozenset().union(*(told.pids for told in self.times.values()))


def with_kernel_joined(log: Sequence[LogEvent], texts: Sequence[Path]) -> list[LogEvent]:
    """The events; what the kernel says that nothing joins to the job beside it is 'trouble', with what is not known.

    Without a job's log, or where a process id, the time or the kind of failure joins them, it stays what it is.
    """
    said = [event for event in log if _is_of_kernel(event)]
    if not said:
        return list(log)
    job = _job(log, said, texts)
    if not job.times:
        return list(log)
    return [_judged(event, job) if event in said else event for event in log]


def _is_of_kernel(event: LogEvent) -> bool:
    return (
        _SAVED.search(event.path) is None
        and event.kind in ("cuda", "memory", "error")
        and (_XID in event.text or ("Killed process" in event.text and _PID.search(event.text) is not None))
    )


def _job(log: Sequence[LogEvent], said: Sequence[LogEvent], texts: Sequence[Path]) -> _Job:
    own = tuple(event for event in log if event not in said and event.kind in _FAILED)
    failed = {event.path for event in log if event not in said and event.kind != "trouble"}
    pids = sorted({pid for event in said if (pid := _pid(event)) is not None})
    times = {}
    for text in dict.fromkeys(map(str, texts)):
        try:
            told = read_times(text, pids)
        except InputError:
            continue
        if told.steps or text in failed:
            times[text] = told
    return _Job(times, own)


def _pid(event: LogEvent) -> int | None:
    match = _PID.search(event.text)
    return None if match is None else int(match[1] or match[2])


def _judged(event: LogEvent, job: _Job) -> LogEvent:
    if _pid(event) in job.pids:
        return event
    why = _apart(event, job)
    return event if why is None else replace(event, kind="trouble", text=f"{event.text} ({why})")


def _apart(event: LogEvent, job: _Job) -> str | None:
    """Why the line is not told as a cause; None where it may be one."""
    told = [(one, _when(event, one.last)) for one in job.times.values() if one.last is not None]
    whys = [_by_time(own, one) for one, own in told if own is not None]
    if not whys:
        return _without_time(event, job)
    return None if None in whys else whys[0]


def _by_time(when: int, job: LogTimes) -> str | None:
    assert job.last is not None
    end = job.last[1]
    begin = end if job.first is None or job.first[0] != job.last[0] else job.first[1]
    step = job.last_step[1] if job.last_step is not None and job.last_step[0] == job.last[0] else None
    if when > end + _BEHIND_S or when < begin:
        if _may_be_zone(when, end if step is None else step, end):
            return "the same minutes if the two logs have clocks of two time zones; which is unknown"
        if when > end:
            return f"{_long(when - end)} after the job's log ends"
        return f"{_long(begin - when)} before the job's log begins"
    if step is not None and step > when + _STEP_S:
        return f"the job's log has steps for {_long(step - when)} after it"
    return None


def _may_be_zone(when: int, step: int, end: int) -> bool:
    """Whether the line is of the job's last minutes in another zone's time."""
    shift = round((end - when) / _ZONE_S) * _ZONE_S
    return 0 < abs(shift) <= _ZONES_S and step - _STEP_S <= when + shift <= end + _STEP_S


def _without_time(event: LogEvent, job: _Job) -> str | None:
    """Of a line whose time cannot be compared: a failure that a GPU's may be behind keeps it a cause."""
    kinds = {failure.kind for failure in job.failures}
    if _XID not in event.text or "cuda" in kinds or (kinds and not kinds.intersection(_OWN)):
        return None
    since = "it counts seconds since the boot: dmesg -T has dates" if _SINCE_BOOT.match(event.text) else "no times tell"
    return f"nothing says that it is of this job; {since}"


def _when(event: LogEvent, like: Moment) -> int | None:
    """When the line was written, as the job's log counts; None where it has no date."""
    text = event.text[:160]
    if (told := moment_of(text.encode())) is not None:
        return told[1] if told[0] == like[0] else None
    if (match := _DATE.search(text)) is None:
        return None
    of_log = 2000 if like[0] == "glog" else _year(like[1])
    year = of_log if match["year"] is None or like[0] == "glog" else int(match["year"])
    month, day = _MONTHS.index(match["month"]) + 1, int(match["day"])
    return seconds_of(year, month, day, int(match["h"]), int(match["m"]), int(match["s"]))


def _year(seconds: int) -> int:
    return gmtime(seconds).tm_year


def _long(seconds: int) -> str:
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


# Ranks on which NCCL Inspector wrote nothing more while it wrote on for the others of their communicator.


_APART_S = 2  # seconds in which the others wrote on: what one interval's end tears apart comes at one moment
# What no rank can complete before all have called it; a rank may be far behind in the others.
_NEEDS_ALL = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll")


def inspector_events(inspector: Inspector) -> tuple[LogEvent, ...]:
    """An event for each number at which some ranks' lines end though the others' go on in several writes.

    Inspector writes at intervals, so that a difference within one write of the others proves nothing. Times are
    compared within one file only: hosts' clocks differ. Sends and receives are left aside, as ranks differ in them.
    """
    alike: defaultdict[tuple[str, str], list[InspectorRank]] = defaultdict(list)
    for row in inspector.completed:
        if not row.is_p2p:
            alike[row.communicator, row.op].append(row)
    return tuple(event for rows in alike.values() for event in _behind(rows))


def _behind(rows: Sequence[InspectorRank]) -> Iterator[LogEvent]:
    most = max(row.last for row in rows)
    ended: defaultdict[int, list[InspectorRank]] = defaultdict(list)
    for row in rows:
        if row.last < most:
            ended[row.last].append(row)
    for last, behind in sorted(ended.items()):
        others = [row for row in rows if row.last > last]
        if min(_wrote_on_s(row, last) for row in others) >= _APART_S:
            yield _event(last, behind, others)


def _wrote_on_s(row: InspectorRank, last: int) -> int:
    """Seconds between the first and the last write of numbers beyond `last`."""
    later = [second for second, number in row.written if number > last]
    return max(later) - min(later)


def _event(last: int, behind: Sequence[InspectorRank], others: Sequence[InspectorRank]) -> LogEvent:
    one = behind[0]
    ranks = [row.rank for row in behind]
    most = max(row.last for row in others)
    wrote_on = min(_wrote_on_s(row, last) for row in others)
    of = f"communicator {one.name or one.communicator} ({one.ranks} ranks)"
    text = (
        f"{who_first(ranks)} of {of}: the last {one.op} that NCCL Inspector wrote is #{last}, "
        f"and it wrote on to #{most} for {who([row.rank for row in others])}, over {wrote_on} s"
    )
    if one.op in _NEEDS_ALL:
        text += (
            f". All ranks take part in each {one.op}, so more was done there than written: the process may have "
            "ended or stopped, or the file was copied earlier"
        )
    return LogEvent("inspector", None, one.path, one.line, text, op=one.op, sequence=last)
