"""Who waits for whom: from each rank's first unfinished operation to the members that keep it from finishing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from traceops.hangs.model import Root, Wait, WaitReason
from traceops.hangs.positions import ROOTED, Call, Positions, ProcessGroup, RankPosition, describe

_MOST_ROOTS = 8  # edges drawn from one rank to the ranks of one root


class Waits(Struct, frozen=True):
    """The wait-for graph: `edges`, and `by_rank`, the ranks each rank waits for directly. unknown: ranks that may wait
    for one of which nothing was read."""

    edges: tuple[Wait, ...]
    by_rank: Mapping[int, frozenset[int]]
    unknown: frozenset[int] = frozenset()

    def waiting_for(self, roots: Collection[int]) -> tuple[int, ...]:
        """Ranks that wait for one of `roots`, directly or through others."""
        reached = set(roots)
        grown = True
        while grown:
            new = {rank for rank, on in self.by_rank.items() if rank not in reached and on & reached}
            reached |= new
            grown = bool(new)
        return tuple(sorted(reached - set(roots)))


def find_waits(ranks: Positions, dead: Collection[int] = (), blamed: Collection[int] | None = None) -> Waits:
    """The edges of all ranks that have a record. dead: ranks whose process is known to be gone; a rank without a record
    is waited for where nothing else keeps the operation from finishing, a dead one always. blamed: of ranks without a
    record those whose silence tells something, all if None."""
    edges: list[Wait] = []
    unknown: set[int] = set()
    for wait in (wait for position in ranks.values() for wait in _edges(position, ranks, dead)):
        if blamed is None or wait.reason != "no_record" or wait.on in blamed or wait.on in dead:
            edges.append(wait)
        else:
            unknown.add(wait.rank)
    certain = _graph([wait for wait in edges if wait.reason != "not_recorded"])
    # A member that waits for this very rank in something later is through with what this rank is in.
    edges = [
        wait
        for wait in edges
        if wait.reason != "not_recorded"
        or not (wait.on in certain.waiting_for([wait.rank]) or is_beyond(ranks[wait.on], ranks[wait.rank]))
    ]
    return replace(_graph([*edges, *_of_batches(ranks, _graph(edges).by_rank)]), unknown=frozenset(unknown))


def is_beyond(member: RankPosition, position: RankPosition) -> bool:
    """Whether the member has finished a collective that comes later on this rank than what this one is in."""
    return any(not call.op.is_p2p and member.finished(*call.key) for call in position.pending[1:])


def _of_batches(ranks: Positions, waiting: Mapping[int, frozenset[int]]) -> list[Wait]:
    """Sends and receives launched together end together: whose peer's launch waits for another waits too."""
    launches = {
        rank: launch(position)
        for rank, position in ranks.items()
        if position.head is not None and position.head.op.is_p2p
    }
    found: list[Wait] = []
    held = {rank for rank in waiting if len(launches.get(rank, ())) > 1}
    free = [rank for rank in launches if rank not in waiting]
    grown = True
    while grown:
        new = [
            _wait(call, call.op.peer, "batch")
            for rank in free
            for call in launches[rank]
            if call.op.peer in held and counterpart(call, ranks[rank], ranks[call.op.peer]) is not None
        ]
        found += new
        held = {wait.rank for wait in new if len(launches[wait.rank]) > 1}
        moved = {wait.rank for wait in new}
        free = [rank for rank in free if rank not in moved]
        grown = bool(held)
    return found


def launch(position: RankPosition) -> list[Call]:
    """The sends and receives that the rank launched together with its first unfinished one."""
    head = position.head
    assert head is not None
    return [call for call in position.pending if _launched_together(call, head)]


def with_roots(waits: Waits, roots: Iterable[Root]) -> Waits:
    """The graph with the waiting that only a root explains: for another call, or a GPU that hangs."""
    added = [
        Wait(rank, on, "cause", root.group, root.op, root.sequence)
        for root in roots
        for rank in root.waiting
        if not waits.by_rank.get(rank)
        for on in root.ranks[:_MOST_ROOTS]
    ]
    return replace(_graph([*waits.edges, *added]), unknown=waits.unknown)


def _graph(edges: list[Wait]) -> Waits:
    by_rank: dict[int, set[int]] = defaultdict(set)
    for wait in edges:
        by_rank[wait.rank].add(wait.on)
    return Waits(tuple(edges), {rank: frozenset(on) for rank, on in by_rank.items()})


def _edges(position: RankPosition, ranks: Positions, dead: Collection[int]) -> list[Wait]:
    if (head := position.head) is None:
        return []
    if head.op.is_p2p:
        return [wait for call in launch(position) for wait in _to_peer(call, position, ranks)]
    group, sequence = head.key
    present, absent = [], []
    for member in group.ranks or ranks:
        if member == position.rank:
            continue
        if member not in ranks:
            absent.append(_wait(head, member, "no_record"))
        elif reason := _keeps_waiting(ranks[member], group, sequence):
            present.append(_wait(head, member, reason))
    if present or _came_all(head, ranks):
        return [*present, *(wait for wait in absent if wait.on in dead)]
    return absent


def _came_all(head: Call, ranks: Positions) -> bool:
    """Whether some member says that it has finished it: without a root, that takes the call of every member."""
    if ROOTED.search(head.op.op) is not None:
        return False
    others = (ranks[rank] for rank in head.group.ranks or ranks if rank in ranks and rank != head.rank)
    return any(
        other.finished(*head.key) and (other.record.source != "log" or head.group in other.counted) for other in others
    )


def _keeps_waiting(member: RankPosition, group: ProcessGroup, sequence: int) -> WaitReason | None:
    """Why a member has not come to this collective yet; None if it is there or beyond."""
    if group not in member.enqueued:
        # A dump lists the groups that the rank has used: one of its own that is not there it has not.
        if group.ranks is None:
            return None
        alike = any(other.ranks == group.ranks for other in member.enqueued)
        return "not_called" if member.record.whole and not alike else "not_recorded"
    if not (entered := member.entered(group, sequence)):
        return "not_recorded" if entered is None else "not_called"
    if member.finished(group, sequence):
        return None
    if member.head is None:  # records that contradict each other: entered, not finished, and nothing is pending
        return "not_recorded"
    return None if member.head.key == (group, sequence) and not member.head.op.is_p2p else "earlier"


def _to_peer(head: Call, position: RankPosition, ranks: Positions) -> list[Wait]:
    """A send waits for its receive and a receive for its send."""
    if (peer := head.op.peer) is None:
        return []
    if peer not in ranks:
        return [_wait(head, peer, "no_record")]
    if (other := counterpart(head, position, ranks[peer])) is None:
        finished = has_finished(head, position, ranks[peer])
        return [] if finished else [_wait(head, peer, "not_recorded" if finished is None else "not_called")]
    if (first := ranks[peer].head) is None or other is first or _launched_together(other, first):
        return []
    return [_wait(head, peer, "earlier")]


def counterpart(call: Call, position: RankPosition, peer: RankPosition) -> Call | None:
    """The peer's unfinished other half of a send or receive. Where both records are complete, it is found by counting.
    In a group of two it is found by its number, which both ends count alike. Else it is the n-th unfinished one of that
    direction."""
    opposite = "recv" if call.op.op == "send" else "send"
    theirs = [
        c
        for c in peer.pending
        if c.op.is_p2p and c.group == call.group and c.op.op == opposite and c.op.peer in (position.rank, None)
    ]
    if position.record.whole and peer.record.whole:
        nth = position.sends[call.group, peer.rank, call.op.op].index(call)
        every = peer.sends.get((call.group, position.rank, opposite), ())
        return every[nth] if nth < len(every) and every[nth] in theirs else None
    if len(call.group.ranks or ()) == 2:
        return next((c for c in theirs if c.op.sequence == call.op.sequence), None)
    same_way = (call.group, call.op.op, call.op.peer)
    alike = [c for c in position.pending if c.op.is_p2p and (c.group, c.op.op, c.op.peer) == same_way]
    nth = alike.index(call)
    return theirs[nth] if nth < len(theirs) else None


def has_finished(call: Call, position: RankPosition, peer: RankPosition) -> bool | None:
    """Whether the peer has finished the other half already; None where that cannot be told. Complete records prove it
    by counting; in a group of two both ends count every message alike."""
    opposite = "recv" if call.op.op == "send" else "send"
    if position.record.whole and peer.record.whole:
        own = position.sends.get((call.group, peer.rank, call.op.op), ())
        theirs = peer.sends.get((call.group, position.rank, opposite), ())
        return own.index(call) < len(theirs)
    if len(call.group.ranks or ()) != 2:
        return None
    messages, latest = peer.messages.get(call.group), peer.latest.get(call.group)
    if messages is not None:
        return messages >= call.op.sequence
    mixed = bool(position.enqueued.get(call.group))  # then the peer's last call may be a collective
    return None if mixed or (latest is not None and latest >= call.op.sequence) else False


def _launched_together(one: Call, other: Call) -> bool:
    """Sends and receives of one batch share a number, and finish together."""
    return one.op.is_p2p and other.op.is_p2p and one.group == other.group and one.op.sequence == other.op.sequence


def _wait(head: Call, on: int, reason: WaitReason) -> Wait:
    what = describe(head.op) if head.op.is_p2p else head.op.op
    return Wait(head.rank, on, reason, head.group.label, what, head.op.sequence)


def cycles(by_rank: Mapping[int, frozenset[int]]) -> list[tuple[int, ...]]:
    """Sets of ranks that wait for each other in a circle and for nobody else, each sorted. The strongly connected
    components with more than one rank that no edge leaves."""
    nodes = {*by_rank, *(on for waits in by_rank.values() for on in waits)}
    return sorted(
        tuple(sorted(component))
        for component in _components(nodes, by_rank)
        if len(component) > 1 and component.issuperset(on for rank in component for on in by_rank.get(rank, ()))
    )


def _components(nodes: Iterable[int], edges: Mapping[int, frozenset[int]]) -> list[set[int]]:
    """Strongly connected components, by Tarjan's algorithm without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    result: list[set[int]] = []
    for start in sorted(nodes):
        if start in index:
            continue
        work = [(start, iter(sorted(edges.get(start, ()))))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            if (following := next(rest, None)) is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = set()
                    while node not in component:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.add(member)
                    result.append(component)
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                on_stack.add(following)
                work.append((following, iter(sorted(edges.get(following, ())))))
            elif following in on_stack:
                low[node] = min(low[node], index[following])
    return result
