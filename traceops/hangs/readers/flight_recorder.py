"""Flight-recorder dumps of torch 2.2 and later, pickle or JSON, as a rank's operations in program order."""

from __future__ import annotations

import json
import pickle
import re
from collections import defaultdict
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from traceops.core.errors import FileError
from traceops.core.plain_pickle import ForbiddenPickle, load_plain, salvage_plain
from traceops.core.regular_file import read_regular
from traceops.hangs.evidence import GroupStatus, RankRecord, RecordedGroup
from traceops.hangs.readers.recorder_entries import (
    P2P,
    backend_of,
    group_of,
    is_count,
    is_entry,
    number_of,
    operations_of,
    state_of,
    text_of,
)

_PICKLE = b"\x80"
_MOST_BYTES = 1 << 30  # a dump of a hundred thousand operations has a tenth of it


def is_dump(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a dump."""
    if head[:1] == _PICKLE:
        return True
    return head.lstrip()[:1] in (b"{", b"[") and (b'"pg_config"' in head or b'"entries"' in head)


def read_dump(path: Path, rank: int) -> tuple[RankRecord, str]:
    """One rank's dump, and what is wrong with it in words ('' if nothing): what could be read is used.

    Raises InputError for a file that is no dump, or from which nothing can be read.
    """
    try:
        data = read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror or error})") from error
    document, damage = _document(path, data)
    if isinstance(document, list):  # torch 2.2: the entries alone
        document = {"entries": document}
    if not isinstance(document, dict) or not isinstance(document.get("entries", []), list):
        raise FileError(path, "is not a flight-recorder dump: it holds no list of entries")
    entries = [entry for entry in document.get("entries", []) if is_entry(entry)]
    groups = _groups(document.get("pg_config"))
    if not entries and not groups and not document.get("pg_status"):
        raise FileError(path, "is not a flight-recorder dump: neither entries nor process groups")
    if len(entries) < len(document.get("entries", [])):
        damage = damage or f"{len(document['entries']) - len(entries)} of its entries make no sense"
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
        backend=next((backend_of(entry) for entry in entries), None),
        hides_messages=hides_messages,
    )
    return record, damage


def _document(path: Path, data: bytes) -> tuple[Any, str]:
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
        document = _assembled(parts)
        if not document:
            raise FileError(path, f"is cut off or damaged ({error}); nothing could be read from it") from error
        entries = len(document.get("entries", []))
        return document, f"it is cut off or damaged ({error}); its first {entries} entries are used"


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
        name = names.get(str(key))
        if name is not None and isinstance(value, dict):
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
