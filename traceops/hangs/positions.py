"""Where each rank stands: its calls in words of shapes, and those it has not finished, in groups named alike."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from traceops.core.rank_text import who
from traceops.hangs.evidence import Frame, GroupStatus, HangEvidence, Operation, RankRecord

# The root of one may be through with it before others come.
ROOTED = re.compile(r"broadcast|^reduce$|^_?reduce_?oop|^gather|^scatter", re.I)
_OF_ALL = "default_pg"  # as torch calls the group of all ranks
_MOST_NAMED = 8  # members by which a group without a name is called


@dataclass(frozen=True)
class ProcessGroup:
    """A process group, whichever of its members speaks of it; `ranks` is None where no member list is known. Names
    differ between members (each rank counts the groups it is in), so members and description tell groups apart, and
    `number` those that have both alike, in order of creation. `index` stands for all three."""

    index: int
    ranks: tuple[int, ...] | None = field(compare=False)
    description: str = field(compare=False)
    number: str = field(compare=False)

    @property
    def label(self) -> str:
        """What people call it."""
        plain = self.description in ("", "undefined")
        if plain and self.ranks is not None:
            few = len(self.ranks) <= _MOST_NAMED
            return f"the group of {who(self.ranks)}" if few else f"a group of {len(self.ranks)} ranks"
        return self.description if not plain else f"group {self.number}"


@dataclass(frozen=True)
class Call:
    """An operation of a rank, with the group it is in."""

    rank: int
    group: ProcessGroup
    op: Operation

    @property
    def key(self) -> tuple[ProcessGroup, int]:
        """What all members' calls of one collective share."""
        return self.group, self.op.sequence


@dataclass(frozen=True)
class RankPosition:
    """One rank's position. calls: its collectives that are known, by key. pending: not finished, in program order.
    enqueued: the last collective it called in each group, messages the last send or receive, latest either of them,
    None where that cannot be told. sends: the operations to and from single peers, by (group, peer, kind), in order,
    finished ones too. counted: of a log, the last collective that the rank finished in each group."""

    rank: int
    record: RankRecord
    calls: Mapping[tuple[ProcessGroup, int], Call]
    pending: tuple[Call, ...]
    enqueued: Mapping[ProcessGroup, int | None]
    messages: Mapping[ProcessGroup, int | None]
    latest: Mapping[ProcessGroup, int | None]
    sends: Mapping[tuple[ProcessGroup, int | None, str], tuple[Call, ...]]
    counted: Mapping[ProcessGroup, int] = field(default_factory=dict)

    @property
    def head(self) -> Call | None:
        """The first operation that is not finished: what the rank waits in."""
        return self.pending[0] if self.pending else None

    def entered(self, group: ProcessGroup, sequence: int) -> bool | None:
        """Whether the rank has called this collective; None where that cannot be told."""
        last = self.enqueued.get(group)
        return None if last is None else last >= sequence

    def finished(self, group: ProcessGroup, sequence: int) -> bool:
        """Whether the rank's call of this collective is complete; one that the recorder forgot is."""
        if (call := self.calls.get((group, sequence))) is None and group in self.counted:
            return sequence <= self.counted[group]
        return bool(self.entered(group, sequence)) and (call is None or call not in self.pending)


Positions = Mapping[int, RankPosition]  # by rank
_Known = dict[tuple[tuple[int, ...] | None, str, str], ProcessGroup]  # by ranks, description and number


def rank_positions(evidence: HangEvidence) -> dict[int, RankPosition]:
    """Every rank that has a record, by rank."""
    world = tuple(range(evidence.counted)) or None
    known: _Known = {}
    named = {rank: _groups(record, world, known) for rank, record in evidence.records.items()}
    with_p2p = {
        named[rank][name]
        for rank, record in evidence.records.items()
        for name, status in record.status.items()
        if status.messages and name in named[rank]
    }
    done = _done_for_certain(evidence.records, named)
    return {
        rank: _position(record, named[rank], with_p2p, done if record.active_only else {})
        for rank, record in evidence.records.items()
    }


def _done_for_certain(
    records: Mapping[int, RankRecord], named: Mapping[int, Mapping[str, ProcessGroup]]
) -> dict[ProcessGroup, int]:
    """The last collective that some member is through with, by group: all members have called it. From dumps of the
    unfinished operations alone, whose first one in a group follows what is done. A group where one of these has a root
    is left out: its root may be through with it before others come."""
    done: dict[ProcessGroup, int] = {}
    rooted: set[ProcessGroup] = set()
    for rank, record in records.items():
        first: dict[ProcessGroup, int] = {}
        for op in record.operations if record.active_only else ():
            if not op.is_p2p:
                group = named[rank][op.group]
                first[group] = min(first.get(group, op.sequence), op.sequence)
                rooted |= {group} if ROOTED.search(op.op) else set()
        for group, sequence in first.items():
            done[group] = max(done.get(group, 0), sequence - 1)
    return {group: sequence for group, sequence in done.items() if group not in rooted}


def _groups(record: RankRecord, world: tuple[int, ...] | None, known: _Known) -> dict[str, ProcessGroup]:
    """This rank's name of each group -> the group; `known` are those met so far, and grows."""
    named: dict[str, ProcessGroup] = {}
    alike: dict[tuple[tuple[int, ...] | None, str], int] = defaultdict(int)
    # Torch numbers groups; other names have no order but their own.
    for name in sorted(record.groups, key=lambda name: (int(name) if name.isdecimal() else 1 << 62, name)):
        group = record.groups[name]
        ranks = group.ranks or (world if group.is_of_all else None)
        # Who is in it is a guess from a log: the guess is no name for it.
        guessed = record.source == "log" and group.ranks is None and group.is_of_all
        description = group.description or (_OF_ALL if guessed else "")
        number = str(alike[ranks, description]) if ranks else name
        alike[ranks, description] += 1
        key = (ranks, description, number)
        named[name] = known.setdefault(key, ProcessGroup(len(known), *key))
    return named


def _position(
    record: RankRecord, named: Mapping[str, ProcessGroup], with_p2p: set[ProcessGroup], done: Mapping[ProcessGroup, int]
) -> RankPosition:
    calls = [Call(record.rank, named[op.group], op) for op in record.operations]
    counted: dict[ProcessGroup, int] = {}
    for name, status in record.status.items():
        if name in named and status.completed is not None and not _unclear(status, named[name], with_p2p, done):
            counted[named[name]] = status.completed
    # A group's collectives finish in order: one before a finished one is finished.
    last_finished = _latest((call for call in calls if call.op.state == "completed"), counted)
    pending = tuple(
        call
        for call in calls
        if call.op.state != "completed" and (call.op.is_p2p or call.op.sequence > last_finished.get(call.group, 0))
    )
    last_called = _latest(calls, {})
    enqueued: dict[ProcessGroup, int | None] = {}
    messages: dict[ProcessGroup, int | None] = {}
    latest: dict[ProcessGroup, int | None] = {}
    for name, group in named.items():
        status = record.status.get(name, GroupStatus())
        unclear = _unclear(status, group, with_p2p, done)
        known = (last_called.get(group), None if unclear else status.enqueued)
        enqueued[group] = max((last for last in known if last is not None), default=0 if record.whole else None)
        messages[group] = status.messages
        latest[group] = status.latest
    return RankPosition(
        record.rank, record, {call.key: call for call in calls if not call.op.is_p2p}, pending, enqueued, messages,
        latest, _sends(calls), counted if record.source == "log" else {},
    )  # fmt: skip


def _sends(calls: Sequence[Call]) -> dict[tuple[ProcessGroup, int | None, str], tuple[Call, ...]]:
    sends: dict[tuple[ProcessGroup, int | None, str], list[Call]] = defaultdict(list)
    for call in calls:
        if call.op.is_p2p:
            sends[call.group, call.op.peer, call.op.op].append(call)
    return {key: tuple(same) for key, same in sends.items()}


def _latest(calls: Iterable[Call], known: Mapping[ProcessGroup, int]) -> dict[ProcessGroup, int]:
    """The highest number of a collective in each group, of these calls and of what is known."""
    latest = dict(known)
    for call in calls:
        if not call.op.is_p2p:
            latest[call.group] = max(latest.get(call.group, 0), call.op.sequence)
    return latest


def _unclear(
    status: GroupStatus, group: ProcessGroup, with_p2p: set[ProcessGroup], done: Mapping[ProcessGroup, int]
) -> bool:
    """Whether a status may count messages instead of collectives: it is too low for what others have finished."""
    too_few = status.enqueued is not None and status.enqueued < done.get(group, 0)
    return status.messages is None and (group in with_p2p or too_few)


# Sizes that may differ between the ranks of a correct call.
_ANY_INPUT = (
    "all_to_all", "alltoall", "scatter", "broadcast", "all_gather", "coalesced", "gather", "send", "recv",
    "_broadcast_oop",
)  # fmt: skip
_ANY_OUTPUT = (
    "all_to_all", "alltoall", "gather", "scatter", "reduce", "all_gather", "coalesced", "send", "recv", "_reduce_oop",
)  # fmt: skip
# One rank of a correct barrier or broadcast may go by another name of the same thing.
_ALIKE = {"all_reduce_barrier": "barrier", "allreduce": "all_reduce", "all_gather_base": "_all_gather_base"}
_BYTES = {
    "double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "complexfloat": 8, "complexdouble": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "int64": 8, "int32": 4,
    "float32": 4, "float16": 2, "float64": 8, "uint8": 1, "int8": 1,
}  # fmt: skip
_LIBRARIES = ("/torch/", "/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "/contextlib.py")


def signature(op: Operation) -> tuple[object, ...]:
    """What all ranks' calls of one collective must have alike; None in it matches anything."""
    name = _ALIKE.get(op.op, op.op)
    return (
        name,
        None if name.endswith(_ANY_INPUT) or name.startswith(_ANY_INPUT) else _elements(op.sizes_in),
        None if name.endswith(_ANY_OUTPUT) or name.startswith(_ANY_OUTPUT) else _elements(op.sizes_out),
        op.dtypes_in or None,
    )


def agree(one: Operation, other: Operation) -> bool:
    """Whether the two can be calls of one collective."""
    return all(a is None or b is None or a == b for a, b in zip(signature(one), signature(other), strict=True))


def by_signature(calls: Sequence[Call]) -> list[list[Call]]:
    """Calls that agree with each other, largest group first, then that of the lowest rank."""
    sides: list[list[Call]] = []
    for call in calls:
        if (side := next((side for side in sides if agree(side[0].op, call.op)), None)) is None:
            sides.append([call])
        else:
            side.append(call)
    return sorted(sides, key=lambda side: (-len(side), min(call.rank for call in side)))


def describe(op: Operation) -> str:
    """'all_reduce of 1048576 Float'."""
    shape = shape_text(op)
    return f"{op.op} of {shape}" if shape else op.op


def shape_text(op: Operation) -> str:
    """'2048×5120 BFloat16'; '' where the sizes are not known."""
    sizes = op.sizes_in or op.sizes_out
    if not sizes:
        return ""
    shapes = ["×".join(map(str, size)) or "1" for size in sizes]
    text = ", ".join(shapes[:3]) + (f", … ({len(shapes)} in all)" if len(shapes) > 3 else "")
    return f"{text} {op.dtypes_in[0]}" if op.dtypes_in else f"{text} elements"


def message_bytes(op: Operation) -> int | None:
    """Bytes of the larger of input and output, as nccl-tests count a message; None where a type is not known."""
    sides = ((op.sizes_in, op.dtypes_in), (op.sizes_out, op.dtypes_out))
    known = [value for sizes, dtypes in sides if (value := _bytes(sizes, dtypes)) is not None]
    return max(known, default=None)


def code_place(frames: Sequence[Frame]) -> str | None:
    """The innermost frame outside torch and the standard library, as 'step (train.py:128)'."""
    return next((frame.place for frame in frames if not any(part in frame.file for part in _LIBRARIES)), None)


def _elements(sizes: tuple[tuple[int, ...], ...] | None) -> tuple[int, ...] | None:
    return tuple(math.prod(size) for size in sizes) if sizes else None


def _bytes(sizes: tuple[tuple[int, ...], ...] | None, dtypes: tuple[str, ...] | None) -> int | None:
    if not sizes or not dtypes:
        return None
    widths = [_BYTES.get(dtype.lower()) for dtype in dtypes]
    widths += [widths[0]] * (len(sizes) - len(widths))
    if any(width is None for width in widths):
        return None
    return sum(math.prod(size) * (width or 0) for size, width in zip(sizes, widths, strict=False))
