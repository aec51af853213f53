"""What NCCL reports next to errors: its RAS (text and JSON), its Inspector, and the calls that it logs (SUBSYS=COLL).

After NCCL's src/ras/client_support.cc: the text names ranks only where they are few, the JSON has the counts of all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from traceops.core.claims import first_phrase
from traceops.core.errors import FileError
from traceops.core.files import open_regular
from traceops.core.rank_text import who, who_first
from traceops.fabric.nccl import Inspector, InspectorRank
from traceops.hangs.evidence import LogEvent
from traceops.hangs.readers.messages import DIFFERENT
from traceops.hangs.readers.prefixes import host_prefix, without_prefixes
from traceops.traces.text_index import Words, blocks_with
from traceops.traces.text_lines import lines, text_lines
from traceops.words.catalogue import grammar

_GRAMMAR = grammar("nccl")
# What a status says of one rank and of several, in words; RUNNING and INIT are none.
_STATUS: Mapping[str, tuple[str, str]] = {
    "NOCOMM": (
        "no longer has communicator {}: its process left it or never joined",
        "no longer have communicator {}: their processes left it or never joined",
    ),
    "ABORT": ("aborted communicator {}", "aborted communicator {}"),
    "FINALIZE": ("is closing communicator {}", "are closing communicator {}"),
}


class Trouble(Struct, frozen=True):
    """What a report says of some ranks of one communicator. line: where it says so, from 1. op: 'AllReduce', … and
    count: up to which of them the ranks have launched, where it is about that."""

    line: int
    text: str
    op: str | None = None
    count: int | None = None


def _say(part: str, **facts: Any) -> str:
    return first_phrase("hangs", "ras", part, **facts)


def _lag(
    line: int, communicator: str, op: str, ranks: Iterable[int], count: int, others: int, of_others: int
) -> Trouble:
    """Ranks that have launched `count` operations where the `others` others launched `of_others`."""
    text = _say(
        "lag", ranks=tuple(sorted(ranks)), ahead=count > of_others, apart=abs(count - of_others), op=op, count=count,
        communicator=communicator, others=others, of_others=of_others,
    )  # fmt: skip
    return Trouble(line, text, op, count)


def _lags(communicator: str, counts: Mapping[str, Mapping[int, int]]) -> Iterator[Trouble]:
    """Of each operation the ranks that are apart from most. counts: by operation and rank."""
    for op, by_rank in counts.items():
        ranks: defaultdict[int, list[int]] = defaultdict(list)
        for rank, count in by_rank.items():
            ranks[count].append(rank)
        most = max(ranks, key=lambda count: (len(ranks[count]), count))
        for count, members in ranks.items():
            if count != most:
                yield _lag(1, communicator, op, members, count, len(ranks[most]), most)


def _states(
    line: int, communicator: str, status: Mapping[str, Sequence[int]], errors: Mapping[str, Sequence[int]]
) -> Iterator[Trouble]:
    """Ranks whose status is not that of a job that runs, and those whose communicator is in an error state."""
    for name, members in status.items():
        if name in _STATUS and members:
            ranks = tuple(sorted(members))
            did = _STATUS[name][len(ranks) > 1].format(communicator)
            yield Trouble(line, f"{who_first(ranks)} {did} ({name})")
    for error, members in errors.items():
        if members:
            yield Trouble(line, _say("error", ranks=tuple(sorted(members)), communicator=communicator, error=error))


_HEAD = re.compile(r"^#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)\s{0,8}$")
_KIND = re.compile(r"^  Communicator ranks have different (\w{1,40}) operation counts")
_COUNT = re.compile(r"^  (\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_ONE = re.compile(r"^  Rank (\d{1,7}) has (?:launched up to operation (\d{1,18})|not launched any operations)")
_STATUSES = re.compile(r"^  \d{1,9} ranks have status (\w{1,20})")
_ONE_STATUS = re.compile(r"^  Rank (\d{1,7}) has status (\w{1,20})")
_ERRORS = re.compile(r"^  \d{1,9} ranks reported (.{1,80})$")
_ERROR = re.compile(r"^  Rank (\d{1,7}) reported (.{1,80}?) --")
_MISSING = re.compile(r"^  Missing communicator data from (\d{1,9}) (job process|rank)")
_DEAD = re.compile(r"^  (\d{1,9}) job process(?:es are| is) considered dead")
_PROCESS = re.compile(r"^  Process (\d{1,10}) on node (\S{1,100}) managing GPUs? (.{1,100})$")
_RANK = re.compile(r"^  Rank (\d{1,7}) -- ")
_MOST_LINES = 200_000
_MOST_BYTES = 1 << 28
SUMMARY = b"Communicators... ("  # what the report has and no other text
_ERROR_NAMES = {
    1: "Unhandled CUDA error", 2: "System error", 3: "Internal error", 4: "Invalid argument", 5: "Invalid usage",
    6: "Remote process error",
}  # fmt: skip


def is_ras(head: bytes) -> bool:
    """Whether a file begins as a report, of either form."""
    return (SUMMARY in head and b"Ranks" in head) or (b'"communicators_count"' in head and b'"ranks_count"' in head)


def read_ras(path: str) -> tuple[LogEvent, ...]:
    """An event for each group of ranks that a report tells apart; raises InputError where the file cannot be read."""
    with open_regular(path) as file:
        is_json = file.read(1024).lstrip()[:1] == b"{"
    found = _read_json(path) if is_json else read_troubles(_plain(list(islice(text_lines(path), _MOST_LINES))))
    return tuple(LogEvent("ras", None, path, told.line, told.text, op=told.op, sequence=told.count) for told in found)


def _plain(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines as RAS wrote them: without what a collector put before each, and all the same spaces."""
    bodies = [without_prefixes(line) for _, line in lines]
    prefix = host_prefix(bodies)
    bodies = bodies if prefix is None else [prefix.sub("", body, count=1) for body in bodies]
    by = min((len(body) - len(body.lstrip(" ")) for body in bodies if body.strip()), default=0)
    return [(number, body[by:]) for (number, _), body in zip(lines, bodies, strict=True)]


def read_troubles(lines: list[tuple[int, str]]) -> Iterator[Trouble]:
    """What a report's text says is apart from a job that runs. lines: (number, text) of the file."""
    part: list[tuple[int, str]] = []
    kind, hash_ = "", ""
    for number, line in [*lines, (0, "#0-0 (0) MISMATCH")]:
        head = _HEAD.match(line)
        if head is None and line.strip() not in ("INCOMPLETE", "DEAD", "TIMEOUT", "Warnings"):
            part.append((number, line))
            continue
        # one paragraph of the report, from its heading on
        if kind == "MISMATCH":
            yield from _counts(hash_, part)
            yield from _grouped(hash_, part)
        elif kind == "ERROR":
            yield from _grouped(hash_, part)
        elif kind == "INCOMPLETE" and hash_:
            ranks = [int(match[1]) for _, line in part if (match := _RANK.match(line)) is not None]
            missing = next((match for _, line in part if (match := _MISSING.match(line)) is not None), None)
            if ranks:
                said = _say("unanswered", ranks=tuple(sorted(ranks)), communicator=hash_, dead=False)
                yield Trouble(part[0][0], said)
            elif missing is not None:
                yield Trouble(part[0][0], _say("unanswered", count=missing[1], communicator=hash_))
        elif kind in ("INCOMPLETE", "DEAD"):
            yield from _processes(kind, part)
        part = [(number, line)]
        kind, hash_ = (head[4], head[3]) if head is not None else (line.strip(), "")


def _processes(kind: str, lines: list[tuple[int, str]]) -> Iterator[Trouble]:
    wanted = _DEAD if kind == "DEAD" else _MISSING
    counted = next((match for _, line in lines if (match := wanted.match(line)) is not None), None)
    if counted is None:
        return
    processes = [match for _, line in lines if (match := _PROCESS.match(line)) is not None]
    where = ", ".join(_say("process", process=told[1], node=told[2], gpu=told[3]) for told in processes[:4])
    yield Trouble(lines[0][0], _say("processes", dead=kind == "DEAD", count=counted[1], where=where))


_LAST_KIND = "  Communicator ranks have different END operation counts"  # as a heading, so that the last part ends


def _counts(hash_: str, lines: list[tuple[int, str]]) -> Iterator[Trouble]:
    """Ranks apart from most, by operation."""
    start, op = lines[0][0], "collective"
    counts: list[tuple[int, int]] = []  # ranks, operations
    named: defaultdict[int, list[int]] = defaultdict(list)  # operations -> ranks
    for number, line in [*lines[1:], (0, _LAST_KIND)]:
        if (kind := _KIND.match(line)) is not None:
            if len(counts) > 1:
                others, of_others = max(counts)
                for count, ranks in named.items():
                    if count != of_others:
                        yield _lag(start, hash_, op, ranks, count, others, of_others)
            start, op = (start, kind[1]) if not counts else (number, kind[1])
            counts, named = [], defaultdict(list)
        elif (count_ := _COUNT.match(line)) is not None:
            counts.append((int(count_[1]), int(count_[2] or 0)))
        elif (one := _ONE.match(line)) is not None:
            counts.append((1, int(one[2] or 0)))
            named[int(one[2] or 0)].append(int(one[1]))
        elif (rank := _RANK.match(line)) is not None and counts:
            named[counts[-1][1]].append(int(rank[1]))


def _grouped(hash_: str, lines: list[tuple[int, str]]) -> Iterator[Trouble]:
    """Ranks by status and by error; the text names those that are few."""
    status: defaultdict[str, list[int]] = defaultdict(list)
    errors: defaultdict[str, list[int]] = defaultdict(list)
    into: list[int] | None = None
    for _, line in lines[1:]:
        if (one := _ONE_STATUS.match(line)) is not None:
            status[one[2]].append(int(one[1]))
        elif (several := _STATUSES.match(line)) is not None:
            into = status[several[1]]
        elif (one := _ERROR.match(line)) is not None:
            errors[one[2]].append(int(one[1]))
        elif (several := _ERRORS.match(line)) is not None:
            into = errors[several[1]]
        elif _KIND.match(line) is not None:
            into = None
        elif (rank := _RANK.match(line)) is not None and into is not None:
            into.append(int(rank[1]))
    return _states(lines[0][0], hash_, status, errors)


class _Status(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _Rank(msgspec.Struct):
    rank: int
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, int] = msgspec.field(default_factory=dict)


class _Gone(msgspec.Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _MissingRank(msgspec.Struct):
    rank: int
    status: _Gone = msgspec.field(default_factory=_Gone)


class _Communicator(msgspec.Struct):
    hash: str
    ranks: tuple[_Rank, ...] = ()
    missing_ranks: tuple[_MissingRank, ...] = ()


class _Report(msgspec.Struct):
    communicators: tuple[_Communicator, ...] = ()


def _read_json(path: str) -> Iterator[Trouble]:
    with open_regular(path) as file:
        text = file.read(_MOST_BYTES)
    try:
        report = msgspec.json.decode(text, type=_Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(path, f"is no whole report of ncclras -f json ({error})") from error
    for communicator in report.communicators:
        hash_ = communicator.hash.removeprefix("0x")
        counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        status: defaultdict[str, list[int]] = defaultdict(list)
        errors: defaultdict[str, list[int]] = defaultdict(list)
        for rank in communicator.ranks:
            for op, count in rank.collective_counts.items():
                counts[op][rank.rank] = count
            own = rank.status
            closing = "FINALIZE" if own.finalize_called or own.destroy_flag else "RUNNING"
            status["ABORT" if own.abort_flag else closing].append(rank.rank)
            for number in {rank.status.init_state, rank.status.async_error} & set(_ERROR_NAMES):
                errors[_ERROR_NAMES[number]].append(rank.rank)
        for missing in communicator.missing_ranks:
            gone = missing.status
            status["UNANSWERED" if gone.unresponsive or gone.considered_dead else "NOCOMM"].append(missing.rank)
        dead = any(missing.status.considered_dead for missing in communicator.missing_ranks)
        if silent := status.pop("UNANSWERED", None):
            ranks = tuple(sorted(silent))
            yield Trouble(1, _say("unanswered", ranks=ranks, communicator=hash_, dead=dead))
        yield from _lags(hash_, counts)
        yield from _states(1, hash_, status, errors)


_APART_S = 2  # seconds in which the others wrote on: what one interval's end tears apart comes at one moment
# What no rank can complete before all have called it; a rank may be far behind in the others.
_NEEDS_ALL = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll")


def inspector_events(inspector: Inspector) -> tuple[LogEvent, ...]:
    """An event for each number at which some ranks' lines end though the others' go on in several writes. Inspector
    writes at intervals, so that a difference within one write of the others proves nothing. Times are compared within
    one file only: hosts' clocks differ. Sends and receives are left aside, as ranks differ in them."""
    alike: defaultdict[tuple[str, str], list[InspectorRank]] = defaultdict(list)
    for row in inspector.completed:
        if not row.is_p2p:
            alike[row.communicator, row.op].append(row)
    events = []
    for rows in alike.values():
        *ends, most = sorted({row.last for row in rows})
        for last in ends:
            behind = [row for row in rows if row.last == last]
            others = [row for row in rows if row.last > last]
            later = [[second for second, number in row.written if number > last] for row in others]
            if (wrote_on := min(max(seconds) - min(seconds) for seconds in later)) < _APART_S:
                continue
            one = behind[0]
            communicator = _say("communicator", name=one.name or one.communicator, ranks=one.ranks)
            text = _say(
                "inspector", ranks=[row.rank for row in behind], communicator=communicator, op=one.op, last=last,
                most=most, others=[row.rank for row in others], seconds=wrote_on, all=one.op in _NEEDS_ALL,
            )  # fmt: skip
            events.append(LogEvent("inspector", None, one.path, one.line, text, op=one.op, sequence=last))
    return tuple(events)


_OF_CALLS = Words(b" opCount ", b" nranks ")
_CALL = re.compile(_GRAMMAR["call"])
_INIT = re.compile(_GRAMMAR["init"])
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
    Raises InputError where the file cannot be read."""
    calls: defaultdict[tuple[int, _Process, str], _Calls] = defaultdict(lambda: _Calls(defaultdict(list), {}))
    ranks: dict[tuple[_Process, str], int] = {}
    devices: dict[_Process, int] = {}
    count = 0
    for number, block in blocks_with(path, _OF_CALLS):
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
    said = []  # 'rank 0 broadcasts 25,503,912 of type 6'
    for ((op, count, dtype), *_), ranks in by_size[:_MOST_SIDES]:
        does = _DOES.get(op, op) if len(ranks) == 1 else _DOES.get(op, op).removesuffix("s")
        said.append(f"{who(sorted(ranks))} {does} {count:,} of type {dtype}")
    text = f"{DIFFERENT}at call {sequence} {'; '.join(said)}"
    accused = tuple(sorted(rank for _, ranks in odd for rank in ranks))
    return LogEvent("mismatch", None, path, line, text, accused=accused)
