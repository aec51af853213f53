"""Operations that all members came to and that do not end: one rank's GPU, or the network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from traceops.core.rank_text import ranks_text, who, who_first
from traceops.hangs.model import Root
from traceops.hangs.roots import GPU, NETWORK, about, all_known, call_text, how_sure, they_wait
from traceops.hangs.standing import Call, Group, Standing
from traceops.hangs.waits import Waits, counterpart, is_beyond, launch


@dataclass(frozen=True)
class Meeting:
    """A collective or a pair of send and receive that all whom it needs have come to, by rank."""

    group: Group
    sequence: int
    calls: tuple[Call, ...]


def stuck_together(ranks: Mapping[int, Standing], waits: Waits, explained: Collection[int]) -> list[Root]:
    """Operations that all members came to and that do not end: one rank's GPU, or the network."""
    roots = []
    for meeting in _meetings(ranks, waits):
        here = [call for call in meeting.calls if call.rank not in explained]
        if not here:
            continue
        finished = _finished_elsewhere(meeting, ranks, waits)
        started = [call for call in meeting.calls if call.op.state == "started"]
        scheduled = [
            call
            for call in meeting.calls
            if call.op.state == "scheduled" and not _starts_unknown(ranks[call.rank])
        ]
        if any(ranks[call.rank].record.backend == "gloo" for call in meeting.calls):
            roots.append(_network(meeting, ranks, waits, finished))  # no GPU is in it
        elif meeting.group.ranks is not None and len(meeting.group.ranks) == 1:
            roots.append(_alone(meeting.calls[0], ranks, waits))
        elif finished and len(finished) >= len(meeting.calls):
            roots.append(_gpu(meeting, here, finished, "finished", ranks, waits))
        elif started and scheduled:
            roots.append(_gpu(meeting, scheduled, [call.rank for call in started], "started", ranks, waits))
        else:
            roots.append(_network(meeting, ranks, waits, finished))
    return roots


def _starts_unknown(standing: Standing) -> bool:
    """Whether this rank, unlike others, recorded no starts: what it finished has none either."""
    record = standing.record
    return not record.timed and any(op.state == "completed" for op in record.operations)


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
        else:
            meetings += [Meeting(group, heads[0].op.sequence, heads) for heads in _exchanges(calls, ranks)]
    return meetings


def _exchanges(heads: Sequence[Call], ranks: Mapping[int, Standing]) -> list[tuple[Call, ...]]:
    """Ranks whose sends and receives meet each other's, directly or through a batch: they end together."""
    by_rank = {call.rank: call for call in heads}
    found: list[tuple[Call, ...]] = []
    while by_rank:
        open_ = [by_rank.pop(min(by_rank))]
        exchange = []
        while open_:
            exchange.append(head := open_.pop())
            for call in launch(ranks[head.rank]):
                peer = call.op.peer
                if peer in by_rank and counterpart(call, ranks[call.rank], ranks[peer]) is not None:
                    open_.append(by_rank.pop(peer))
        found.append(tuple(sorted(exchange, key=lambda call: call.rank)))
    return found


def _finished_elsewhere(meeting: Meeting, ranks: Mapping[int, Standing], waits: Waits) -> list[int]:
    """Members that are through with an operation in which these are not.

    Where a member's count is not known, it is through if it waits for these in something later, or finished that.
    """
    first = meeting.calls[0]
    here = {call.rank for call in meeting.calls}
    if first.op.is_p2p:
        peers = {call.op.peer for head in meeting.calls for call in launch(ranks[head.rank])}
        return sorted(peer for peer in peers if peer is not None and peer in ranks and peer not in here)
    others = [rank for rank in meeting.group.ranks or ranks if rank in ranks and rank not in here]
    unknown = [rank for rank in others if ranks[rank].entered(*first.key) is None]
    behind = set(waits.waiting_for(here))
    beyond = {
        rank for rank in unknown
        if rank in behind or any(is_beyond(ranks[rank], ranks[call.rank]) for call in meeting.calls)
    }  # fmt: skip
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
    held = {*members, *(others if did == "started" else ())}
    waiting = tuple(sorted({*held, *waits.waiting_for(held)} - set(members)))
    return about(
        stuck[0],
        Root(
            rule=GPU,
            ranks=members,
            confidence=how_sure(meeting.group, ranks),
            message=f"{who_first(members)} called {call_text(stuck[0])}, but {'its GPU' if one else 'their GPUs'} "
            f"never {'finished it, though' if did == 'finished' else 'got to it, while'} {who(others)} "
            f"{did} it; {they_wait(waiting)}.",
            waiting=waiting,
            cause="gpu",
            evidence=(
                (f"{did} on", ranks_text(sorted(others), 16)),
                (f"state on {who(members)}", stuck[0].op.state),
                ("operations pending behind it", str(len(ranks[members[0]].pending) - 1)),
            ),
        ),
    )


def _alone(call: Call, ranks: Mapping[int, Standing], waits: Waits) -> Root:
    """A collective of one rank needs no network."""
    waiting = waits.waiting_for([call.rank])
    return about(
        call,
        Root(
            rule=GPU,
            ranks=(call.rank,),
            confidence="high" if all_known(call.group, ranks) else "medium",
            message=f"Rank {call.rank} called {call_text(call)}, in which it is alone, and its GPU never finished "
            f"it; {they_wait(waiting)}.",
            waiting=waiting,
            cause="gpu",
            evidence=((f"state on rank {call.rank}", call.op.state),),
        ),
    )


def _network(meeting: Meeting, ranks: Mapping[int, Standing], waits: Waits, finished: Sequence[int]) -> Root:
    members = tuple(sorted(call.rank for call in meeting.calls))
    states = {call.op.state for call in meeting.calls}
    records = [ranks[rank].record for rank in members]
    nameless = any(call.op.is_p2p and call.op.peer is None for call in meeting.calls)
    sure = states == {"started"} and meeting.group.ranks is not None and not nameless
    if states == {"started"}:
        told = "all run it."
    elif any(record.backend == "gloo" for record in records):
        told = "gloo does not tell who of them it waits for."
    elif all(record.timed for record in records):
        told = "nor has any GPU started it: what is before it on their streams is not excluded."
    else:
        told = "starts were not recorded, so a GPU that hangs is not excluded."
    if meeting.group.ranks is None or any(record.source == "log" for record in records):
        whole = f"{who_first(members)} called"
        told += " Whether others are in the group is not known."
    elif meeting.calls[0].op.is_p2p:
        whole = f"{who_first(members)} called"
    elif finished:
        whole = f"All members called, and {who(finished)} finished,"
    else:
        whole = f"All {len(members)} members called"
    return about(
        meeting.calls[0],
        Root(
            rule=NETWORK,
            ranks=members,
            confidence="low" if not sure else "high" if all_known(meeting.group, ranks) else "medium",
            message=f"{whole} {call_text(meeting.calls[0])}, and "
            f"{'none' if len(members) > 1 else 'it never'} finished it{' on ' + who(members) if finished else ''}"
            f"{':' if states == {'started'} else ';'} {told}",
            waiting=waits.waiting_for(members),
            cause="network" if states == {"started"} else None,
            evidence=(("members", ranks_text(members, 16)), ("state", ", ".join(sorted(states)))),
        ),
    )
