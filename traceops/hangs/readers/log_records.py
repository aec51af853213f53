"""What a log alone says of each rank's collectives, in the shape of a flight recorder's dump."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from msgspec import structs

from traceops.hangs.evidence import GroupStatus, LogEvent, Operation, RankRecord, RecordedGroup

_MESSAGES = ("send", "recv")
_DEFAULT_NAME = "0"  # the name that torch gives the group of all ranks


def records_from_log(events: Iterable[LogEvent]) -> dict[int, RankRecord]:
    """What the log alone says of each rank's collectives: those that timed out, and how far each group has come.

    A timeout without a number in its group cannot be compared between ranks and is left out.
    """
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
            record = replace(
                record, operations=tuple(structs.replace(op, record=i, frames=()) for i, op in enumerate(stuck))
            )
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
    operations = tuple(_operation(place, key[0], event) for place, (key, event) in enumerate(ordered))
    return RankRecord(
        rank=rank, path=events[0].path, groups=groups, operations=operations, status=status, source="log"
    )  # fmt: skip


def _operation(record: int, group: str, event: LogEvent) -> Operation:
    return Operation(
        record=record,
        group=group,
        op=event.op or "",
        sequence=event.sequence or 0,
        is_p2p=event.op in _MESSAGES,
        sizes_in=None if event.elements_in is None else ((event.elements_in,),),
        sizes_out=None if event.elements_out is None else ((event.elements_out,),),
        state="scheduled",
        frames=event.frames,
    )
