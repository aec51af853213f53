"""The entries of a flight-recorder dump as operations; what many entries have alike is kept once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from traceops.hangs.evidence import Frame, Operation, RecordedGroup, State

# "nccl:send 0->1", "nccl:recv 3<-11": ranks counted inside the group, this rank first.
P2P = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+)")
_WRAPPER = "coalesced"

# What was read once: the same stacks, shapes and types return thousands of times in a dump.
_Seen = dict[Any, Any]


def is_entry(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("profiling_name"), str)


def operations_of(entries: list[dict[str, Any]], groups: Mapping[str, RecordedGroup]) -> list[Operation]:
    """Each call as one operation, in program order."""
    numbers = [number_of(entry.get("record_id"), place) for place, entry in enumerate(entries)]
    ordered = entries if numbers == sorted(numbers) else [entries[i] for i in _order(numbers)]
    seen: _Seen = {}
    operations = [_operation(entry, number, groups, seen) for number, entry in enumerate(ordered)]
    result: list[Operation] = []
    runs = [list(run) for _, run in groupby(operations, key=lambda op: (op.group, op.is_p2p, op.sequence))]
    unfinished_only = not any(op.state == "completed" for op in operations) and [
        op.record for op in operations
    ] != list(range(len(operations)))
    for run in runs:
        if not (unfinished_only and _launch_is_over(run)):
            result += _uncoalesced(run)
    return result


def _launch_is_over(run: list[Operation]) -> bool:
    """In a dump of unfinished operations: parts of a launch have no end of their own and stay, the launch went."""
    return len(run) > 1 and run[0].is_p2p and not run[-1].op.lower().endswith(_WRAPPER)


def _order(numbers: list[int]) -> list[int]:
    return sorted(range(len(numbers)), key=numbers.__getitem__)


def _uncoalesced(run: list[Operation]) -> list[Operation]:
    """Operations launched together: the last entry stands for the launch, and only it has a state.

    Sends and receives stay apart, with that state; collectives become one with all their sizes.
    """
    if len(run) == 1 or not run[-1].op.lower().endswith(_WRAPPER):
        return run
    last = run[-1]
    members = run[:-1] if last.op == _WRAPPER else run
    if members[0].is_p2p:
        return [replace(member, state=last.state) for member in members]
    names = {member.op for member in members}
    return [
        replace(
            members[0],
            op=names.pop() if len(names) == 1 else _WRAPPER,
            sizes_in=_joined(member.sizes_in for member in members),
            sizes_out=_joined(member.sizes_out for member in members),
            state=last.state,
        )
    ]


def _joined(sizes: Iterable[tuple[tuple[int, ...], ...] | None]) -> tuple[tuple[int, ...], ...]:
    return tuple(size for each in sizes for size in each or ())


def _operation(entry: dict[str, Any], number: int, groups: Mapping[str, RecordedGroup], seen: _Seen) -> Operation:
    group, _ = group_of(entry)
    name = entry["profiling_name"].partition(":")[2] or entry["profiling_name"]
    is_p2p = bool(entry.get("is_p2p"))
    peer = None
    if (match := P2P.match(name)) is not None:
        name, is_p2p = match[1], True
        members = groups[group].ranks if group in groups else None
        index = int(match[3])
        peer = members[index] if members is not None and index < len(members) else None if members else index
    key = "p2p_seq_id" if is_p2p else "collective_seq_id"
    return Operation(
        record=number_of(entry.get("record_id"), number),
        group=group,
        op=name,
        sequence=number_of(entry.get(key, entry.get("seq_id")), 0),
        is_p2p=is_p2p,
        peer=peer,
        sizes_in=_sizes(entry.get("input_sizes"), seen),
        sizes_out=_sizes(entry.get("output_sizes"), seen),
        dtypes_in=_texts(entry.get("input_dtypes"), seen),
        dtypes_out=_texts(entry.get("output_dtypes"), seen),
        state=state_of(entry),
        created_ns=number_of(entry.get("time_created_ns"), 0) or None,
        frames=_frames(entry.get("frames"), seen),
    )


def state_of(entry: dict[str, Any]) -> State:
    """Gloo leaves every operation 'scheduled' and tells its end by retiring it."""
    if entry.get("state") == "completed" or entry.get("retired") is True:
        return "completed"
    return "started" if entry.get("state") == "started" else "scheduled"


def backend_of(entry: dict[str, Any]) -> str | None:
    """'nccl' or 'gloo', where the entry tells."""
    return entry["profiling_name"].rpartition(":")[0].partition(":")[0] or None


def group_of(entry: dict[str, Any]) -> tuple[str, str]:
    """(name, description) of an entry's group; before torch 2.4 the id is all there is."""
    group = entry.get("process_group")
    if type(group) is tuple and len(group) == 2 and type(group[0]) is type(group[1]) is str:
        return group  # as torch writes it, and asked for again and again
    if isinstance(group, (list, tuple)) and group:
        return text_of(group[0]), text_of(group[1]) if len(group) > 1 else ""
    return text_of(entry.get("pg_id", 0)), ""


def _frames(value: Any, seen: _Seen) -> tuple[Frame, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        return ()
    try:
        key = ("frames", *[(frame["name"], frame["filename"], frame["line"]) for frame in value])
        frames: tuple[Frame, ...] | None = seen.get(key)
    except (KeyError, TypeError):  # odd, and no reason to lose the rest
        odd = [frame for frame in value if isinstance(frame, dict)]
        return tuple([_frame(frame.get("name"), frame.get("filename"), frame.get("line")) for frame in odd])
    if frames is None:
        frames = seen[key] = tuple([_frame(*told) for told in key[1:]])
    return frames


def _frame(name: Any, file: Any, line: Any) -> Frame:
    return Frame(text_of(name), text_of(file), line if is_count(line) else None)


def _sizes(value: Any, seen: _Seen) -> tuple[tuple[int, ...], ...] | None:
    if not isinstance(value, (list, tuple)):
        return None
    key = f"sizes {value!r}"
    sizes: tuple[tuple[int, ...], ...] | None = seen.get(key)
    if sizes is None:
        shapes = [shape for shape in value if isinstance(shape, (list, tuple))]
        sizes = tuple([tuple([int(size) for size in shape if is_count(size)]) for shape in shapes])
        sizes = seen[key] = seen.setdefault(sizes, sizes)
    return sizes


def _texts(value: Any, seen: _Seen) -> tuple[str, ...] | None:
    if not isinstance(value, (list, tuple)):
        return None
    key = f"texts {value!r}"
    texts: tuple[str, ...] | None = seen.get(key)
    if texts is None:
        texts = seen[key] = tuple([text_of(item) for item in value])
    return texts


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) <= 1000 else value[:1000]
    return "" if value is None else str(value)[:1000]


def number_of(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
