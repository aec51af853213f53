"""The ranks at the ends of the wait-for graph, and what kind of hang each is a case of."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from traceops.hangs.calls import by_signature, describe, message_bytes, place, shape_text
from traceops.hangs.model import Root
from traceops.hangs.standing import Call, Group, Standing
from traceops.hangs.waits import NOT_CALLED, NOT_SEEN, Waits, counterpart, cycles
from traceops.rank_text import ranks_text, who, who_first

HOST, MISMATCH, GPU, DIED, START, NETWORK = (
    "TO-H001", "TO-H002", "TO-H003", "TO-H004", "TO-H005", "TO-H006",
)  # fmt: skip


@dataclass(frozen=True)
class Meeting:
    """A collective or a pair of send and receive that all whom it needs have come to, by rank."""

    group: Group
    sequence: int
    calls: tuple[Call, ...]


def mismatches(ranks: Mapping[int, Standing], waits: Waits) -> list[Root]:
    """Collectives in which ranks wait and that were called differently: the smaller side is the root."""
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
            roots.append(_mismatch(head, sides, waits))
    return roots


def _mismatch(head: Call, sides: list[list[Call]], waits: Waits) -> Root:
    largest = [side for side in sides if len(side) == len(sides[0])]
    undecided = len(largest) > 1  # two against two: nothing tells who is wrong
    odd = [call for side in (sides if undecided else sides[1:]) for call in side]
    inside = [call.rank for side in sides for call in side]
    told = "; ".join(
        f"{who([call.rank for call in side])} called {describe(side[0].op)}{_at(side[0])}"
        for side in sides[:4]
    )
    return _about(
        odd[0],
        Root(
            rule=MISMATCH,
            ranks=tuple(sorted(call.rank for call in odd)),
            confidence="medium" if undecided else "high",
            message=f"As #{head.op.sequence} of {head.group.label}, {told}"
            + ("; as many on each side, so nothing tells which call is wrong." if undecided else "."),
            waiting=tuple(sorted({*inside, *waits.waiting_for(inside)} - {call.rank for call in odd})),
            evidence=tuple(
                (f"call of {who([c.rank for c in side])}", describe(side[0].op)) for side in sides[:8]
            ),
        ),
    )


def not_called(ranks: Mapping[int, Standing], waits: Waits, explained: Collection[int]) -> list[Root]:
    """Ranks that wait for nobody and never called what others wait in: their hosts are elsewhere."""
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
    for (group, sequence, op), members in alike.items():
        key = (group, sequence, op)
        call = next(c for c in wanted[members[0]] if (c.group, c.op.sequence, c.op.op) == key)
        waiting = waits.waiting_for(members)
        roots.append(
            _about(
                call,
                Root(
                    rule=HOST,
                    ranks=tuple(sorted(members)),
                    confidence="high" if _all_known(group, ranks) and sure >= set(members) else "medium",
                    message=f"{who_first(members)} never called {_call_text(call, 'which the others call')}; "
                    f"{_wait_verb(waiting)} for it.",
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


def circles(ranks: Mapping[int, Standing], waits: Waits, explained: Collection[int]) -> list[Root]:
    """Ranks that wait for each other: they called the same operations in a different order."""
    roots = []
    for members in cycles(waits.by_rank):
        if set(members) & set(explained):
            continue
        told = "; ".join(
            f"rank {rank} is in {_call_text(head)}"
            for rank in members[:6]
            if (head := ranks[rank].head) is not None
        )
        head = ranks[members[0]].head
        assert head is not None
        roots.append(
            _about(
                head,
                Root(
                    rule=MISMATCH,
                    ranks=members,
                    confidence="medium",
                    message=f"{who_first(members)} wait for each other: {told}"
                    f"{'; …' if len(members) > 6 else ''}. They call the same operations in a different order.",
                    waiting=waits.waiting_for(members),
                    evidence=tuple(
                        (
                            f"rank {wait.rank} waits for rank {wait.on}",
                            f"{wait.op} #{wait.sequence} of {wait.group}",
                        )
                        for wait in waits.edges
                        if wait.rank in members and wait.on in members
                    )[:12],
                ),
            )
        )
    return roots


def stuck_together(ranks: Mapping[int, Standing], waits: Waits, explained: Collection[int]) -> list[Root]:
    """Operations that all members came to and that do not end: one rank's GPU, or the network."""
    roots = []
    for meeting in _meetings(ranks, waits):
        here = [call for call in meeting.calls if call.rank not in explained]
        if not here:
            continue
        finished = _finished_elsewhere(meeting, ranks, waits)
        started = [call for call in meeting.calls if call.op.state == "started"]
        scheduled = [call for call in meeting.calls if call.op.state == "scheduled"]
        if finished and len(finished) >= len(meeting.calls):
            roots.append(_gpu(meeting, here, finished, "finished", ranks, waits))
        elif started and scheduled:
            roots.append(_gpu(meeting, scheduled, [call.rank for call in started], "started", ranks, waits))
        else:
            roots.append(_network(meeting, ranks, waits, bool(started)))
    return roots


def _meetings(ranks: Mapping[int, Standing], waits: Waits) -> list[Meeting]:
    """What ranks that wait for nobody are in, by operation."""
    by_key: dict[tuple[Group, int, bool], list[Call]] = defaultdict(list)
    for rank, standing in ranks.items():
        if standing.head is not None and not waits.by_rank.get(rank):
            call = standing.head
            by_key[call.group, call.op.sequence if not call.op.is_p2p else -1, call.op.is_p2p].append(call)
    meetings = []
    for (group, sequence, is_p2p), calls in by_key.items():
        if not is_p2p:
            meetings.append(Meeting(group, sequence, tuple(calls)))
            continue
        for call in calls:
            peer = ranks.get(call.op.peer) if call.op.peer is not None else None
            other = counterpart(call, ranks[call.rank], peer) if peer is not None else None
            pair = (call, other) if other is not None else (call,)
            if other is None or call.rank < other.rank or other not in calls:
                meetings.append(Meeting(group, call.op.sequence, pair))
    return meetings


def _finished_elsewhere(meeting: Meeting, ranks: Mapping[int, Standing], waits: Waits) -> list[int]:
    """Members that are through with an operation in which these are not.

    Where a member's count is not known, it is through if it waits for these in something later.
    """
    first = meeting.calls[0]
    here = {call.rank for call in meeting.calls}
    if first.op.is_p2p:
        peer = first.op.peer
        return [peer] if peer is not None and peer in ranks and peer not in here else []
    others = [rank for rank in meeting.group.ranks or ranks if rank in ranks and rank not in here]
    unknown = [rank for rank in others if ranks[rank].entered(*first.key) is None]
    beyond = set(unknown) & set(waits.waiting_for(here))
    return [rank for rank in others if ranks[rank].finished(*first.key) or rank in beyond]


def _gpu(
    meeting: Meeting,
    stuck: Sequence[Call],
    others: Sequence[int],
    did: str,
    ranks: Mapping[int, Standing],
    waits: Waits,
) -> Root:
    members = tuple(sorted(call.rank for call in stuck))
    one = len(members) == 1
    waiting = tuple(
        sorted({*waits.waiting_for(members), *(others if did == "started" else ())} - set(members))
    )
    return _about(
        stuck[0],
        Root(
            rule=GPU,
            ranks=members,
            confidence="high" if _all_known(meeting.group, ranks) else "medium",
            message=f"{who_first(members)} called {_call_text(stuck[0])}, but {'its GPU' if one else 'their GPUs'} "
            f"never {'finished it, though' if did == 'finished' else 'got to it, while'} {who(others)} "
            f"{did} it; {_wait_verb(waiting)}.",
            waiting=waiting,
            cause="gpu",
            evidence=(
                (f"{did} on", ranks_text(sorted(others), 16)),
                (f"state on {who(members)}", stuck[0].op.state),
                ("operations pending behind it", str(len(ranks[members[0]].pending) - 1)),
            ),
        ),
    )


def _network(meeting: Meeting, ranks: Mapping[int, Standing], waits: Waits, started: bool) -> Root:
    members = tuple(sorted(call.rank for call in meeting.calls))
    timed = any(ranks[rank].record.timed for rank in members)
    unsure = not started and not timed
    return _about(
        meeting.calls[0],
        Root(
            rule=NETWORK,
            ranks=members,
            confidence="high" if not unsure and _all_known(meeting.group, ranks) else "low",
            message=f"All {len(members)} members called {_call_text(meeting.calls[0])}, and none finished it"
            + (
                ": all run it."
                if started
                else "; starts were not recorded, so a GPU that hangs is not excluded."
            ),
            waiting=waits.waiting_for(members),
            cause="network" if started else None,
            evidence=(("members", ranks_text(members, 16)), ("state", meeting.calls[0].op.state)),
        ),
    )


def _all_known(group: Group, ranks: Mapping[int, Standing]) -> bool:
    return group.ranks is not None and all(
        rank in ranks and ranks[rank].record.source == "flight recorder" for rank in group.ranks
    )


def _about(call: Call, root: Root) -> Root:
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


def _call_text(call: Call, by: str = "called") -> str:
    """'all_reduce #64 of default_pg (1048576 Float, called in step (train.py:128))'."""
    where = place(call.op.frames)
    details = [text for text in (shape_text(call.op), None if where is None else f"{by} in {where}") if text]
    number = f"{call.op.op} #{call.op.sequence} of {call.group.label}"
    return f"{number} ({', '.join(details)})" if details else number


def _at(call: Call) -> str:
    where = place(call.op.frames)
    return "" if where is None else f" in {where}"


def _wait_verb(waiting: Sequence[int]) -> str:
    if not waiting:
        return "nobody else waits"
    return f"{who(waiting)} wait{'s' if len(waiting) == 1 else ''}"
