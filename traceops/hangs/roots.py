"""The ranks at the ends of the wait-for graph, and what kind of hang each is a case of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from traceops.core.findings import Confidence
from traceops.core.rank_text import who, who_first
from traceops.hangs.calls import message_bytes, place, shape_text
from traceops.hangs.model import Root
from traceops.hangs.standing import Call, Group, Standing
from traceops.hangs.waits import NOT_CALLED, NOT_SEEN, Waits, cycles

HOST, MISMATCH, GPU, DIED, START, NETWORK = (
    "TO-H001", "TO-H002", "TO-H003", "TO-H004", "TO-H005", "TO-H006",
)  # fmt: skip


def not_called(
    ranks: Mapping[int, Standing],
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
        standing, head = ranks.get(wait.on), ranks[wait.rank].head
        elsewhere = standing is not None and standing.head is None and wait.on not in explained
        if elsewhere and head is not None and wait.why in (NOT_CALLED, NOT_SEEN):
            wanted[wait.on].append(head)
            sure |= {wait.on} if wait.why == NOT_CALLED else set()
    alike: dict[tuple[Group, int, str], list[int]] = defaultdict(list)
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
                    message=f"{who_first(members)} {'never' if sure >= set(members) else 'perhaps never'} called "
                    f"{call_text(call, 'which the others call')}; "
                    f"{they_wait(waiting)} for it."
                    + (
                        f" {who_first(hidden)} may wait in a send or receive: gloo records none."
                        if hidden
                        else ""
                    ),
                    waiting=waiting,
                    cause="host",
                    evidence=tuple(
                        (
                            f"last collective of {group.label} on rank {rank}",
                            str(ranks[rank].enqueued.get(group)),
                        )
                        for rank in sorted(members)[:8]
                        if not call.op.is_p2p and ranks[rank].enqueued.get(group) is not None
                    ),
                ),
            )
        )
    return roots


def how_sure(group: Group, ranks: Mapping[int, Standing]) -> Confidence:
    """Where nothing tells a group's members, one name may stand for several groups."""
    return "low" if group.ranks is None else "high" if all_known(group, ranks) else "medium"


def circles(
    ranks: Mapping[int, Standing], waits: Waits, explained: Collection[int], away: Collection[int]
) -> list[Root]:
    """Ranks that wait for each other: they called the same operations in a different order.

    away: ranks whose stack shows their host elsewhere: those will not make their next call, and are the root.
    """
    roots = []
    for members in cycles(waits.by_rank):
        if set(members) & set(explained):
            continue
        heads = [(rank, head) for rank in members if (head := ranks[rank].head) is not None]
        inside = [wait for wait in waits.edges if wait.rank in members and wait.on in members]
        told = "; ".join(f"rank {rank} is in {call_text(head)}" for rank, head in heads[:6])
        culprits = tuple(rank for rank in members if rank in away)
        if culprits and len(culprits) < len(members):
            rule, named, why = HOST, culprits, f"{who_first(culprits)} will not make the next call"
        else:
            rule, named, why = (
                MISMATCH,
                members,
                "They call these operations in different orders, or one of them leaves a call out",
            )
        roots.append(
            about(
                heads[0][1],
                Root(
                    rule=rule,
                    ranks=named,
                    confidence="low" if any(wait.why == NOT_SEEN for wait in inside) else "medium",
                    message=f"{who_first(members)} wait for each other: {told}"
                    f"{'; …' if len(heads) > 6 else ''}. {why}.",
                    waiting=waits.waiting_for(named),
                    cause="host" if rule == HOST else None,
                    evidence=tuple(
                        (
                            f"rank {wait.rank} waits for rank {wait.on}",
                            f"{wait.op} #{wait.sequence} of {wait.group}",
                        )
                        for wait in inside[:12]
                    ),
                ),
            )
        )
    return roots


def all_known(group: Group, ranks: Mapping[int, Standing]) -> bool:
    """Whether every member has a flight recorder's dump."""
    return group.ranks is not None and recorded(group.ranks, ranks)


def recorded(members: Sequence[int], ranks: Mapping[int, Standing]) -> bool:
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
        where=place(call.op.frames),
    )


def call_text(call: Call, by: str = "called") -> str:
    """'all_reduce #64 of default_pg (1048576 Float, called in step (train.py:128))'."""
    where = place(call.op.frames)
    details = [text for text in (shape_text(call.op), None if where is None else f"{by} in {where}") if text]
    number = f"{call.op.op} #{call.op.sequence} of {call.group.label}"
    return f"{number} ({', '.join(details)})" if details else number


def they_wait(waiting: Sequence[int]) -> str:
    """'ranks 0–2 wait'."""
    if not waiting:
        return "nobody else waits"
    return f"{who(waiting)} wait{'s' if len(waiting) == 1 else ''}"
