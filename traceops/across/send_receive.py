"""Which events of different ranks are the same: collectives of one group, and the two ends of a message.

Of messages: which send is received by which receive, and which of their events depend on each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.groups import Ranks, group_of, only_group, pipeline_group
from traceops.core.arrays import Int, median
from traceops.measure.exchanges import BACKWARD, FORWARD
from traceops.measure.steps import NO_STEP
from traceops.measure.summary import RankSummary
from traceops.traces.model import CommArgs

_PAIRED_NS = 50_000  # ends of one collective lie about this close: other pairings are tried where they do not
_IN_RHYTHM_NS = 200_000  # how unlike ends may be that are paired by their rhythm alone
_FAR_BETTER = 0.25  # of the unlikeness as counted: what another shift must reach to be believed
_MOST_SHIFT = 256  # events a window may end before another


def pair(group: Ranks, positions: dict[int, list[int]], summaries: dict[int, RankSummary]) -> list[tuple[Event, ...]]:
    """Members (rank, position) of each collective of one group and operation. They are paired by kineto's sequence
    number where every event has one. Else they are counted from the end of the window, and moved where the rhythm of
    the ends says that a window was cut off before. If ranks recorded different last steps and no rhythm is found, they
    are counted from the end of each common step."""
    sequences = {rank: [_sequence(summaries[rank], at) for at in positions[rank]] for rank in group}
    if all(None not in own and len(set(own)) == len(own) for own in sequences.values()):
        keys: dict[int, list[int | None]] = sequences
    elif len({tuple(map(int, summaries[rank].step_numbers[-1:])) for rank in group}) == 1:
        return _pair_from_end(group, positions, summaries) or []
    elif (in_rhythm := _pair_from_end(group, positions, summaries, only_in_rhythm=True)) is not None:
        return in_rhythm
    else:
        keys = {rank: [_step_of(summaries[rank], at) for at in positions[rank]] for rank in group}
    by_key: dict[int | None, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in group:
        for key, position in zip(keys[rank], positions[rank], strict=True):
            by_key[key][rank].append(position)
    paired = []
    for key, own in by_key.items():
        count = min(len(own[rank]) for rank in group) if key is not None else 0
        paired += [tuple((rank, own[rank][index]) for rank in group) for index in range(-count, 0)]
    return paired


def _shifts(starts: Mapping[int, Int], ends: Mapping[int, Int], *, only_in_rhythm: bool) -> dict[int, int] | None:
    """Rank r's event i from the end is event i + shift from the end of the rank with most events. None where
    `only_in_rhythm` asks for ends that fit and they do not."""
    reference = max(ends, key=lambda rank: (len(ends[rank]), -rank))
    shift = {}
    for rank in ends:
        if not only_in_rhythm and _meet(starts[reference], ends[reference], starts[rank], ends[rank]):
            shift[rank] = 0
            continue
        shift[rank], unlike = _shift(ends[reference], ends[rank], same_end=not only_in_rhythm)
        if only_in_rhythm and unlike > _IN_RHYTHM_NS:
            return None
    return shift


def _pair_from_end(
    group: Ranks, positions: dict[int, list[int]], summaries: dict[int, RankSummary], only_in_rhythm: bool = False
) -> list[tuple[Event, ...]] | None:
    """Counted from the end, after each rank was moved to fit the rank with most events. None where `only_in_rhythm`
    asks for ends that fit and they do not."""
    if not all(positions[rank] for rank in group):
        return None
    ends = {rank: summaries[rank].comm.end[positions[rank]] for rank in group}
    starts = {rank: summaries[rank].comm.start[positions[rank]] for rank in group}
    if (shift := _shifts(starts, ends, only_in_rhythm=only_in_rhythm)) is None:
        return None
    first = max(shift.values())
    last = min(len(ends[rank]) + shift[rank] for rank in group)
    paired = [
        tuple((rank, positions[rank][len(ends[rank]) - 1 - (place - shift[rank])]) for rank in group)
        for place in range(last - 1, first - 1, -1)
    ]
    # Few and even steps fit in several ways: then the steps' numbers have to agree too.
    steps = [{_step_of(summaries[rank], position) for rank, position in members} for members in paired]
    known = [len(own) for own in steps if None not in own]
    agree = 2 * known.count(1) > len(known)
    if only_in_rhythm and not agree:
        return None
    if any(shift.values()) and known and not agree:
        unmoved = min(map(len, ends.values()))
        return [tuple((rank, positions[rank][i]) for rank in group) for i in range(-unmoved, 0)]
    return paired


def _meet(starts: Int, ends: Int, own_starts: Int, own_ends: Int) -> bool:
    """Whether events that are counted from the end run at the same time, each pair, by the clocks as they are. Nobody
    leaves a collective before all have come. Of events that are not the same one, one is over before the other begins;
    on a crowded CPU their ends may lie milliseconds apart, and four of them fit some wrong rhythm by chance."""
    count = min(len(ends), len(own_ends))
    first = slice(len(ends) - count, None), slice(len(own_ends) - count, None)
    return bool(((starts[first[0]] <= own_ends[first[1]]) & (own_starts[first[1]] <= ends[first[0]])).all())


def _shift(reference: Int, own: Int, same_end: bool) -> tuple[int, float]:
    """By how many events `own` ends before the reference, and how unlike their ends then are (ns, mean). All members
    leave a collective together. The ends of equal events differ by the offset of two clocks, always by the same. Where
    windows have the `same_end`, equal counts from the end stand unless another shift fits far better."""
    least = max(3, min(len(reference), len(own)) // 2)

    def unlike(shift: int) -> float:
        a = reference[: len(reference) - shift] if shift >= 0 else reference
        b = own if shift >= 0 else own[: len(own) + shift]
        if (count := min(len(a), len(b))) < least:
            return float("inf")
        apart = a[len(a) - count :] - b[len(b) - count :]
        return float(np.mean(np.abs(apart - median(apart))))

    as_counted = unlike(0)
    if same_end and as_counted <= _PAIRED_NS:
        return 0, as_counted
    found = (as_counted, 0, 0)
    limit = _FAR_BETTER * as_counted if same_end else _IN_RHYTHM_NS  # beyond which no shift is taken
    for shift, at_least in _most_alike_first(reference, own, least):
        if at_least > min(found[0], limit):
            break
        found = min(found, (unlike(shift), abs(shift), shift))
    if same_end and not found[0] < _FAR_BETTER * as_counted:
        return 0, as_counted
    return found[2], found[0]


def _most_alike_first(reference: Int, own: Int, least: int) -> list[tuple[int, float]]:
    """The shifts that leave `least` events, with how unlike the ends are at least. Two events are as far from any
    median as from each other, or farther: so far apart are the pairs of one event and the next, and those of one and
    the event half of all behind it."""
    if min(len(reference), len(own)) < least:
        return []
    low, high = max(least - len(own), -_MOST_SHIFT), min(len(reference) - least, _MOST_SHIFT)
    shifts = np.arange(low, high + 1)
    count = np.minimum(len(reference) - np.maximum(shifts, 0), len(own) + np.minimum(shifts, 0))
    farthest = np.zeros(len(shifts), dtype=np.int64)
    for distance in (1, least // 2):
        first = np.arange(least - distance)
        first = first[first // distance % 2 == 0]
        gaps, own_gaps = (ends[:-distance] - ends[distance:] for ends in (reference[::-1], own[::-1]))
        apart = gaps[np.maximum(shifts, 0)[:, None] + first] - own_gaps[np.maximum(-shifts, 0)[:, None] + first]
        farthest = np.maximum(farthest, np.abs(apart).sum(axis=1))
    at_least = farthest * (1 - 1e-9) / count
    order = at_least.argsort(kind="stable")
    return list(zip(shifts[order].tolist(), at_least[order].tolist(), strict=True))


def _sequence(summary: RankSummary, position: int) -> int | None:
    args = summary.comm.args[position]
    return None if args is None else args.sequence


def _step_of(summary: RankSummary, position: int) -> int | None:
    """The number of the step that launched the event; None outside all, and where some of the step may be missing."""
    if summary.incomplete:
        return None
    broken_off = summary.damage and summary.comm.step[position] == len(summary.step_numbers) - 1
    return None if broken_off else summary.step_number(position)


APART_NS = 5_000_000  # how much two clocks may differ: no message is received before it was sent
LEAST_SHARE = 0.9  # of the messages that have to keep that order where clocks or ends are in doubt

Event = tuple[int, int]  # rank, position in the rank's CommEvents


class Half(Struct, frozen=True):
    """One end of a message: a send or a receive of `rank`, and the rank at the other end where that is known. `way` is
    FORWARD or BACKWARD, `to_stage` the stage that the message goes to; None and -1 where nothing tells."""

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
        # The same where nothing marks steps: counted from the end, moved where the ends' rhythm says so.
        group = (sent[0].rank, received[0].rank)
        waiting: dict[Event, list[Half]] = defaultdict(list)
        for half in (*sent, *received):
            waiting[half.event].append(half)
        positions = {group[0]: [half.position for half in sent], group[1]: [half.position for half in received]}
        pairs = _pair_from_end(group, positions, dict(summaries)) or []
        return [Message(waiting[own].pop(0), waiting[other].pop(0)) for own, other in pairs]
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


# All sends and receives of the ranks, with the other end also where no event names it but a pipeline's order does.


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
    """The same with the other ends that follow from the order of a pipeline's stages where no event names them. gloo's
    events name none. Stages that torch's schedules note tell it, or else the group's order, in which forward goes to
    the next rank and backward to the one before. Such ends are believed in steps where each rank's sends are as many as
    the next one's receives, and only if nothing is received before it was sent."""
    unnamed = [half for half in halves if half.other is None and half.group is not None]
    if not unnamed:
        return halves
    holders: dict[tuple[Ranks | None, int], set[int]] = defaultdict(set)
    for half in unnamed:
        holders[half.group, half.from_stage if half.sends else half.to_stage].add(half.rank)
    inferred = {
        id(half): replace(half, other=other) for half in unnamed if (other := _inferred(half, holders)) is not None
    }
    balance: Counter[tuple[int | None, int | None, int | None]] = Counter()
    for half in inferred.values():
        if half.sends:
            balance[half.step, half.rank, half.other] += 1
        else:
            balance[half.step, half.other, half.rank] -= 1
    broken = {half.step for half in unnamed if id(half) not in inferred}
    broken |= {step for (step, *_), more in balance.items() if more}
    known = [half if half.step in broken else inferred.get(id(half), half) for half in halves]
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


NO_END = "point-to-point whose other end is not named"
NO_TRACE = "ranks of its group have no trace"
NO_PARTNER = "outside the window of other ranks"
OTHER_SIZE = "sizes differ between ranks"


class Exchange(Struct, frozen=True):
    """Events that a chain of messages ties together, at most one a rank, and the messages between them. `transfer_ns`
    is how long they take once all events have begun."""

    events: tuple[Event, ...]
    messages: tuple[Message, ...]
    transfer_ns: int

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Sender and receiver of each message, as positions in `events`."""
        at = {event: i for i, event in enumerate(self.events)}
        return tuple((at[message.send.event], at[message.receive.event]) for message in self.messages)

    @property
    def elements(self) -> int | None:
        """What the busiest event sends or receives, whichever is more; None where a size is not known."""
        moved: Counter[tuple[Event, bool]] = Counter()
        for half in (half for message in self.messages for half in (message.send, message.receive)):
            if half.elements is None:
                return None
            moved[half.event, half.sends] += half.elements
        return max(moved.values(), default=None)


def match_exchanges(ranks: Sequence[RankSummary], world: Ranks) -> tuple[list[Exchange], list[Message], dict[str, int]]:
    """Exchanges of all ranks, the messages that are in none of them, and how many events found no partner, by reason. A
    message goes from one rank to another, in the order in which it was called, step by step."""
    by_rank = {summary.rank: summary for summary in ranks}
    # List each send and receive of all ranks; `other` is None where its other end is not named and does not follow.
    halves = _named(list(_halves(ranks, world)), {summary.rank: summary for summary in ranks})
    reasons: dict[Event, str] = {}
    lanes: dict[tuple[int, int, str], tuple[list[Half], list[Half]]] = defaultdict(lambda: ([], []))
    for half in halves:
        if half.other is None:
            reasons[half.event] = NO_END
        elif half.other not in by_rank:
            reasons[half.event] = NO_TRACE
        else:
            reasons[half.event] = NO_PARTNER
            ends = (half.rank, half.other) if half.sends else (half.other, half.rank)
            lane = (*ends, half.description)
            lanes[lane][0 if half.sends else 1].append(half)
    messages = []
    for sent, received in lanes.values():
        for message in pair_messages(sent, received, by_rank):
            # Both ends speak of as many elements of one type, as far as they say.
            sizes = {message.send.elements, message.receive.elements} - {None}
            kinds = {message.send.dtype, message.receive.dtype} - {None}
            if len(sizes) < 2 and len(kinds) < 2:
                messages.append(message)
            else:
                reasons[message.send.event] = reasons[message.receive.event] = OTHER_SIZE
    found = {half.event for message in messages for half in (message.send, message.receive)}
    exchanges = _exchanges(messages, by_rank)
    inside = {id(message) for exchange in exchanges for message in exchange.messages}
    apart = [message for message in messages if id(message) not in inside]
    return exchanges, apart, dict(Counter(why for event, why in reasons.items() if event not in found))


def _transfers(messages: Sequence[Message], summaries: Mapping[int, RankSummary]) -> list[int]:
    """How long each message takes from when both ends are there, ns: an end that came first lasts that much longer.
    Without a GPU both ends may be there long before they are waited for, which their events last until: then, where the
    clocks of the two ranks agree, until the receive is over."""
    spans = []
    for message in sorted(messages, key=lambda one: -(one.send.position + one.receive.position)):
        ends = [summaries[half.rank].comm for half in (message.send, message.receive)]
        at = (message.send.position, message.receive.position)
        spans.append([int(column[i]) for comm, i in zip(ends, at, strict=True) for column in (comm.start, comm.end)])
    least = [min(sent_until - sent, received - asked) for sent, sent_until, asked, received in spans]
    good: Counter[tuple[int, int]] = Counter()
    every: Counter[tuple[int, int]] = Counter()
    pairs = [(min(m.send.rank, m.receive.rank), max(m.send.rank, m.receive.rank)) for m in messages]
    for pair, (sent, _, _, received) in zip(pairs, spans, strict=True):
        every[pair] += 1
        good[pair] += sent <= received + APART_NS
    for i, (message, pair, (sent, _, asked, received)) in enumerate(zip(messages, pairs, spans, strict=True)):
        on_host = not (summaries[message.send.rank].on_gpu or summaries[message.receive.rank].on_gpu)
        if on_host and good[pair] >= LEAST_SHARE * every[pair]:
            least[i] = min(least[i], max(received - max(sent, asked), 0))
    return least


def _exchanges(messages: Sequence[Message], summaries: Mapping[int, RankSummary]) -> list[Exchange]:
    """Messages whose events are grouped calls belong together, unless that would put two events of a rank in one. A
    grouped call is over with its last message: of a rank's events, it belongs to the latest."""
    root: dict[Event, Event] = {}
    ranks: dict[Event, set[int]] = {}
    kept: list[Message] = []

    def find(event: Event) -> Event:
        while root[event] != event:
            root[event] = event = root[root[event]]
        return event

    for message in sorted(messages, key=lambda one: -(one.send.position + one.receive.position)):
        ends = message.send.event, message.receive.event
        for event in ends:
            if event not in root:
                root[event], ranks[event] = event, {event[0]}
        one, other = find(ends[0]), find(ends[1])
        if one != other:
            if ranks[one] & ranks[other]:
                continue
            root[other] = one
            ranks[one] |= ranks.pop(other)
        kept.append(message)
    together: dict[Event, list[tuple[Message, int]]] = defaultdict(list)
    for message, transfer in zip(kept, _transfers(kept, summaries), strict=True):
        together[find(message.send.event)].append((message, transfer))
    return [
        Exchange(
            tuple(sorted({half.event for m, _ in own for half in (m.send, m.receive)})),
            tuple(m for m, _ in own),
            min(transfer for _, transfer in own),
        )
        for own in together.values()
    ]
