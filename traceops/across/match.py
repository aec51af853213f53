"""Matches collectives across ranks and splits their time into waiting and transfer."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, lru_cache

import numpy as np
from msgspec import Struct

from traceops.across import send_receive
from traceops.across.groups import group_of, only_group, role_of_kernel, tensor_group
from traceops.core.arrays import Int
from traceops.measure.program import NEVER
from traceops.measure.summary import RankSummary
from traceops.traces.model import CommArgs

_OP_IN_KERNEL = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|send_?recv|barrier|gather|scatter)", re.I
)
_Key = tuple[int, str, str]
_SENDS_IN_KERNEL = re.compile(r"send_?recv", re.I)
SEND_RECEIVE = "send_recv"
GROUPED_SEND_RECEIVE = "batched_send_recv"  # several that one call makes at once
NO_METADATA = "coalesced or grouped, its metadata is missing"
BEFORE_WINDOW = "launched before the window, nothing is known of it"
NO_GROUP = "its process group is not known"
# Without a GPU: all that the trace holds began inside the window.
NO_CALL = "nothing tells which call each was"
_ROOTED = re.compile(r"broadcast|^reduce$|^_?reduce_?oop|^gather|^scatter", re.I)
_POINT_TO_POINT = re.compile(r"send|recv", re.I)


class Collective(Struct, frozen=True, dict=True):
    """One matched collective: per member rank its event and how long it waited there. `transfer_ns` is the shortest
    duration among the members: the last to arrive waits for nobody, so its event is transfer only. It needs no common
    clock. Of sends and receives without a GPU it may be less (send_receive.py)."""

    group: tuple[int, ...]
    description: str
    op: str
    elements: int | None
    dtype: str | None
    members: tuple[tuple[int, int], ...]  # rank, position in the rank's CommEvents
    transfer_ns: int
    wait_ns: tuple[int, ...]  # in the order of `members`
    links: tuple[tuple[int, int], ...] = ()  # of sends and receives: sender and receiver, places in `members`
    came_last: int | None = None  # by the clock, where that was asked
    needs: tuple[tuple[int, ...], ...] = ()  # of rooted operations: whom each member needs, itself too (clocks.py)

    @cached_property
    def is_rooted(self) -> bool:
        """Whether one member gives to or takes from all others."""
        return bool(_ROOTED.search(self.op))

    @cached_property
    def last_rank(self) -> int | None:
        """The member that arrived last; None for rooted operations, unless each of their members waits for it."""
        if self.is_rooted and (self.needs or self.came_last is None):
            return None
        if self.came_last is not None:
            return self.came_last
        return self.members[self.wait_ns.index(min(self.wait_ns))][0]


class MatchedCollectives(Struct, frozen=True):
    """Matched collectives and how many events found no partner, with the reason. apart: send and receive of messages
    that are in no collective, as (rank, position): a grouped call waits for several events of another rank, and belongs
    to the latest."""

    collectives: tuple[Collective, ...]
    events: int
    unmatched: dict[str, int]
    apart: tuple[tuple[send_receive.Event, send_receive.Event], ...] = ()

    @property
    def matched_pct(self) -> float | None:
        """Share that was matched of the events that belong to the window; None without any."""
        inside = self.events - self.unmatched.get(BEFORE_WINDOW, 0)
        if inside <= 0:
            return None
        return round(100.0 * (1.0 - (sum(self.unmatched.values()) + inside - self.events) / inside), 2)


def match_collectives(ranks: Sequence[RankSummary], world: tuple[int, ...]) -> MatchedCollectives:
    """Match by (global ranks of the group, description, operation), and in it by sequence or from the end. Sends and
    receives go by their two ends, in order (send_receive.py). Windows start at different moments but ranks leave a step
    together, so counting from the end pairs them [docs/metrics.md]. A pair whose sizes differ is left out rather than
    believed."""
    summaries = {summary.rank: summary for summary in ranks}
    groups, unmatched = _Groups(summaries), Counter[str]()
    whole_world = summaries.keys() >= set(world)
    by_key: dict[_Key, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for summary in ranks:
        for position, place in _places(summary, world, groups):
            if isinstance(place, str):
                unmatched[send_receive.NO_TRACE if place == NO_METADATA and not whole_world else place] += 1
            else:
                by_key[place][summary.rank].append(position)
    durations = {summary.rank: (summary.comm.end - summary.comm.start).tolist() for summary in ranks}
    collectives: list[Collective] = []
    for (number, description, op), positions in by_key.items():
        group = tuple(sorted(groups.ranks[number]))
        paired = send_receive.pair(group, positions, summaries)
        unmatched[send_receive.NO_PARTNER] += sum(map(len, positions.values())) - len(group) * len(paired)
        for members in paired:
            args_of = [summaries[rank].comm.args[position] for rank, position in members]
            sizes = {(args.elements_in, args.dtype) for args in args_of if args is not None}
            if len(sizes) > 1 and not _uneven_by_design(op):
                unmatched[send_receive.OTHER_SIZE] += len(members)
                continue
            spent = [durations[rank][position] for rank, position in members]
            collectives.append(_collective((group, description, op), members, args_of[0], spent))
    exchanges, apart, alone = send_receive.match_exchanges(ranks, world)
    unmatched.update(alone)
    for exchange in exchanges:
        collectives.append(_exchanged(exchange, [durations[rank][position] for rank, position in exchange.events]))
    ends = tuple((message.send.event, message.receive.event) for message in apart)
    events = sum(len(summary.comm.start) for summary in ranks)
    return MatchedCollectives(tuple(collectives), events, dict(+unmatched), ends)


def _places(summary: RankSummary, world: tuple[int, ...], groups: _Groups) -> Iterator[tuple[int, _Key | str]]:
    """Each of a rank's events that is a collective, by its position: what it is matched by, or why it cannot be."""
    comm, default = summary.comm, only_group(summary, world)
    others_known = any(
        args is not None and not _sends_in_kernel(name) for args, name in zip(comm.args, comm.name, strict=True)
    )
    calls_known = bool(np.count_nonzero(summary.program.host[: len(comm.args)] > NEVER))
    for position, (args, kernel) in enumerate(zip(comm.args, comm.name, strict=True)):
        if comm.parts[position]:
            continue
        group, op = group_of(args, default), _operation(args, kernel)
        own = args is None and role_of_kernel(kernel) == "tensor"
        if own:  # a library's own all-reduce says nothing of itself, and serves this one group
            group, op = tensor_group(summary, default), "all_reduce" if op == "reduce" else op
        if args is None and not own and (others_known or (calls_known and _sends_in_kernel(kernel))):
            if not summary.on_gpu:
                why_unknown = NO_CALL
            else:
                why_unknown = NO_METADATA if summary.program.host[position] > NEVER else BEFORE_WINDOW
            yield position, why_unknown
        elif _is_point_to_point(op):
            yield position, send_receive.NO_END
        elif group is None:
            yield position, NO_GROUP
        elif (number := groups.number(group)) is None:
            yield position, send_receive.NO_TRACE
        else:
            yield position, (number, (args.group_description if args else None) or "", op)


class _Groups:
    """Numbers for groups. They may have a thousand ranks: each tuple is hashed once, not at every event of it."""

    def __init__(self, present: Collection[int]) -> None:
        self.ranks: list[tuple[int, ...]] = []
        self._present = frozenset(present)
        self._number: dict[tuple[int, ...], int | None] = {}
        self._seen: dict[int, tuple[tuple[int, ...], int | None]] = {}  # by identity; holds them, so ids last

    def number(self, group: tuple[int, ...]) -> int | None:
        """The group's place in `ranks`, the same for equal groups; None where a member has no trace."""
        if (seen := self._seen.get(id(group))) is None:
            if group not in self._number:
                whole = self._present.issuperset(group)
                self._number[group] = len(self.ranks) if whole else None
                self.ranks += [group] if whole else []
            seen = self._seen[id(group)] = group, self._number[group]
        return seen[1]


Waits = dict[int, tuple[Int, Int, Int]]


def waits_by_rank(matching: MatchedCollectives, ranks: Sequence[RankSummary]) -> Waits:
    """Per rank its matched events: start, end of waiting and end (ns), in any order."""
    positions: dict[int, list[int]] = {summary.rank: [] for summary in ranks}
    waits: dict[int, list[int]] = {summary.rank: [] for summary in ranks}
    for collective in matching.collectives:
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            positions[rank].append(position)
            waits[rank].append(wait)
    found = {}
    for summary in ranks:
        at = np.array(positions[summary.rank], dtype=np.int64)
        start = summary.comm.start[at]
        turn = start + np.array(waits[summary.rank], dtype=np.int64)
        found[summary.rank] = start, turn, summary.comm.end[at]
    return found


def _collective(
    key: tuple[tuple[int, ...], str, str],
    members: tuple[send_receive.Event, ...],
    args: CommArgs | None,
    durations: list[int],
) -> Collective:
    """key: group, description and operation."""
    transfer = min(durations)
    known = [n for n in (args.elements_in, args.elements_out) if n is not None] if args is not None else []
    return Collective(
        *key,
        elements=max(known, default=None),  # nccl-tests counts the larger side of gather and scatter
        dtype=args.dtype if args is not None else None,
        members=members,
        transfer_ns=transfer,
        wait_ns=tuple(duration - transfer for duration in durations),
    )


def _exchanged(exchange: send_receive.Exchange, durations: list[int]) -> Collective:
    """Sends and receives as one operation of all whose events they tie together."""
    first, transfer = exchange.messages[0], exchange.transfer_ns
    return Collective(
        group=tuple(rank for rank, _ in exchange.events),
        description=first.send.description,
        op=SEND_RECEIVE if len(exchange.messages) == 1 else GROUPED_SEND_RECEIVE,
        elements=exchange.elements,
        dtype=first.send.dtype or first.receive.dtype,
        members=exchange.events,
        transfer_ns=transfer,
        wait_ns=tuple(duration - transfer for duration in durations),
        links=exchange.links,
    )


def _operation(args: CommArgs | None, kernel: str) -> str:
    if args is not None:
        return args.op.strip("_").lower()
    match = _OP_IN_KERNEL.search(kernel)
    return match.group(1).lower() if match else kernel


@lru_cache(maxsize=4096)
def _sends_in_kernel(name: str) -> bool:
    return _SENDS_IN_KERNEL.search(name) is not None


@lru_cache
def _is_point_to_point(op: str) -> bool:
    return _POINT_TO_POINT.search(op) is not None


def _uneven_by_design(op: str) -> bool:
    return "to_all" in op or "alltoall" in op or op.endswith("v")
