"""Matches collectives across ranks and splits their time into waiting and transfer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from traceops.across.pair import pair
from traceops.core.arrays import Int
from traceops.measure.program import NEVER
from traceops.measure.summary import RankSummary
from traceops.traces.model import CommArgs

_OP_IN_KERNEL = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|send_?recv|barrier|gather|scatter)",
    re.I,
)
_Key = tuple[int, str, str]
_SEND_RECEIVE = "send_recv"
NO_METADATA = "coalesced or grouped, its metadata is missing"
BEFORE_WINDOW = "launched before the window, nothing is known of it"
_ROOTED = re.compile(r"broadcast|^reduce$|^_?reduce_?oop|^gather|^scatter", re.I)
_POINT_TO_POINT = re.compile(r"send|recv", re.I)


@dataclass(frozen=True)
class Collective:
    """One matched collective: per member rank its event and how long it waited there.

    `transfer_ns` is the shortest duration among the members: the last to arrive waits for nobody, so
    its event is transfer only. It needs no common clock.
    """

    group: tuple[int, ...]
    description: str
    op: str
    elements: int | None
    dtype: str | None
    members: tuple[tuple[int, int], ...]  # rank, position in the rank's CommEvents
    transfer_ns: int
    wait_ns: tuple[int, ...]  # in the order of `members`

    @property
    def last_rank(self) -> int | None:
        """The member that arrived last; None for rooted operations, where no member waits for all others."""
        if _ROOTED.search(self.op):
            return None
        return self.members[self.wait_ns.index(min(self.wait_ns))][0]


@dataclass(frozen=True)
class MatchedCollectives:
    """Matched collectives and how many events found no partner, with the reason."""

    collectives: tuple[Collective, ...]
    events: int
    unmatched: dict[str, int]

    @property
    def matched_pct(self) -> float | None:
        """Share that was matched of the events that belong to the window; None without any."""
        inside = self.events - self.unmatched.get(BEFORE_WINDOW, 0)
        if inside <= 0:
            return None
        return round(100.0 * (1.0 - (sum(self.unmatched.values()) + inside - self.events) / inside), 2)


def match_collectives(ranks: Sequence[RankSummary], world: tuple[int, ...]) -> MatchedCollectives:
    """Match by (global ranks of the group, description, operation), and in it by sequence or from the end.

    Point-to-point goes by (source, destination), in order. Windows start at different moments but ranks
    leave a step together, so counting from the end pairs them [docs/metrics.md]. A pair whose sizes differ
    is left out rather than believed.
    """
    by_key: dict[_Key, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    summaries = {summary.rank: summary for summary in ranks}
    groups = _Groups(summaries)
    unmatched: dict[str, int] = defaultdict(int)
    events = 0
    for summary in ranks:
        events += len(summary.comm.start)
        default = _only_group(summary, world)
        others_known = any(args is not None for args in summary.comm.args)
        for position, args in enumerate(summary.comm.args):
            group = (args.group_ranks if args is not None else None) or default
            if (
                args is not None
                and args.group_ranks is None
                and args.group_size not in (None, len(group or ()))
            ):
                group = None  # it says that it was another group than the only one we know
            op = _operation(args, summary.comm.name[position])
            point_to_point = _is_point_to_point(op)
            if point_to_point and args is not None:
                group = _ends_of(summary.rank, args, group)
            if args is None and others_known:
                launched = summary.program.host[position] > NEVER
                unmatched[NO_METADATA if launched else BEFORE_WINDOW] += 1
            elif point_to_point and (group is None or args is None):
                unmatched["point-to-point whose other end is not named"] += 1
            elif group is None:
                unmatched["its process group is not known"] += 1
            elif (number := groups.number(group)) is None:
                unmatched["ranks of its group have no trace"] += 1
            else:
                description = (args.group_description if args else None) or ""
                # A send and its receive are one operation from one rank to another.
                by_key[number, description, _SEND_RECEIVE if point_to_point else op][summary.rank].append(
                    position
                )
    durations = {summary.rank: (summary.comm.end - summary.comm.start).tolist() for summary in ranks}
    collectives: list[Collective] = []
    for (number, description, op), positions in by_key.items():
        group = tuple(sorted(groups.ranks[number]))
        paired = pair(group, positions, summaries)
        unmatched["outside the window of other ranks"] += sum(map(len, positions.values())) - len(
            group
        ) * len(paired)
        for members in paired:
            args_of = [summaries[rank].comm.args[position] for rank, position in members]
            sizes = {(a.elements_in, a.dtype) for a in args_of if a is not None}
            if len(sizes) > 1 and not _uneven_by_design(op):
                unmatched["sizes differ between ranks"] += len(members)
                continue
            spent = [durations[rank][position] for rank, position in members]
            collectives.append(_collective(group, description, op, members, args_of[0], spent))
    unmatched = {reason: count for reason, count in unmatched.items() if count}
    return MatchedCollectives(tuple(collectives), events, unmatched)


class _Groups:
    """Numbers for groups. They may have a thousand ranks: each tuple is hashed once, not at every event of it."""

    def __init__(self, present: Collection[int]) -> None:
        self.ranks: list[tuple[int, ...]] = []
        self._present = frozenset(present)
        self._number: dict[tuple[int, ...], int | None] = {}
        self._seen: dict[int, tuple[tuple[int, ...], int | None]] = {}  # by identity; holds them, so ids last

    def number(self, group: tuple[int, ...]) -> int | None:
        """The group's place in `ranks`, the same for equal groups; None where a member has no trace."""
        seen = self._seen.get(id(group))
        if seen is None:
            if group not in self._number:
                whole = self._present.issuperset(group)
                self._number[group] = len(self.ranks) if whole else None
                self.ranks += [group] if whole else []
            seen = self._seen[id(group)] = group, self._number[group]
        return seen[1]


def _ends_of(rank: int, args: CommArgs, group: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """(source, destination) of a send or receive as global ranks; None where the other end is not named."""
    if group is None or rank not in group:
        return None
    other = args.destination if args.destination is not None else args.source
    if other is None or not 0 <= other < len(group) or group[other] == rank:
        return None
    return (rank, group[other]) if args.destination is not None else (group[other], rank)


def waits_by_rank(
    matching: MatchedCollectives, ranks: Sequence[RankSummary]
) -> dict[int, tuple[Int, Int, Int]]:
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
    group: tuple[int, ...],
    description: str,
    op: str,
    members: tuple[tuple[int, int], ...],
    args: CommArgs | None,
    durations: list[int],
) -> Collective:
    transfer = min(durations)
    elements = None
    if args is not None:
        known = [n for n in (args.elements_in, args.elements_out) if n is not None]
        elements = max(known, default=None)  # nccl-tests counts the larger side of gather and scatter
    return Collective(
        group=group,
        description=description,
        op=op,
        elements=elements,
        dtype=args.dtype if args is not None else None,
        members=members,
        transfer_ns=transfer,
        wait_ns=tuple(duration - transfer for duration in durations),
    )


def _operation(args: CommArgs | None, kernel: str) -> str:
    if args is not None:
        return args.op.strip("_").lower()
    match = _OP_IN_KERNEL.search(kernel)
    return match.group(1).lower() if match else kernel


@lru_cache
def _is_point_to_point(op: str) -> bool:
    return _POINT_TO_POINT.search(op) is not None


def _uneven_by_design(op: str) -> bool:
    return "to_all" in op or "alltoall" in op or op.endswith("v")


def _only_group(summary: RankSummary, world: tuple[int, ...]) -> tuple[int, ...] | None:
    """The group of an event that names none, where there is no choice."""
    groups = {group.ranks for group in summary.meta.groups if len(group.ranks) > 1}
    if len(groups) == 1:
        return next(iter(groups))
    return world if not groups and len(world) > 1 else None
