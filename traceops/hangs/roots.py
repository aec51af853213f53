"""The ranks at the ends of the wait-for graph, and what kind of hang each is a case of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from traceops.core.findings import Confidence
from traceops.hangs import words
from traceops.hangs.calls import code_place, message_bytes
from traceops.hangs.model import Root
from traceops.hangs.positions import Call, ProcessGroup, RankPosition
from traceops.hangs.waits import Waits, cycles

HOST, MISMATCH, GPU, DIED, START, NETWORK = (
    "TO-H001", "TO-H002", "TO-H003", "TO-H004", "TO-H005", "TO-H006",
)  # fmt: skip


def not_called(
    ranks: Mapping[int, RankPosition],
    waits: Waits,
    explained: Collection[int],
    inside: Collection[int],
    away: Collection[int],
) -> list[Root]:
    """Ranks that wait for nobody and never called what others wait in: their hosts are elsewhere.

    inside: ranks whose stack shows them waiting for others, in something that no record holds: they are no
    root where the stack of another shows its host elsewhere (away).
    """
    wanted: dict[int, list[Call]] = defaultdict(list)
    sure: set[int] = set()
    for wait in waits.edges:
        position, head = ranks.get(wait.on), ranks[wait.rank].head
        elsewhere = position is not None and position.head is None and wait.on not in explained
        if elsewhere and head is not None and wait.reason in ("not_called", "not_recorded"):
            wanted[wait.on].append(head)
            sure |= {wait.on} if wait.reason == "not_called" else set()
    alike: dict[tuple[ProcessGroup, int, str], list[int]] = defaultdict(list)
    for root, calls in wanted.items():
        most, _ = Counter((call.group, call.op.sequence, call.op.op) for call in calls).most_common(1)[0]
        alike[most].append(root)
    roots = []
    for (group, sequence, op), found in alike.items():
        key = (group, sequence, op)
        members = [rank for rank in found if rank not in inside] if set(found) & set(away) else found
        hidden = [rank for rank in members if ranks[rank].record.hides_messages and rank not in away]
        call = next(c for c in wanted[members[0]] if (c.group, c.op.sequence, c.op.op) == key)
        waiting = waits.waiting_for(members)
        roots.append(
            about(
                call,
                Root(
                    rule=HOST,
                    ranks=tuple(sorted(members)),
                    confidence=how_sure(group, ranks) if sure >= set(members) and not hidden else "low",
                    statement=words.never_called(members, call, waiting, sure=sure >= set(members), hidden=hidden),
                    tells_waiting=True,
                    waiting=waiting,
                    cause="host",
                    evidence=tuple(
                        (f"last collective of {group.label} on rank {rank}", str(ranks[rank].enqueued.get(group)))
                        for rank in sorted(members)[:8]
                        if not call.op.is_p2p and ranks[rank].enqueued.get(group) is not None
                    ),
                ),
            )
        )
    return roots


def how_sure(group: ProcessGroup, ranks: Mapping[int, RankPosition]) -> Confidence:
    """Where nothing tells a group's members, one name may stand for several groups."""
    return "low" if group.ranks is None else "high" if all_known(group, ranks) else "medium"


def circles(
    ranks: Mapping[int, RankPosition], waits: Waits, explained: Collection[int], away: Collection[int]
) -> list[Root]:
    """Ranks that wait for each other: they called the same operations in a different order.

    away: ranks whose stack shows their host elsewhere: those will not make their next call, and are the root.
    """
    roots = []
    for members in cycles(waits.by_rank):
        if set(members) & set(explained):
            continue
        heads = [head for rank in members if (head := ranks[rank].head) is not None]
        inside = [wait for wait in waits.edges if wait.rank in members and wait.on in members]
        culprits = tuple(rank for rank in members if rank in away)
        if len(culprits) == len(members):
            culprits = ()
        named = culprits or members
        roots.append(
            about(
                heads[0],
                Root(
                    rule=HOST if culprits else MISMATCH,
                    ranks=named,
                    confidence="low" if any(wait.reason == "not_recorded" for wait in inside) else "medium",
                    statement=words.circle(members, heads, culprits),
                    tells_waiting=True,
                    waiting=waits.waiting_for(named),
                    cause="host" if culprits else None,
                    evidence=tuple(
                        (f"rank {wait.rank} waits for rank {wait.on}", words.waited_operation(wait))
                        for wait in inside[:12]
                    ),
                ),
            )
        )
    return roots


def all_known(group: ProcessGroup, ranks: Mapping[int, RankPosition]) -> bool:
    """Whether every member has a flight recorder's dump."""
    return group.ranks is not None and recorded(group.ranks, ranks)


def recorded(members: Sequence[int], ranks: Mapping[int, RankPosition]) -> bool:
    """Whether all have a flight recorder's dump, which tells more than a log."""
    return all(rank in ranks and ranks[rank].record.source == "flight recorder" for rank in members)


def about(call: Call, root: Root) -> Root:
    """The root with the operation it is about."""
    return replace(
        root,
        group=call.group.label,
        group_ranks=call.group.ranks,
        op=call.op.op,
        sequence=call.op.sequence,
        bytes=message_bytes(call.op),
        where=code_place(call.op.frames),
    )
