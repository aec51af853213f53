"""Messages of torch, NCCL, gloo and Horovod, a line each: their kind, what they tell, and which rank says them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypedDict

from msgspec import Struct

from traceops.core.text import by_shape, perhaps_in
from traceops.hangs.crashes import LINES, only_said, told_alone
from traceops.hangs.crashes import NEEDLES as CRASH_NEEDLES
from traceops.hangs.evidence import Frame, LogKind
from traceops.hangs.readers.launchers import IN_PASSING as IN_PASSING
from traceops.hangs.readers.launchers import NEEDLES as END_NEEDLES
from traceops.hangs.readers.launchers import ended, in_short, last_words
from traceops.traces.text_index import Words
from traceops.words.catalogue import grammar

_GRAMMAR = grammar("messages")
_STALL = "submitted to be reduced, gathered or broadcasted by subset of ranks"
# Which ranks have not come to an operation; old releases say which have.
_LIST = re.compile(r"\[(missing|ready) ranks: (?=\d)")
_NUMBERS = re.compile(r"\d{1,7}")
# Since 0.16: by rank the operations that it has not come to, six at most; '!' where Horovod will end the job for it.
BY_RANK = "Stalled ranks:"
_OF_RANK = re.compile(r" (\d{1,7})!?: \[([^\[\]]{1,4000})\]")
RANK_LINE = re.compile(
    r"(?:\[\d{1,6},\d{1,6}\](?:<\w{1,10}>)?:|\d{1,6}: )?\s{0,8}(\d{1,7}!?: \[[^\[\]]{1,4000}\])\s{0,8}$"
)
_MOST_RANKS = 1 << 13
_DUMP_SIGNAL = re.compile(r"dump signal due to a collective timeout from {1,3}rank (\d{1,7})\b")
STALL_NEEDLES: tuple[bytes, ...] = (
    _STALL.encode(), BY_RANK.encode(), b"[missing ranks: ", b"[ready ranks: ", b"dump signal due to",
)  # fmt: skip


def stalled_ranks(body: str) -> tuple[int, ...] | None:
    """The ranks that have come to none of the operations that Horovod says are stalled; None where it says nothing. Of
    ready ranks alone those below the last of them are known to be missing. Empty where the operations differ in whom
    they miss, or none is listed."""
    missing: set[int] | None = None
    for which, listed in _lists(body):
        ranks = listed if which == "missing" else set(range(min(max(listed), _MOST_RANKS))) - listed
        missing = ranks if missing is None else missing & ranks
    if missing is None and BY_RANK in body:
        listed_for = {
            int(match[1]): (set(match[2].removesuffix(" ...").split(", ")), match[2].endswith(" ..."))
            for match in _OF_RANK.finditer(body[body.index(BY_RANK) :])
        }
        everything = {name for names, _ in listed_for.values() for name in names}
        if listed_for:  # a list that is cut off may hold everything
            return tuple(sorted(rank for rank, (names, more) in listed_for.items() if more or names == everything))
    if missing is None:
        return () if _STALL in body else None
    return tuple(sorted(missing))


def ready_ranks(body: str) -> tuple[int, ...]:
    """The ranks that have come to an operation that Horovod says is stalled."""
    return tuple(sorted({rank for which, ranks in _lists(body) if which == "ready" for rank in ranks}))


def _lists(body: str) -> Iterator[tuple[str, set[int]]]:
    """'missing' or 'ready', and the ranks that are, for each list that is closed."""
    for match in _LIST.finditer(body) if " ranks: " in body else ():
        listed, closed, _ = body[match.end() :].partition("]")
        if closed and not listed.strip("0123456789, "):
            yield match[1], set(map(int, _NUMBERS.findall(listed)))


def timed_out_rank(body: str) -> int | None:
    """The rank whose collective timed out, as one says that only dumps for it."""
    told = _DUMP_SIGNAL.search(body) if "dump signal" in body else None
    return None if told is None else int(told[1])


# As torch's watchdog writes them -> as its flight recorder does, of those that differ by more than their case.
OPERATIONS = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "_ALLGATHER_BASE": "_all_gather_base",
    "ALLGATHER_BASE": "_all_gather_base", "ALLGATHER_COALESCED": "all_gather_into_tensor_coalesced",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather_into_tensor_coalesced",
    "REDUCE_SCATTER_BASE": "_reduce_scatter_base", "ALLTOALL": "all_to_all", "ALLTOALL_BASE": "all_to_all",
    "RECVANYSOURCE": "recv",
}  # fmt: skip
# Every pattern starts with a literal and repeats nothing without a bound: a hostile line costs what a plain
# one of its length costs.
WORK = re.compile(_GRAMMAR["work"])
STATUS = re.compile(
    r"ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), last completed (?:NCCL )?work: (?P<completed>-?\d{1,18})"
)
# [PG ID 0 PG GUID 0(default_pg) Rank 2]; torch 2.4: [PG 0 (default_pg) Rank 2], 2.3: [PG 0 Rank 2]
GROUP = re.compile(_GRAMMAR["group"])
RANK_IN_GROUP = re.compile(r"\[Rank (\d{1,7})\]")
# What an exception says of whose it is: 'AssertionError: Rank 3: found NaN', 'aborted on rank 7', 'barrier on rank: 2'.
RANK_OF_MESSAGE = re.compile(r"(?:Error: Rank |aborted on rank |store based barrier on rank: )(\d{1,7})\b")
_LOOSE_WORK = re.compile(r"Work[A-Z]{1,5}CCL\([^)]{0,200}?OpType=(?P<op>\w{1,40})")
_SEQUENCE = re.compile(r"SeqNum=(\d{1,18})")
_AROUND_RANK = re.compile(r"Mismatched collective detected.{0,80}? rank (\d{1,7})\b")
_FINGERPRINT = re.compile(_GRAMMAR["fingerprint"])
_GLOO_WAIT = re.compile(r"imed out waiting \d{1,18}ms for (?:recv|send) operation")
_XID = re.compile(r"Xid \((?:PCI:)?[0-9A-Fa-f:.]{1,20}\): \d{1,4}")
_KILLED = re.compile(r"Killed process (\d{1,10})")
DIFFERENT = "Different collectives: "
_NCCL_WARNING = "NCCL WARN "
_NCCL_NOTE = " NCCL INFO "
_WATCHDOG = "Watchdog caught collective operation timeout"
_BARRIER_FAILED = " failed to pass monitoredBarrier"
_BARRIER: tuple[tuple[LogKind, str], ...] = (
    ("timeout", "timed out in monitoredBarrier"),
    ("missing", "No ranks successfully processed"),
    ("connection", "received errors while waiting"),
)
# What NCCL says of a connection that is lost.
_LOST = (
    "Connection closed", "Connection reset", "Connection refused", "connection abort", "No route to host",
    "Network is unreachable", "Connection timed out", "Broken pipe",
    "Got completion", "socketProgress", "remote peer", "remote error", "Timeout waiting",
)  # fmt: skip


class ToldFields(TypedDict, total=False):
    """Fields of a LogEvent that a line may tell; `enqueued` and `completed` are numbers of operations."""

    op: str | None
    sequence: int
    elements_in: int
    elements_out: int
    enqueued: int
    completed: int
    accused: tuple[int, ...]
    group: str
    group_description: str | None
    frames: tuple[Frame, ...]


class Told(Struct, frozen=True):
    """What a line tells, without who said it and where. pid: of a process it names."""

    kind: LogKind
    text: str
    fields: ToldFields
    pid: int | None = None


def canonical_op(name: str) -> str:
    return OPERATIONS.get(name, name.lower())


def told_by(body: str) -> Told | None:
    """What a line without its prefixes tells; None if nothing."""
    for message in _messages_in(body):
        if (told := message.read(body)) is not None or message.is_last:
            return told
    for kind, needle, exceptions in _lines_in(body):
        if needle in body and not any(map(body.__contains__, exceptions)) and not only_said(body, needle):
            return Told(kind, body, {})
    if told_alone(body):
        return Told("error", body, {})
    if (end := ended(body)) is None:
        return None
    return Told("error", f"{end} ({last_words(body)})", {}) if end else Told("exit", in_short(body), {})


def _timeout(body: str) -> Told | None:
    if (work := WORK.search(body)) is not None:
        return Told("timeout", body, _operation(work))
    cut = " ran for " in body or "Watchdog caught" in body  # or it is of another torch
    if "WorkNCCL(" in body and cut and (told := _LOOSE_WORK.search(body)) is not None:
        fields: ToldFields = {"op": canonical_op(told["op"])}
        if (number := _SEQUENCE.search(body)) is not None:
            fields["sequence"] = int(number[1])
        return Told("timeout", body, fields)
    # Cut off within the operation.
    return Told("timeout", body, {}) if _WATCHDOG in body else None


def _status(body: str) -> Told | None:
    if (status := STATUS.search(body)) is None:
        return None
    enqueued, completed = (max(int(status[name]), 0) for name in ("enqueued", "completed"))  # -1: none yet
    return Told("status", body, {"enqueued": enqueued, "completed": completed})


def _stalled(body: str) -> Told | None:
    stalled = stalled_ranks(body)
    return None if stalled is None else Told("missing", body, {"accused": stalled})


def _if_found(kind: LogKind, pattern: re.Pattern[str], body: str) -> Told | None:
    return Told(kind, body, {}) if pattern.search(body) is not None else None


def _killed(body: str) -> Told | None:
    if "ut of memory" not in body and "oom" not in body:
        return None
    killed = _KILLED.search(body)
    return Told("memory", body, {}, None if killed is None else int(killed[1]))


# What Ray says of a process that ended, and does not know why.
OF_RAY = ("its worker process has died", "A worker died or was killed while executing", "Raylet is terminated: ip=")


def _operation(match: re.Match[str]) -> ToldFields:
    told: ToldFields = {"op": canonical_op(match["op"])}
    if match["sequence"] is not None:
        told["sequence"] = int(match["sequence"])
    if match["elements_in"] is not None:
        told["elements_in"] = int(match["elements_in"])
    if match["elements_out"] is not None:
        told["elements_out"] = int(match["elements_out"])
    return told


def _mismatch(body: str) -> Told:
    """Both calls in short; the full text lists layouts and devices at length."""
    if not (calls := list(_FINGERPRINT.finditer(body))):
        return Told("mismatch", body, {})
    text = ", but ".join(f"rank {call['rank']} is running {_call(call)}" for call in calls[:8])
    first = calls[0]
    fields: ToldFields = {
        "accused": tuple(sorted({int(call["rank"]) for call in calls})),
        "op": canonical_op(first["op"]),
    }
    if first["sequence"] is not None:
        fields["sequence"] = int(first["sequence"])
    return Told("mismatch", f"{DIFFERENT}{text}", fields)


def _call(call: re.Match[str]) -> str:
    number = "" if call["sequence"] is None else f" number {call['sequence']}"
    size = "" if call["shape"] is None else f" of [{call['shape']}]"
    dtype = "" if call["dtype"] is None else f" {call['dtype']}"
    return f"{canonical_op(call['op'])}{number}{size}{dtype}"


def _barrier(body: str) -> Told | None:
    before, failed, _ = body.partition(_BARRIER_FAILED)
    if failed:
        ranks = before.rpartition("Rank")[2]
        accused = tuple(sorted({int(number) for number in re.findall(r"\d{1,7}", ranks)}))
        return Told("missing", body, {"accused": accused, "op": "monitored_barrier"})
    return next((Told(kind, body, {"op": "monitored_barrier"}) for kind, words in _BARRIER if words in body), None)


def _nccl_warning(body: str) -> Told:
    said = body.partition(_NCCL_WARNING)[2]
    if "Message truncated" in said or "Mismatched collective" in said:
        around = _AROUND_RANK.search(said)
        return Told("mismatch", body, {} if around is None else {"accused": (int(around[1]),)})
    if "Cuda failure" in said or "CUDA failure" in said:
        return Told("memory" if "out of memory" in said else "cuda", body, {})
    return Told("connection" if any(map(said.__contains__, _LOST)) else "nccl", body, {})


class _Message(Struct, frozen=True):
    """Lines that hold one of `words`, and what such a line tells. is_last: no other rule knows them."""

    words: tuple[str, ...]
    read: Callable[[str], Told | None]
    is_last: bool = False


def _nothing(_body: str) -> None:
    """Healthy jobs have such lines: a connection refused and tried again, closed at the end."""


_MESSAGES = (
    _Message(("Watchdog caught", "WorkNCCL("), _timeout),
    _Message(("ast enqueued",), _status),
    _Message(("mismatch between collectives",), _mismatch, is_last=True),
    _Message(("monitoredBarrier",), _barrier, is_last=True),
    _Message((_STALL, BY_RANK, " ranks: "), _stalled),
    _Message((_NCCL_WARNING,), _nccl_warning, is_last=True),
    _Message((_NCCL_NOTE,), _nothing, is_last=True),
    _Message(("imed out waiting",), partial(_if_found, "timeout", _GLOO_WAIT)),
    _Message(("Killed process",), _killed),
    _Message(("Xid (",), partial(_if_found, "cuda", _XID)),
)


@by_shape
def _messages_in(body: str) -> tuple[_Message, ...]:
    """Those one of whose words, none of which has a digit, a line holds."""
    return tuple(message for message in _MESSAGES if any(map(body.__contains__, message.words)))


_lines_in = perhaps_in((line[1], line) for line in LINES)
# Torchrun begins another attempt; or Slurm ended a job, and what follows in the file is another's.
RESTARTS = (
    "slurmstepd: error: *** JOB ", "will restart worker group", "; restarting worker group",
    "] Restarting worker group",
)  # fmt: skip
# A block of a log that holds none of these tells nothing, and its lines are not looked at.
WORDS = Words(
    *(word.encode() for message in _MESSAGES if message.read not in (_nothing, _stalled) for word in message.words),
    b"[PG ", b"Traceback (most recent call last)",
    b"Fatal Python error", b"Stack trace of the failed", b"exitcode", b"srun: error: ", b"exited on signal",
    b" first, exit code ", b" died from signal ", b" crashed with exit code ", b" exit with status code ",
    b"terminated with ", b"exitcode ", b"terminate called after", b"Process name: ",
    *(words.encode() for words in RESTARTS),
    *CRASH_NEEDLES, *END_NEEDLES, *STALL_NEEDLES,
)  # fmt: skip
_DEFAULT_GROUP = "default_pg"
# torch's [rank3]:, Determined's '[rank=3] || ', our own [rank 3]
_RANK = re.compile(r"\[rank[ :=]{0,2}(\d{1,7})\]:? ?(?:\|\| ?)?")
_GLOG = re.compile(r"\[rank(\d{1,7})\]:(?=\[[EWIF])")  # follows a progress bar on the same line
_LABELS = (
    ("mpi", re.compile(r"\[\d{1,9},(\d{1,7})\]<std(?:out|err)>: ?")),
    ("sagemaker", re.compile(r"\[\d{1,9},mpirank:(\d{1,7}),[\w-]{1,60}\]<std(?:out|err)>: ?")),
    ("named", re.compile(r"(?:(?:Rank|RANK) (\d{1,7}): |\[RANK (\d{1,7})\]:? )")),
    ("role", re.compile(r"\[[A-Za-z][A-Za-z_.-]{0,40}?(\d{1,7})\]: ?")),  # torchrun's [default3]: is a LOCAL rank
    ("task", re.compile(r" {0,6}(\d{1,7}): ")),  # srun --label
)
_SEARCHED = 160  # timestamps and host names may come before the rank
_MOST_LABELS = 4
_MOST_KNOWN = 1 << 16


class Speakers:
    """Tells lines by rank. A label may count ranks within a node, or Slurm's tasks. It is the rank only where the log
    never shows one of its kind beside a different rank. Once it was seen beside a rank, it means that rank."""

    def __init__(self, default: int | None) -> None:
        self._default = default
        self._known: dict[tuple[str, int], int | None] = {}
        self._differing: set[str] = set()
        self._guessed: set[str] = set()
        self.saw_ranks = False  # a line's own rank was told, or guessed
        self.misled = False  # a label was taken for a rank, and a later line showed that it is none

    def split(self, line: str) -> tuple[int | None, str]:
        """The rank that says the line, None if it is not told, and the line without the prefixes."""
        labels, of_rank, end = (_prefix_or_task if self._default is None else _prefix)(line)
        body = line[end:] if end else line
        if of_rank is not None:
            rank = int(line[of_rank])
            self.saw_ranks = True
            for kind, place in labels:
                self._learn((kind, int(line[place])), rank)
            return rank, body
        for kind, place in reversed(labels):
            number = int(line[place])
            guess = self._known.get((kind, number), None if kind in self._differing else number)
            if guess is not None:
                self._guessed.add(kind)
                self.saw_ranks = True
                return guess, body
        return self._default, body

    def _learn(self, label: tuple[str, int], rank: int) -> None:
        if len(self._known) < _MOST_KNOWN and self._known.setdefault(label, rank) != rank:
            self._known[label] = None  # one label, several ranks: it names a node
        if label[1] != rank and label[0] not in self._differing:
            self._differing.add(label[0])
            self.misled |= label[0] in self._guessed


_Prefix = tuple[list[tuple[str, slice]], slice | None, int]  # kind and number of each label, the rank, and the end


def _prefix_of(line: str, *, tasks: bool) -> _Prefix:
    """Where a line says whose it is. tasks: by a number and a colon too, with which anything may begin."""
    labels: list[tuple[str, slice]] = []
    start = 0
    while len(labels) < _MOST_LABELS and (label := _label(line, start, tasks)) is not None:
        kind, number, start = label
        labels.append((kind, number))
    return labels, *_rank_in(line, start)


_prefix_or_task: Callable[[str], _Prefix] = by_shape(partial(_prefix_of, tasks=True))
_prefix: Callable[[str], _Prefix] = by_shape(partial(_prefix_of, tasks=False))


def _label(line: str, start: int, tasks: bool) -> tuple[str, slice, int] | None:
    if line.startswith("[rank", start):
        return None
    for kind, pattern in _LABELS:
        if kind == "task" and (start or not tasks):
            continue
        if (match := pattern.match(line, start)) is not None:
            return kind, slice(*match.span(match.lastindex or 1)), match.end()
    return None


def _rank_in(line: str, start: int) -> tuple[slice | None, int]:
    match = _RANK.search(line, start, start + _SEARCHED)
    before = "" if match is None else line[start : match.start()]
    if len(before.split()) > 5 or "Error" in before or "Exception" in before:
        match = None  # a message that mentions a rank: no time or host
    if match is None:
        match = _GLOG.search(line, start)
    if match is None:
        return None, start
    while (again := _RANK.match(line, match.end())) is not None:  # the launcher's, then torch's own
        match = again
    return slice(*match.span(1)), match.end()


def rank_in_message(body: str, group: re.Match[str] | None) -> int | None:
    """Messages count ranks within the group: only the group of all ranks tells the rank itself."""
    if group is not None:
        is_default = group["description"] == _DEFAULT_GROUP or group["group"] in ("0", _DEFAULT_GROUP)
        return int(group["rank"]) if is_default else None
    told = RANK_IN_GROUP.search(body) or RANK_OF_MESSAGE.search(body)
    return None if told is None else int(told[1])
