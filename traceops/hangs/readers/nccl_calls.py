"""NCCL's lines of collectives (NCCL_DEBUG_SUBSYS=COLL): the first call that ranks of one communicator make unlike."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from traceops.core.rank_text import who
from traceops.hangs.evidence import LogEvent
from traceops.hangs.readers.messages import DIFFERENT
from traceops.traces.text_lines import blocks, lines

_NEEDLES = (b" opCount ", b" nranks ")
_CALL = re.compile(
    r"(?P<process>[\w.-]{1,200}:\d{1,10}):\d{1,10} \[(?P<device>\d{1,4})\] NCCL INFO (?P<op>[A-Z]\w{1,40}): "
    r"opCount (?P<number>[0-9a-f]{1,16}) .{0,200}?\bcount (?P<count>\d{1,18}) datatype (?P<type>\d{1,3}) "
    r"op \d{1,10} root (?P<root>\d{1,7}) comm (?P<comm>0x[0-9a-f]{1,16}) \[nranks=(?P<nranks>\d{1,7})\]"
    r"(?:.{0,200}?\bglobalrank (?P<rank>\d{1,7}))?"
)
_INIT = re.compile(
    r"(?P<process>[\w.-]{1,200}:\d{1,10}):\d{1,10} \[\d{1,4}\] .{0,80}?comm (?P<comm>0x[0-9a-f]{1,16}) "
    r"rank (?P<rank>\d{1,7}) nranks \d{1,7}\b"
)
_MESSAGES = ("Send", "Recv")
_DOES = {"AllReduce": "all-reduces", "AllGather": "all-gathers", "ReduceScatter": "reduce-scatters",
         "Broadcast": "broadcasts", "Reduce": "reduces"}  # fmt: skip
_MOST_CALLS = 1 << 18
_MOST_SIDES = 4

_Process = str
_Signature = tuple[tuple[str, int, int], ...]  # of the calls of one number: operation, count, type


class _Calls(NamedTuple):
    """By number of a communicator what one process called, and the line of the first."""

    by_number: dict[int, list[tuple[str, int, int]]]
    lines: dict[int, int]


def mismatched_calls(path: str) -> LogEvent | None:
    """The first call that differs between ranks; None where all agree, or not all ranks of a communicator are there.

    Raises InputError where the file cannot be read.
    """
    calls: defaultdict[tuple[int, _Process, str], _Calls] = defaultdict(lambda: _Calls(defaultdict(list), {}))
    ranks: dict[tuple[_Process, str], int] = {}
    devices: dict[_Process, int] = {}
    count = 0
    for number, block in blocks(path):
        if not all(needle in block for needle in _NEEDLES[:1]) and _NEEDLES[1] not in block:
            continue
        for at, line in lines(block, number):
            if (begun := _INIT.search(line)) is not None:
                ranks[begun["process"], begun["comm"]] = int(begun["rank"])
            if (call := _CALL.search(line)) is None or call["op"] in _MESSAGES or count >= _MOST_CALLS:
                continue
            count += 1
            own = calls[int(call["nranks"]), call["process"], call["comm"]]
            sequence = int(call["number"], 16)
            own.by_number[sequence].append((call["op"], int(call["count"]), int(call["type"])))
            own.lines.setdefault(sequence, at)
            devices[call["process"]] = int(call["device"])
            if call["rank"] is not None:
                ranks[call["process"], call["comm"]] = int(call["rank"])
    return _first_difference(path, calls, ranks, devices)


def _first_difference(
    path: str,
    calls: Mapping[tuple[int, _Process, str], _Calls],
    ranks: Mapping[tuple[_Process, str], int],
    devices: Mapping[_Process, int],
) -> LogEvent | None:
    for nranks in {key[0] for key in calls}:
        members = {key: its for key, its in calls.items() if key[0] == nranks}
        if len(members) != nranks or len({process for _, process, _ in members}) != nranks:
            continue  # several communicators of one size: which belong together is not told
        named = {key: ranks.get((key[1], key[2]), devices[key[1]]) for key in members}
        if len(set(named.values())) != nranks:
            continue
        for sequence in sorted(set.intersection(*(set(its.by_number) for its in members.values()))):
            sides: defaultdict[_Signature, list[int]] = defaultdict(list)
            for key, its in members.items():
                sides[tuple(its.by_number[sequence])].append(named[key])
            if len(sides) > 1 and len({len(signature) for signature in sides}) == 1:
                line = min(its.lines[sequence] for its in members.values())
                return _event(path, line, sequence, sides)
    return None


def _event(path: str, line: int, sequence: int, sides: Mapping[_Signature, list[int]]) -> LogEvent:
    by_size = sorted(sides.items(), key=lambda side: (len(side[1]), min(side[1])))
    odd = by_size[:-1] if len(by_size[-1][1]) > len(by_size[0][1]) else by_size
    told = "; ".join(_side(signature, ranks) for signature, ranks in by_size[:_MOST_SIDES])
    return LogEvent(
        "mismatch", None, path, line, f"{DIFFERENT}at call {sequence} {told}",
        accused=tuple(sorted(rank for _, ranks in odd for rank in ranks)),
    )  # fmt: skip


def _side(signature: _Signature, ranks: Iterable[int]) -> str:
    """'rank 0 broadcasts 25,503,912 of type 6'."""
    members = sorted(ranks)
    op, count, dtype = signature[0]
    does = _DOES.get(op, op)
    return f"{who(members)} {does if len(members) == 1 else does.removesuffix('s')} {count:,} of type {dtype}"
