"""Flight-recorder dumps of torch 2.2 and later, pickle or JSON, as a rank's operations in program order."""

from __future__ import annotations

import json
import pickle
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.errors import FileError
from traceops.core.files import read_regular
from traceops.core.plain_pickle import ForbiddenPickle, load_plain, salvage_plain
from traceops.hangs.evidence import Frame, GroupStatus, Operation, RankRecord, RecordedGroup, State

# The entries of a flight-recorder dump as operations; what many entries have alike is kept once.

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
    ordered = [entries[place] for place in sorted(range(len(numbers)), key=numbers.__getitem__)]
    seen: _Seen = {}
    operations = [_operation(entry, number, groups, seen) for number, entry in enumerate(ordered)]
    result: list[Operation] = []
    runs = [list(run) for _, run in groupby(operations, key=lambda op: (op.group, op.is_p2p, op.sequence))]
    in_full = [op.record for op in operations] == list(range(len(operations)))
    unfinished_only = not in_full and not any(op.state == "completed" for op in operations)
    for run in runs:
        # in a dump of unfinished operations: parts of a launch have no end of their own and stay, the launch went
        if not (unfinished_only and len(run) > 1 and run[0].is_p2p and not run[-1].op.lower().endswith(_WRAPPER)):
            result += _uncoalesced(run)
    return result


def _uncoalesced(run: list[Operation]) -> list[Operation]:
    """Operations of one launch, whose last entry has its state: messages stay apart, collectives become one."""
    if len(run) == 1 or not run[-1].op.lower().endswith(_WRAPPER):
        return run
    last = run[-1]
    members = run[:-1] if last.op == _WRAPPER else run
    if members[0].is_p2p:
        return [structs.replace(member, state=last.state) for member in members]
    names = {member.op for member in members}
    return [
        structs.replace(
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


_PICKLE = b"\x80"
_MOST_BYTES = 1 << 30  # a dump of a hundred thousand operations has a tenth of it


def is_dump(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a dump."""
    if head[:1] == _PICKLE:
        return True
    return head.lstrip()[:1] in (b"{", b"[") and (b'"pg_config"' in head or b'"entries"' in head)


def read_dump(path: Path, rank: int) -> tuple[RankRecord, str]:
    """One rank's dump, and what is wrong with it in words ('' if nothing): what could be read is used. Raises
    InputError for a file that is no dump, or from which nothing can be read."""
    document, damage = _document(path)
    if isinstance(document, list):  # torch 2.2: the entries alone
        document = {"entries": document}
    if not isinstance(document, dict) or not isinstance(document.get("entries", []), list):
        raise FileError(path, "is not a flight-recorder dump: it holds no list of entries")
    entries = [entry for entry in document.get("entries", []) if is_entry(entry)]
    groups = _groups(document.get("pg_config"))
    if not entries and not groups and not document.get("pg_status"):
        raise FileError(path, "is not a flight-recorder dump: neither entries nor process groups")
    if len(entries) < len(document.get("entries", [])):
        damage = damage or reason("hangs", "entries", count=len(document["entries"]) - len(entries))
    operations = operations_of(entries, groups)
    hides_messages = _hides_messages(entries)
    for entry in entries:
        name, description = group_of(entry)
        groups.setdefault(name, RecordedGroup(name, description, None))
    record = RankRecord(
        rank=rank,
        path=str(path),
        groups=groups,
        operations=tuple(operations),
        status=_status(document.get("pg_status"), entries, groups, hides_messages),
        whole=_whole(entries) and bool(entries or not document.get("pg_status")) and not damage,
        active_only=_active_only(entries) if entries else bool(document.get("pg_status")),
        timed=any(entry.get("time_discovered_started_ns") for entry in entries),
        nccl_version=text_of(document.get("comm_lib_version") or document.get("nccl_version")) or None,
        backend=backend_of(entries[0]) if entries else None,
        hides_messages=hides_messages,
    )
    return record, damage


def _document(path: Path) -> tuple[Any, str]:
    try:
        data = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror or error})") from error
    if data[:1] != _PICKLE:
        try:
            return json.loads(data), ""
        except (ValueError, RecursionError) as error:
            raise FileError(path, f"is neither a pickle nor whole JSON ({error}); dump it again") from error
    try:
        return load_plain(data), ""
    except ForbiddenPickle as error:
        raise FileError(path, f"is not a flight-recorder dump and was not opened: {error}") from error
    except pickle.UnpicklingError as error:
        try:
            parts = salvage_plain(data)
        except ForbiddenPickle as forbidden:
            raise FileError(path, f"is not a flight-recorder dump and was not opened: {forbidden}") from forbidden
        if not (document := _assembled(parts)):
            raise FileError(path, f"is cut off or damaged ({error}); nothing could be read from it") from error
        return document, reason("hangs", "cut_dump", error=error, count=len(document.get("entries", [])))


def _assembled(parts: list[Any]) -> dict[str, Any]:
    """The dump's dict, from what lies on the stack where the file ends: keys, values, and entries so far."""
    keys = {"version", "pg_config", "pg_status", "comm_lib_version", "nccl_version", "entries"}
    document: dict[str, Any] = {}
    entries: list[Any] = []
    for part, following in zip_longest(parts, parts[1:]):
        if isinstance(part, dict) and not is_entry(part):
            document |= {key: value for key, value in part.items() if key in keys}
        elif isinstance(part, str) and part in keys:
            document[part] = following
        elif is_entry(part):
            entries.append(part)
    known = document.get("entries")
    document["entries"] = [*(known if isinstance(known, list) else []), *entries]
    return document if document["entries"] or document.get("pg_config") else {}


def _groups(config: Any) -> dict[str, RecordedGroup]:
    groups = {}
    for key, value in config.items() if isinstance(config, dict) else ():
        if not isinstance(value, dict):
            continue
        name = text_of(value.get("name", key))
        ranks = _ranks(value.get("ranks"))
        if name or ranks:  # gloo writes one group without name or members
            groups[name] = RecordedGroup(name, text_of(value.get("desc")), ranks)
    return groups


def _ranks(value: Any) -> tuple[int, ...] | None:
    """Members as the dump lists them, '[0, 1, 2]'; None where it does not (an empty list: all, in old torch)."""
    if isinstance(value, str):
        value = [int(digits) for digits in re.findall(r"\d{1,9}", value)]
    if not isinstance(value, (list, tuple)):
        return None
    ranks = {rank for rank in value if is_count(rank)}
    return tuple(sorted(ranks)) or None


def _status(
    config: Any, entries: list[dict[str, Any]], groups: dict[str, RecordedGroup], hides_messages: bool
) -> dict[str, GroupStatus]:
    """How far each group has come, by name: the dump counts groups by an id of its own."""
    result: dict[str, GroupStatus] = {}
    config = config if isinstance(config, dict) else {}
    names = _names_by_id(list(map(str, config)), entries, groups)
    for key, value in config.items():
        if (name := names.get(str(key))) is not None and isinstance(value, dict):
            enqueued = _sequence(value.get("last_enqueued_collective"))
            result[name] = GroupStatus(enqueued, _sequence(value.get("last_completed_collective")), latest=enqueued)
    by_group: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        by_group[group_of(entry)[0]].append(entry)
    for name, own in by_group.items():
        messages = max(number_of(entry.get("p2p_seq_id"), 0) for entry in own)
        if messages:  # the dump's own status then counts sends and receives too, in the same field
            result[name] = replace(_collective_status(own), messages=messages)
        elif hides_messages:
            result[name] = _collective_status(own)
    if hides_messages:  # nothing tells whether the other groups' counts are of collectives
        result = {name: status for name, status in result.items() if name in by_group}
    return result


def _hides_messages(entries: list[dict[str, Any]]) -> bool:
    """Gloo records no sends and receives, but the group's count of all calls goes on."""
    return any(
        number_of(entry.get("op_id"), 0) > number_of(entry.get("collective_seq_id"), 0)
        for entry in entries
        if backend_of(entry) == "gloo"
    )


def _collective_status(entries: list[dict[str, Any]]) -> GroupStatus:
    """How far a group has come in its collectives: each entry tells the number of the last one before it."""
    enqueued = max(number_of(entry.get("collective_seq_id"), 0) for entry in entries)
    pending = [
        number_of(entry.get("collective_seq_id"), 0)
        for entry in entries
        if not P2P.search(entry["profiling_name"]) and state_of(entry) != "completed"
    ]
    return GroupStatus(enqueued, min(pending) - 1 if pending else enqueued)


def _names_by_id(ids: list[str], entries: list[dict[str, Any]], groups: dict[str, RecordedGroup]) -> dict[str, str]:
    """Group id -> name, from the entries; ids and numbered names both follow the order of creation."""
    names = {str(entry.get("pg_id")): group_of(entry)[0] for entry in entries}
    first = next((name for name, group in groups.items() if group.is_of_all), None)
    if first is not None and first not in names.values():
        names.setdefault("0", first)  # ids count from 0, and the group of all ranks is made first
    if len(ids) != len(groups) or not all(text.isdecimal() for text in (*ids, *groups)):
        return names
    in_order = dict(zip(sorted(ids, key=int), sorted(groups, key=int), strict=True))
    return in_order if names.items() <= in_order.items() else names


def _sequence(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():  # JSON dumps
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _active_only(entries: list[dict[str, Any]]) -> bool:
    """Whether completed operations were left out: nothing is completed though numbers have gaps or begin late."""
    if any(state_of(entry) == "completed" for entry in entries):
        return False
    numbers = sorted(number_of(entry.get("record_id"), 0) for entry in entries)
    return numbers[0] > 0 or numbers[-1] - numbers[0] >= len(numbers)


def _whole(entries: list[dict[str, Any]]) -> bool:
    """Whether the ring still holds the rank's first operation and every one since."""
    numbers = sorted(number_of(entry.get("record_id"), -1) for entry in entries)
    return numbers == list(range(len(numbers)))
