"""All sends and receives of the ranks, with the other end also where no event names it but a pipeline's order does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from traceops.across.groups import Ranks, group_of, only_group, pipeline_group
from traceops.across.messages import APART_NS, LEAST_SHARE, Half, pair_messages
from traceops.measure.exchanges import BACKWARD, FORWARD
from traceops.measure.summary import RankSummary
from traceops.traces.model import CommArgs


def named_halves(ranks: Sequence[RankSummary], world: Ranks) -> list[Half]:
    """Each send and receive of all ranks; `other` is None where its other end is not named and does not follow."""
    return _named(list(_halves(ranks, world)), {summary.rank: summary for summary in ranks})


def _halves(ranks: Sequence[RankSummary], world: Ranks) -> Iterator[Half]:
    for summary in ranks:
        comm = summary.comm
        default = only_group(summary, world)
        for position, parts in enumerate(comm.parts):
            for args in parts:
                group = group_of(args, default) or pipeline_group(summary)
                sends = "send" in args.op.lower()
                way = int((comm.before if sends else comm.after)[position])
                stage = int(comm.stage[position])
                onward = (-1 if way == BACKWARD else 1) if sends else 0
                yield Half(
                    rank=summary.rank,
                    position=position,
                    sends=sends,
                    other=_other_end(summary.rank, args, group, sends),
                    group=group,
                    description=args.group_description or "",
                    elements=args.elements_in,
                    dtype=args.dtype,
                    step=summary.step_number(position),
                    way=way,
                    to_stage=-1 if stage < 0 else stage + onward,
                    micro_batch=int(comm.micro_batch[position]),
                )


def _other_end(rank: int, args: CommArgs, group: Ranks | None, sends: bool) -> int | None:
    """The other end as a global rank; None where it is not named."""
    if group is None or rank not in group:
        return None
    other = args.destination if sends else args.source
    if other is None:
        others = [member for member in group if member != rank]
        return others[0] if len(others) == 1 else None
    return group[other] if 0 <= other < len(group) and group[other] != rank else None


def _named(halves: list[Half], summaries: Mapping[int, RankSummary]) -> list[Half]:
    """The same with the other ends that follow from the order of a pipeline's stages where no event names them.

    gloo's events name none. Stages that torch's schedules note tell it, or else the group's order, in which forward
    goes to the next rank and backward to the one before. Such ends are believed in steps where each rank's sends are as
    many as the next one's receives, and only if nothing is received before it was sent.
    """
    unnamed = [half for half in halves if half.other is None and half.group is not None]
    if not unnamed:
        return halves
    holders: dict[tuple[Ranks | None, int], set[int]] = defaultdict(set)
    for half in unnamed:
        holders[half.group, half.from_stage if half.sends else half.to_stage].add(half.rank)
    inferred = {id(half): other for half in unnamed if (other := _inferred(half, holders)) is not None}
    balance: Counter[tuple[int | None, int, int]] = Counter()
    broken = {half.step for half in unnamed if id(half) not in inferred}
    for half in unnamed:
        if (other := inferred.get(id(half))) is not None:
            ends = (half.rank, other) if half.sends else (other, half.rank)
            lane = (half.step, *ends)
            balance[lane] += 1 if half.sends else -1
    broken |= {step for (step, *_), more in balance.items() if more}
    known = [
        replace(half, other=inferred[id(half)]) if id(half) in inferred and half.step not in broken else half
        for half in halves
    ]
    return known if _in_order(known, summaries) else halves


def _inferred(half: Half, holders: Mapping[tuple[Ranks | None, int], set[int]]) -> int | None:
    assert half.group is not None
    if half.to_stage >= 0:
        found = holders.get((half.group, half.to_stage if half.sends else half.from_stage), set())
        return next(iter(found)) if len(found) == 1 else None
    if half.way not in (FORWARD, BACKWARD) or half.rank not in half.group:
        return None
    onward = half.sends == (half.way == FORWARD)
    return half.group[(half.group.index(half.rank) + (1 if onward else -1)) % len(half.group)]


def _in_order(halves: Sequence[Half], summaries: Mapping[int, RankSummary]) -> bool:
    """Whether the messages that these ends make were sent before they had been received."""
    lanes: dict[tuple[int, int], tuple[list[Half], list[Half]]] = defaultdict(lambda: ([], []))
    for half in halves:
        if half.other is not None:
            ends = (half.rank, half.other) if half.sends else (half.other, half.rank)
            lanes[ends][0 if half.sends else 1].append(half)
    good = total = 0
    for sent, received in lanes.values():
        for message in pair_messages(sent, received, summaries):
            begun = int(summaries[message.send.rank].comm.start[message.send.position])
            over = int(summaries[message.receive.rank].comm.end[message.receive.position])
            total += 1
            good += begun <= over + APART_NS
    return good >= LEAST_SHARE * total
