"""The events of a log while it is read, and what they tell of each rank in the shape of a dump."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from traceops.hangs.crashes import crash_kind
from traceops.hangs.evidence import GroupStatus, LogEvent, LogKind, Operation, RankRecord, RecordedGroup
from traceops.traces.run_manifest import MOST_RANKS

# Of each kind and rank: what came first explains most, what came last shows the state at the end.
_FIRST = 100
_LAST = 100
_MOST = 100_000  # of all: a log of garbage must not fill the memory
_MOST_TEXT = 600
# [E1120 23:51:07.561 ProcessGroupNCCL.cpp:689] [Rank 0] says nothing that the event does not.
# What says less than any line that tells of trouble: how far ranks are, how processes ended, what NCCL warns of.
_SAY_LITTLE: tuple[LogKind, ...] = ("status", "exit", "trouble", "nccl", "said")
_GLOG = re.compile(r"^\[[EWIF]\d{0,4} [^\]]{1,80}\] (?:\[Rank \d{1,7}\]:? )?")
_EXPLANATION = "This is most likely caused by"


def shortened(text: str) -> str:
    """A message in one line, without torch's prefix and its general advice."""
    said = _GLOG.sub("", text[: 8 * _MOST_TEXT].strip()).partition(_EXPLANATION)[0]
    return " ".join(said.split())[:_MOST_TEXT]


def says_why(event: LogEvent) -> bool:
    """Whether an event is a failure or a wait by itself: what stands beside it need not be searched for one."""
    return event.kind not in _SAY_LITTLE or (event.kind == "nccl" and crash_kind(event.text, raised=False) is not None)


def with_more(text: str, more: str) -> str:
    """A message and what another says behind it, as of each rank of a checkpoint: once where they are alike."""
    return text if more in text else shortened(f"{text} {more}")


class OpenEvent:
    """An event that later lines may complete."""

    def __init__(self, event: LogEvent) -> None:
        self.event = event

    def amend(self, **fields: Any) -> None:
        self.event = replace(self.event, **fields)


class EventList:
    """Keeps the first and the last events of each kind and rank."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._first: dict[tuple[LogKind, int | None], list[OpenEvent]] = {}
        self._last: dict[tuple[LogKind, int | None], deque[OpenEvent]] = {}
        self._count = 0
        self._says_why = False
        self.since = 0  # the line in which the latest attempt began: what it says is no repetition of another's

    def add(self, kind: LogKind, rank: int | None, line: int, text: str, **fields: Any) -> OpenEvent:
        """A new event; its text is cut to what a reader needs."""
        if rank is not None and rank >= MOST_RANKS:
            rank = None
        open_event = OpenEvent(LogEvent(kind, rank, self._path, line, shortened(text), **fields))
        self._says_why = self._says_why or says_why(open_event.event)
        first = self._first.setdefault((kind, rank), []) if self._count < _MOST else []
        if len(first) < _FIRST:
            first.append(open_event)
            self._count += 1
        else:
            self._last.setdefault((kind, rank), deque(maxlen=_LAST)).append(open_event)
        return open_event

    @property
    def says_nothing(self) -> bool:
        """Whether none was ever added that is a failure or a wait."""
        return not self._says_why

    def drop(self, open_event: OpenEvent) -> None:
        """Take an event back that turned out to be another's beginning."""
        key = (open_event.event.kind, open_event.event.rank)
        for kept in (self._first.get(key), self._last.get(key)):
            if kept and kept[-1] is open_event:
                kept.pop()

    def recent(self, kind: LogKind, rank: int | None, wanted: Callable[[LogEvent], bool]) -> OpenEvent | None:
        """The latest of the kind by the rank that is as wanted, in this attempt."""
        for kept in (self._last.get((kind, rank)), self._first.get((kind, rank))):
            for open_event in reversed(kept or ()):
                if open_event.event.line > self.since and wanted(open_event.event):
                    return open_event
        return None

    def all_of(self, kind: LogKind, rank: int | None) -> list[OpenEvent]:
        return [*self._first.get((kind, rank), ()), *self._last.get((kind, rank), ())]

    def any_rank(self, kind: LogKind, wanted: Callable[[LogEvent], bool]) -> bool:
        """Whether there is one as wanted, whoever says so."""
        return any(self.recent(kind, rank, wanted) is not None for its, rank in list(self._first) if its == kind)

    def in_order(self) -> tuple[LogEvent, ...]:
        open_events = [open_event for kept in (*self._first.values(), *self._last.values()) for open_event in kept]
        return tuple(sorted((open_event.event for open_event in open_events), key=lambda event: event.line))


_MESSAGES = ("send", "recv")
_DEFAULT_NAME = "0"  # the name that torch gives the group of all ranks


def records_from_log(events: Iterable[LogEvent]) -> dict[int, RankRecord]:
    """What the log alone says of each rank's collectives: those that timed out, and how far each group has come. A
    timeout without a number in its group cannot be compared between ranks and is left out."""
    said: defaultdict[int, list[LogEvent]] = defaultdict(list)
    for event in _with_groups_of_others(list(events)):
        is_call = event.kind == "timeout" and event.op is not None and event.sequence is not None
        if event.rank is not None and (is_call or event.kind == "status"):
            said[event.rank].append(event)
    return _with_status_alone({rank: _record(rank, its) for rank, its in sorted(said.items())})


def _with_status_alone(records: dict[int, RankRecord]) -> dict[int, RankRecord]:
    """Ranks of which only a status line is left wait in what comes after the last that is done, as others call it."""
    calls = {(op.group, op.sequence): op for record in records.values() for op in record.operations}
    found = {}
    for rank, record in records.items():
        stuck = [
            calls[name, status.completed + 1]
            for name, status in record.status.items()
            if status.completed is not None
            and (status.enqueued or 0) > status.completed
            and (name, status.completed + 1) in calls
        ]
        if not record.operations and stuck:
            operations = tuple(replace(op, record=place, frames=()) for place, op in enumerate(stuck))
            record = replace(record, operations=operations)
        found[rank] = record
    return found


def _with_groups_of_others(events: list[LogEvent]) -> list[LogEvent]:
    """A timeout that names no group is of the group in which other ranks' call of that number and size is."""
    groups: defaultdict[tuple[object, ...], set[tuple[str, str | None]]] = defaultdict(set)
    for event in events:
        if event.kind == "timeout" and event.group is not None and event.elements_in is not None:
            groups[_call(event)].add((event.group, event.group_description))
    named = []
    for event in events:
        known = groups.get(_call(event), set()) if event.kind == "timeout" and event.group is None else set()
        if len(known) == 1:
            ((group, description),) = known
            event = replace(event, group=group, group_description=description)
        named.append(event)
    return named


def _call(event: LogEvent) -> tuple[object, ...]:
    return event.op, event.sequence, event.elements_in, event.elements_out


def _record(rank: int, events: list[LogEvent]) -> RankRecord:
    groups: dict[str, RecordedGroup] = {}
    status: dict[str, GroupStatus] = {}
    calls: dict[tuple[str, int], LogEvent] = {}
    messages = {event.group or _DEFAULT_NAME for event in events if event.op in _MESSAGES}
    for event in events:
        name = event.group or _DEFAULT_NAME
        description = event.group_description or ""
        if name not in groups or (description and not groups[name].description):
            groups[name] = RecordedGroup(name, description, None)
        if event.kind == "timeout" and event.sequence is not None:
            calls.setdefault((name, event.sequence), event)
        elif name in messages:  # torch counts them in the same field
            status[name] = GroupStatus(latest=event.enqueued)
        else:
            status[name] = GroupStatus(event.enqueued, event.completed, latest=event.enqueued)
    # In a log the order of timeouts is that of their ends; within a group the numbers tell the order.
    ordered = sorted(calls.items(), key=lambda item: item[0][1])
    operations = tuple(
        Operation(
            record=record,
            group=group,
            op=event.op or "",
            sequence=sequence,
            is_p2p=event.op in _MESSAGES,
            sizes_in=None if event.elements_in is None else ((event.elements_in,),),
            sizes_out=None if event.elements_out is None else ((event.elements_out,),),
            frames=event.frames,
        )
        for record, ((group, sequence), event) in enumerate(ordered)
    )
    return RankRecord(rank, events[0].path, groups, operations, status, source="log")
