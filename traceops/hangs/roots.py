"""The ranks at the ends of the wait-for graph, and what kind of hang each is a case of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from traceops.hangs.calls import by_signature, describe, message_bytes, place, shape_text
from traceops.hangs.model import Root
from traceops.hangs.standing import Call, Group, Standing
from traceops.hangs.waits import NOT_CALLED, NOT_SEEN, Waits, cycles
from traceops.model import Confidence
from traceops.rank_text import who, who_first

HOST, MISMATCH, GPU, DIED, START, NETWORK = (
    "TO-H001", "TO-H002", "TO-H003", "TO-H004", "TO-H005", "TO-H006",
)  # fmt: skip


def mismatches(ranks: Mapping[int, Standing], waits: Waits, steps: Mapping[int, int]) -> list[Root]:
    """Collectives in which ranks wait and that were called differently: the smaller side is the root.

    steps: steps that each rank has finished, as far as known: of sides as large, the one that is not where
    most ranks are.
    """
    seen: set[tuple[Group, int]] = set()
    roots = []
    for standing in ranks.values():
        head = standing.head
        if head is None or head.op.is_p2p or head.key in seen:
            continue
        seen.add(head.key)
        calls = [other.calls[head.key] for other in ranks.values() if head.key in other.calls]
        sides = by_signature(calls)
        if len(sides) > 1:
            roots.append(_mismatch(head, _ordered(sides, steps), ranks, waits))
    return roots


def _ordered(sides: list[list[Call]], steps: Mapping[int, int]) -> list[list[Call]]:
    """The side that is right first; an empty one where that cannot be told."""
    largest = [side for side in sides if len(side) == len(sides[0])]
    if len(largest) == 1:
        return sides
    common = Counter(steps.values()).most_common(2)
    if not common or (len(common) == 2 and common[0][1] == common[1][1]):
        return [[], *sides]
    there = [side for side in largest if any(steps.get(call.rank) == common[0][0] for call in side)]
    if len(there) != 1:
        return [[], *sides]
    return [*there, *(side for side in sides if side not in there)]


def _mismatch(head: Call, sides: list[list[Call]], ranks: Mapping[int, Standing], waits: Waits) -> Root:
    undecided = sides[0] == []  # as many on each side: nothing tells who is wrong
    sides = [side for side in sides if side]
    odd = [call for side in (sides if undecided else sides[1:]) for call in side]
    inside = [call.rank for side in sides for call in side]
    told = "; ".join(
        f"{who([call.rank for call in side])} called {describe(side[0].op)}{_at(side[0])}"
        for side in sides[:4]
    )
    return about(
        odd[0],
        Root(
            rule=MISMATCH,
            ranks=tuple(sorted(call.rank for call in odd)),
            confidence="high"
            if not undecided and _recorded([call.rank for call in odd], ranks)
            else "medium",
            message=f"As #{head.op.sequence} of {head.group.label}, {told}"
            + ("; as many on each side, so nothing tells which call is wrong." if undecided else "."),
            waiting=tuple(sorted({*inside, *waits.waiting_for(inside)} - {call.rank for call in odd})),
            evidence=tuple(
                (f"call of {who([c.rank for c in side])}", describe(side[0].op)) for side in sides[:8]
            ),
        ),
    )


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
                    confidence=_how_sure(all_known(group, ranks), sure >= set(members) and not hidden),
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


def _how_sure(all_recorded: bool, counted: bool) -> Confidence:
    """counted: the records number the collectives of these ranks; else only nothing shows that they called it."""
    return "low" if not counted else "high" if all_recorded else "medium"


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
            rule, named, why = MISMATCH, members, "They call the same operations in a different order"
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
    return group.ranks is not None and _recorded(group.ranks, ranks)


def _recorded(members: Sequence[int], ranks: Mapping[int, Standing]) -> bool:
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


def _at(call: Call) -> str:
    where = place(call.op.frames)
    return "" if where is None else f" in {where}"


def they_wait(waiting: Sequence[int]) -> str:
    """'ranks 0–2 wait'."""
    if not waiting:
        return "nobody else waits"
    return f"{who(waiting)} wait{'s' if len(waiting) == 1 else ''}"
