"""Operations that all members came to and that do not end, and the way that NCCL takes between their ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.rank_text import ranks_text, who
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Path as DevicePath
from traceops.fabric.model import Quote
from traceops.fabric.talks import Talk, job_ranks, members, ranks_in, talks
from traceops.hangs.model import Root, RootFacts, RootKind
from traceops.hangs.positions import Call, Positions, ProcessGroup, RankPosition, shape_text
from traceops.hangs.roots import GPU, NETWORK, about, all_known, how_sure
from traceops.hangs.waits import Waits, counterpart, is_beyond, launch


class JoinedOperation(Struct, frozen=True):
    """A collective or a pair of send and receive that all whom it needs have come to, by rank."""

    group: ProcessGroup
    sequence: int
    calls: tuple[Call, ...]


def stuck_together(
    ranks: Positions, waits: Waits, explained: Collection[int], unseen: Collection[int] = ()
) -> list[Root]:
    """Operations that all members came to and that do not end: one rank's GPU, or the network. unseen: ranks without a
    record; where logs alone tell of an operation, one of them may not have come to it."""
    return [
        _stuck(operation, explained, ranks, waits)
        for operation in _joined_operations(ranks, waits)
        if any(call.rank not in explained for call in operation.calls)
        and not (_is_of_logs(operation, ranks) and (unseen or len(operation.calls) == len(ranks) == 1))
    ]


def _stuck(operation: JoinedOperation, explained: Collection[int], ranks: Positions, waits: Waits) -> Root:
    calls = operation.calls
    finished = _finished_elsewhere(operation, ranks, waits)
    started = [call.rank for call in calls if call.op.state == "started"]
    scheduled = [call for call in calls if call.op.state == "scheduled" and not _starts_unknown(ranks[call.rank])]
    if any(ranks[call.rank].record.backend == "gloo" for call in calls):  # no GPU is in it
        return _network(operation, ranks, waits, finished)
    if operation.group.ranks is not None and len(operation.group.ranks) == 1:  # that needs no network
        call = calls[0]
        return Root(
            **about(call),
            rule=GPU,
            kind=RootKind.GPU_ALONE,
            ranks=(call.rank,),
            confidence="high" if all_known(call.group, ranks) else "medium",
            facts=RootFacts(shape=shape_text(call.op)),
            waiting=waits.waiting_for([call.rank]),
            cause="gpu",
            evidence=((f"state on rank {call.rank}", call.op.state),),
        )
    if finished and len(finished) >= len(calls):
        here = [call for call in calls if call.rank not in explained]
        return _gpu(operation, here, finished, "finished", ranks, waits)
    if started and scheduled:
        return _gpu(operation, scheduled, started, "started", ranks, waits)
    return _network(operation, ranks, waits, finished)


def _is_of_logs(operation: JoinedOperation, ranks: Positions) -> bool:
    """Whether only logs tell of the operation, and nothing of who else is in its group."""
    of_log = all(ranks[call.rank].record.source == "log" for call in operation.calls)
    return of_log and operation.group.ranks is None


def _starts_unknown(position: RankPosition) -> bool:
    """Whether this rank, unlike others, recorded no starts: what it finished has none either."""
    record = position.record
    return not record.timed and any(op.state == "completed" for op in record.operations)


def _joined_operations(ranks: Positions, waits: Waits) -> list[JoinedOperation]:
    """What ranks that wait for nobody are in, by operation."""
    by_key: dict[tuple[ProcessGroup, int, bool], list[Call]] = defaultdict(list)
    for rank, position in ranks.items():
        if position.head is not None and not waits.by_rank.get(rank) and rank not in waits.unknown:
            call = position.head
            by_key[call.group, call.op.sequence if not call.op.is_p2p else -1, call.op.is_p2p].append(call)
    joined = []
    for (group, sequence, is_p2p), calls in by_key.items():
        if not is_p2p:
            joined.append(JoinedOperation(group, sequence, tuple(calls)))
        else:
            joined += [JoinedOperation(group, heads[0].op.sequence, heads) for heads in _exchanges(calls, ranks)]
    return joined


def _exchanges(heads: Sequence[Call], ranks: Positions) -> list[tuple[Call, ...]]:
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


def _finished_elsewhere(operation: JoinedOperation, ranks: Positions, waits: Waits) -> list[int]:
    """Members that are through with an operation in which these are not. Where a member's count is not known, it is
    through if it waits for these in something later, or finished that."""
    first = operation.calls[0]
    here = {call.rank for call in operation.calls}
    if first.op.is_p2p:
        peers = {call.op.peer for head in operation.calls for call in launch(ranks[head.rank])}
        return sorted(peer for peer in peers if peer is not None and peer in ranks and peer not in here)
    behind = set(waits.waiting_for(here))

    def is_through(rank: int) -> bool:
        if ranks[rank].finished(*first.key):
            return True
        later = rank in behind or any(is_beyond(ranks[rank], ranks[own]) for own in here)
        return later and ranks[rank].entered(*first.key) is None

    others = [rank for rank in operation.group.ranks or ranks if rank in ranks and rank not in here]
    return [rank for rank in others if is_through(rank)]


def _gpu(
    operation: JoinedOperation,
    stuck: Sequence[Call],
    others: Sequence[int],
    did: Literal["finished", "started"],
    ranks: Positions,
    waits: Waits,
) -> Root:
    members = tuple(sorted(call.rank for call in stuck))
    held = {*members, *(others if did == "started" else ())}
    counted = tuple(rank for rank in others if did == "finished" and stuck[0].group in ranks[rank].counted)
    return Root(
        **about(stuck[0]),
        rule=GPU,
        kind=RootKind.GPU_UNFINISHED if did == "finished" else RootKind.GPU_UNSTARTED,
        ranks=members,
        confidence="low" if counted else how_sure(operation.group, ranks),
        facts=RootFacts(shape=shape_text(stuck[0].op), others=tuple(others), counted=counted),
        waiting=tuple(sorted({*held, *waits.waiting_for(held)} - set(members))),
        cause="gpu",
        evidence=(
            (f"{did} on", ranks_text(sorted(others), 16)),
            (f"state on {who(members)}", stuck[0].op.state),
            (_PENDING_AFTER, str(len(ranks[members[0]].pending) - 1)),
        ),
    )


def _network(operation: JoinedOperation, ranks: Positions, waits: Waits, finished: Sequence[int]) -> Root:
    first = operation.calls[0]
    members = tuple(sorted(call.rank for call in operation.calls))
    states = {call.op.state for call in operation.calls}
    records = [ranks[rank].record for rank in members]
    nameless = any(call.op.is_p2p and call.op.peer is None for call in operation.calls)
    sure = states == {"started"} and operation.group.ranks is not None and not nameless
    known = operation.group.ranks is not None and all(record.source != "log" for record in records)
    starts: Literal["started", "gloo", "not_started", "not_recorded"]
    if states == {"started"}:
        starts = "started"
    elif any(record.backend == "gloo" for record in records):
        starts = "gloo"
    else:
        starts = "not_started" if all(record.timed for record in records) else "not_recorded"
    facts = RootFacts(
        shape=shape_text(first.op),
        here=members,
        finished=tuple(finished),
        several=_MEMBERS[min(len(members), 3)] if known and not first.op.is_p2p else None,
        starts=starts,
        unknown_members=not known,
    )
    return Root(
        **about(first),
        rule=NETWORK,
        kind=RootKind.NONE_FINISHED,
        ranks=members,
        confidence="low" if not sure else "high" if all_known(operation.group, ranks) else "medium",
        facts=facts,
        waiting=waits.waiting_for(members),
        cause="network" if states == {"started"} else None,
        evidence=(("members", ranks_text(members, 16)), ("state", ", ".join(sorted(states)))),
    )


# The causes that this gives, by which the rule has its advice.
P2P, WAY_KNOWN, GLOO = "p2p", "way_known", "gloo"
_CAME_BEFORE, _PENDING_AFTER = "came over it before", "operations pending behind it"  # names of proofs
_MEMBERS: Mapping[int, Literal["one", "two", "many"]] = {1: "one", 2: "two", 3: "many"}
_LINKS = ("NV", "XGMI", "C2C")  # made for P2P; over PCIe and between processors it is what often breaks
_ACROSS = "SYS"
_INSIDE = ("P2P", "SHM")
_MOST_QUOTES = 2
_EARLY = 32  # a way that carried more operations of the group than these works


def with_way(root: Root, fabric: Fabric | None) -> Root:
    """The root with the way that NCCL's log names between its ranks, if it is a collective that none finished. P2P over
    PCIe that never finishes one of the first collectives is a cause of its own; across sockets, of medium confidence.
    P2P that works is none: so there has to be the hang first, and early. Where ranks also send over a network, nothing
    tells which of the two it is."""
    if root.rule != NETWORK or fabric is None or len(root.ranks) < 2:
        return root
    if not (between := _between(root.ranks, fabric)):
        return root
    proof = [*root.evidence, ("NCCL goes by", ", ".join(sorted({talk.way for talk in between})))]
    proof += _quotes("NCCL", [talk.connection.quote for talk in between])
    if root.sequence is not None and root.sequence > _EARLY:
        proof.append((_CAME_BEFORE, reason("hangs", "earlier_way", last=root.sequence - 1)))
    inside_only = all(talk.connection.transport in _INSIDE for talk in between)
    over_pcie = [
        (talk, path)
        for talk in between
        if talk.connection.transport == "P2P" and (path := talk.path) is not None and path.kind not in _LINKS
    ]
    if not over_pcie or not inside_only or (root.sequence or 0) > _EARLY:
        return replace(root, cause=WAY_KNOWN, evidence=tuple(proof))
    return _by_p2p(root, over_pcie, proof)


def _by_p2p(root: Root, over_pcie: Sequence[tuple[Talk, DevicePath]], proof: Sequence[tuple[str, str]]) -> Root:
    across = [(talk, path) for talk, path in over_pcie if path.kind == _ACROSS]
    shown = across or over_pcie
    talk, path = shown[0]
    one, other = sorted((gpu for gpu in talk.gpus if gpu is not None), key=lambda gpu: gpu.index)
    return replace(
        root,
        cause=P2P,
        confidence="medium" if across and root.confidence == "low" else root.confidence,
        evidence=(*proof, *_quotes("topology", [path.quote for _, path in shown if path.quote is not None])),
    ).with_facts(way=talk.way, between=(one.label, other.label), path=path.kind, across=bool(across))


def over_gloo(root: Root) -> Root:
    """A collective of gloo that none finished: it goes over TCP, whatever NCCL's variables say."""
    return replace(root, cause=GLOO) if root.rule == NETWORK and root.cause is None else root


def _between(ranks: Sequence[int], fabric: Fabric) -> list[Talk]:
    """NCCL's connections with both ends among these ranks of the job."""
    job, wanted = job_ranks(fabric), set(ranks)
    ends = ((talk, ranks_in(job, members(talk))) for talk in talks(fabric))
    return [talk for talk, both in ends if both and wanted.issuperset(both)]


def _quotes(what: str, quotes: Sequence[Quote]) -> list[tuple[str, str]]:
    """Lines of files, equal ones once."""
    told = {quote.text: quote for quote in reversed(quotes)}
    lines = sorted(told.values(), key=lambda quote: (quote.path, quote.line))[:_MOST_QUOTES]
    return [(f"{what}, {Path(quote.path).name}:{quote.line}", " ".join(quote.text.split())) for quote in lines]
