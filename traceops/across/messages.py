"""The two ends of messages between ranks, and which send is received by which receive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from traceops.across.groups import Ranks
from traceops.across.pair import in_rhythm
from traceops.measure.exchanges import BACKWARD
from traceops.measure.steps import NO_STEP
from traceops.measure.summary import RankSummary

APART_NS = 5_000_000  # how much two clocks may differ: no message is received before it was sent
LEAST_SHARE = 0.9  # of the messages that have to keep that order where clocks or ends are in doubt

Event = tuple[int, int]  # rank, position in the rank's CommEvents


class Half(Struct, frozen=True):
    """One end of a message: a send or a receive of `rank`, and the rank at the other end where that is known.

    `way` is FORWARD or BACKWARD, `to_stage` the stage that the message goes to; None and -1 where nothing tells.
    """

    rank: int
    position: int
    sends: bool
    other: int | None
    group: Ranks | None
    description: str
    elements: int | None
    dtype: str | None
    step: int | None
    way: int
    to_stage: int
    micro_batch: int

    @property
    def event(self) -> Event:
        """The event that it is a part of."""
        return self.rank, self.position

    @property
    def from_stage(self) -> int:
        """The stage that the message comes from, -1 where nothing tells."""
        return -1 if self.to_stage < 0 else self.to_stage + (1 if self.way == BACKWARD else -1)


class Message(Struct, frozen=True):
    """A send and its receive."""

    send: Half
    receive: Half


def pair_messages(
    sent: Sequence[Half], received: Sequence[Half], summaries: Mapping[int, RankSummary]
) -> list[Message]:
    """Sends and receives of one rank to another in order: of each step, or by stage and micro-batch where noted."""
    if not sent or not received:
        return []
    if all(half.step in (None, NO_STEP) for half in (*sent, *received)):
        return _in_rhythm(sent, received, summaries)
    noted = all(half.to_stage >= 0 for half in (*sent, *received))
    kinds: tuple[dict[tuple[int | None, ...], list[Half]], ...] = defaultdict(list), defaultdict(list)
    for halves, kind in zip((sent, received), kinds, strict=True):
        for half in halves:
            if half.step is not None:
                key: tuple[int | None, ...] = (half.step,)
                if noted:
                    key = (half.step, half.way, half.to_stage, half.micro_batch)
                kind[key].append(half)
    found = []
    for key, own in kinds[0].items():
        theirs = kinds[1].get(key, [])
        if len(own) == len(theirs):
            found += [Message(send, receive) for send, receive in zip(own, theirs, strict=True)]
    return found + _outside(sent, received, summaries)


def _outside(sent: Sequence[Half], received: Sequence[Half], summaries: Mapping[int, RankSummary]) -> list[Message]:
    """Messages of the same two ranks outside all marked steps: counted back from the first mark, on from the last."""
    of_rank = [summaries[halves[0].rank] for halves in (sent, received)]
    one, other = (summary.step_numbers for summary in of_rank)
    if not len(one) or not len(other):
        return []
    found = []
    sides = [
        [half for half in halves if half.step is None and (summary.comm.step[half.position] < 0) == early]
        for early in (True, False)
        for halves, summary in zip((sent, received), of_rank, strict=True)
    ]
    if one[0] == other[0]:
        most = min(len(sides[0]), len(sides[1]))
        found += list(zip(sides[0][len(sides[0]) - most :], sides[1][len(sides[1]) - most :], strict=True))
    if one[-1] == other[-1]:
        found += list(zip(sides[2], sides[3], strict=False))
    return [Message(send, receive) for send, receive in found]


def _in_rhythm(sent: Sequence[Half], received: Sequence[Half], summaries: Mapping[int, RankSummary]) -> list[Message]:
    """The same where nothing marks steps: counted from the end, moved where the ends' rhythm says so."""
    group = (sent[0].rank, received[0].rank)
    waiting: dict[Event, list[Half]] = defaultdict(list)
    for half in (*sent, *received):
        waiting[half.event].append(half)
    positions = {group[0]: [half.position for half in sent], group[1]: [half.position for half in received]}
    pairs = in_rhythm(group, positions, dict(summaries))
    return [Message(waiting[own].pop(0), waiting[other].pop(0)) for own, other in pairs]


def alike(message: Message) -> bool:
    """Whether both ends speak of as many elements of one type, as far as they say."""
    sizes = {half.elements for half in (message.send, message.receive)} - {None}
    kinds = {half.dtype for half in (message.send, message.receive)} - {None}
    return len(sizes) < 2 and len(kinds) < 2
