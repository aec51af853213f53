"""Where each rank stands: the operations it has called and not finished, in groups named alike on all ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from traceops.core.rank_text import who
from traceops.hangs.evidence import GroupStatus, HangEvidence, Operation, RankRecord

# The root of one may be through with it before others come.
ROOTED = re.compile(r"broadcast|^reduce$|^_?reduce_?oop|^gather|^scatter", re.I)
_OF_ALL = "default_pg"  # as torch calls the group of all ranks
_MOST_NAMED = 8  # members by which a group without a name is called


@dataclass(frozen=True)
class ProcessGroup:
    """A process group, whichever of its members speaks of it; `ranks` is None where no member list is known.

    Names differ between members (each rank counts the groups it is in), so members and description tell
    groups apart, and `number` those that have both alike, in order of creation. `index` stands for all three.
    """

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

    enqueued: the last collective it called in each group, messages the last send or receive, latest either of
    them, None where that cannot be told. sends: the operations to and from single peers, by (group, peer,
    kind), in order, finished ones too. counted: of a log, the last collective that the rank finished in each group.
    """

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
        call = self.calls.get((group, sequence))
        if call is None and group in self.counted:
            return sequence <= self.counted[group]
        return bool(self.entered(group, sequence)) and (call is None or call not in self.pending)


def rank_positions(evidence: HangEvidence) -> dict[int, RankPosition]:
    """Every rank that has a record, by rank."""
    world = tuple(range(evidence.counted)) or None
    known: dict[tuple[tuple[int, ...] | None, str, str], ProcessGroup] = {}
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
    """The last collective that some member is through with, by group: all members have called it.

    From dumps of the unfinished operations alone, whose first one in a group follows what is done. A group where
    one of these has a root is left out: its root may be through with it before others come.
    """
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


def _groups(
    record: RankRecord,
    world: tuple[int, ...] | None,
    known: dict[tuple[tuple[int, ...] | None, str, str], ProcessGroup],
) -> dict[str, ProcessGroup]:
    """This rank's name of each group -> the group; `known` are those met so far, and grows."""
    named: dict[str, ProcessGroup] = {}
    alike: dict[tuple[tuple[int, ...] | None, str], int] = defaultdict(int)
    for name in sorted(record.groups, key=_creation_order):
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


def _creation_order(name: str) -> tuple[int, str]:
    """Torch numbers groups; other names have no order but their own."""
    return (int(name), "") if name.isdecimal() else (1 << 62, name)


def _position(
    record: RankRecord, named: Mapping[str, ProcessGroup], with_p2p: set[ProcessGroup], done: Mapping[ProcessGroup, int]
) -> RankPosition:
    calls = [Call(record.rank, named[op.group], op) for op in record.operations]
    last_finished: dict[ProcessGroup, int] = {}
    for name, status in record.status.items():
        if name in named and status.completed is not None and not _unclear(status, named[name], with_p2p, done):
            last_finished[named[name]] = status.completed
    counted = dict(last_finished) if record.source == "log" else {}
    for call in calls:  # a group's collectives finish in order: one before a finished one is finished
        if not call.op.is_p2p and call.op.state == "completed":
            last_finished[call.group] = max(last_finished.get(call.group, 0), call.op.sequence)
    pending = tuple(
        call
        for call in calls
        if call.op.state != "completed" and (call.op.is_p2p or call.op.sequence > last_finished.get(call.group, 0))
    )
    last_called: dict[ProcessGroup, int] = {}
    for call in calls:
        if not call.op.is_p2p:
            last_called[call.group] = max(last_called.get(call.group, 0), call.op.sequence)
    enqueued: dict[ProcessGroup, int | None] = {}
    messages: dict[ProcessGroup, int | None] = {}
    latest: dict[ProcessGroup, int | None] = {}
    for name, group in named.items():
        status = record.status.get(name, GroupStatus())
        known = [last_called[group]] if group in last_called else []
        if status.enqueued is not None and not _unclear(status, group, with_p2p, done):
            known.append(status.enqueued)
        if not known and record.whole:
            known = [0]
        enqueued[group] = max(known, default=None)
        messages[group] = status.messages
        latest[group] = status.latest
    sends: dict[tuple[ProcessGroup, int | None, str], list[Call]] = defaultdict(list)
    for call in calls:
        if call.op.is_p2p:
            sends[call.group, call.op.peer, call.op.op].append(call)
    return RankPosition(
        record.rank,
        record,
        {call.key: call for call in calls if not call.op.is_p2p},
        pending,
        enqueued,
        messages,
        latest,
        {key: tuple(same) for key, same in sends.items()},
        counted,
    )


def _unclear(
    status: GroupStatus, group: ProcessGroup, with_p2p: set[ProcessGroup], done: Mapping[ProcessGroup, int]
) -> bool:
    """Whether a status may count sends and receives instead of collectives.

    It does where it counts fewer than the member must have called, for another to be through with them.
    """
    too_few = status.enqueued is not None and status.enqueued < done.get(group, 0)
    return status.messages is None and (group in with_p2p or too_few)
