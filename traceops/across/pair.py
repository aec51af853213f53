"""Which events of the members of one group are the same collective."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from traceops.core.arrays import Int
from traceops.measure.summary import RankSummary

_PAIRED_NS = 50_000  # ends of one collective lie about this close: other pairings are tried where they do not
_IN_RHYTHM_NS = 200_000  # how unlike ends may be that are paired by their rhythm alone
_FAR_BETTER = 0.25  # of the unlikeness as counted: what another shift must reach to be believed
_MOST_SHIFT = 256  # events a window may end before another


def pair(
    group: tuple[int, ...], positions: dict[int, list[int]], summaries: dict[int, RankSummary]
) -> list[tuple[tuple[int, int], ...]]:
    """Members (rank, position) of each collective of one group and operation.

    They are paired by kineto's sequence number where every event has one. Else they are counted from the end of the
    window, and moved where the rhythm of the ends says that a window was cut off before. If ranks recorded different
    last steps and no rhythm is found, they are counted from the end of each common step.
    """
    sequences = {rank: [_sequence(summaries[rank], at) for at in positions[rank]] for rank in group}
    if all(None not in own and len(set(own)) == len(own) for own in sequences.values()):
        keys: dict[int, list[int | None]] = sequences
    elif len({_last_step(summaries[rank]) for rank in group}) == 1:
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


def in_rhythm(
    group: tuple[int, ...], positions: dict[int, list[int]], summaries: dict[int, RankSummary]
) -> list[tuple[tuple[int, int], ...]]:
    """Members of each of a group's events, counted from the end of the window and moved where the rhythm says so."""
    return _pair_from_end(group, positions, summaries) or []


def _pair_from_end(
    group: tuple[int, ...],
    positions: dict[int, list[int]],
    summaries: dict[int, RankSummary],
    only_in_rhythm: bool = False,
) -> list[tuple[tuple[int, int], ...]] | None:
    """Counted from the end, after each rank was moved to fit the rank with most events.

    None where `only_in_rhythm` asks for ends that fit and they do not.
    """
    if any(not positions[rank] for rank in group):
        return None
    ends = {rank: summaries[rank].comm.end[positions[rank]] for rank in group}
    starts = {rank: summaries[rank].comm.start[positions[rank]] for rank in group}
    reference = max(group, key=lambda rank: (len(ends[rank]), -rank))
    # Rank r's event i from the end is the reference's event i + shift from the end.
    same_end = not only_in_rhythm
    found = {
        rank: (0, 0.0)
        if same_end and _meet(starts[reference], ends[reference], starts[rank], ends[rank])
        else _shift(ends[reference], ends[rank], same_end=same_end)
        for rank in group
    }
    shift = {rank: moved for rank, (moved, _) in found.items()}
    if only_in_rhythm and any(unlike > _IN_RHYTHM_NS for _, unlike in found.values()):
        return None
    first = max(shift.values())
    last = min(len(ends[rank]) + shift[rank] for rank in group)
    paired = [
        tuple((rank, positions[rank][len(ends[rank]) - 1 - (place - shift[rank])]) for rank in group)
        for place in range(last - 1, first - 1, -1)
    ]
    # Few and even steps fit in several ways: then the steps' numbers have to agree too.
    steps = [{_step_of(summaries[rank], position) for rank, position in members} for members in paired]
    known = [own for own in steps if None not in own]
    agree = 2 * sum(len(own) == 1 for own in known) > len(known)
    if only_in_rhythm and not agree:
        return None
    if any(shift.values()) and known and not agree:
        unmoved = min(len(own) for own in ends.values())
        return [tuple((rank, positions[rank][i]) for rank in group) for i in range(-unmoved, 0)]
    return paired


def _meet(starts: Int, ends: Int, own_starts: Int, own_ends: Int) -> bool:
    """Whether events that are counted from the end run at the same time, each pair, by the clocks as they are.

    Nobody leaves a collective before all have come. Of events that are not the same one, one is over before the other
    begins; on a crowded CPU their ends may lie milliseconds apart, and four of them fit some wrong rhythm by chance.
    """
    count = min(len(ends), len(own_ends))
    first = slice(len(ends) - count, None), slice(len(own_ends) - count, None)
    return bool(((starts[first[0]] <= own_ends[first[1]]) & (own_starts[first[1]] <= ends[first[0]])).all())


def _shift(reference: Int, own: Int, same_end: bool) -> tuple[int, float]:
    """By how many events `own` ends before the reference, and how unlike their ends then are (ns, mean).

    All members leave a collective together.

    The ends of equal events differ by the offset of two clocks, always by the same. Where windows have the
    `same_end`, equal counts from the end stand unless another shift fits far better.
    """
    least = max(3, min(len(reference), len(own)) // 2)

    def unlike(shift: int) -> float:
        a = reference[: len(reference) - shift] if shift >= 0 else reference
        b = own if shift >= 0 else own[: len(own) + shift]
        count = min(len(a), len(b))
        if count < least:
            return float("inf")
        apart = a[len(a) - count :] - b[len(b) - count :]
        return float(np.mean(np.abs(apart - np.median(apart))))

    as_counted = unlike(0)
    if same_end and as_counted <= _PAIRED_NS:
        return 0, as_counted
    most = min(_MOST_SHIFT, max(len(reference), len(own)))
    best = min(range(-most, most + 1), key=lambda shift: (unlike(shift), abs(shift)))
    if same_end and not unlike(best) < _FAR_BETTER * as_counted:
        return 0, as_counted
    return best, unlike(best)


def _sequence(summary: RankSummary, position: int) -> int | None:
    args = summary.comm.args[position]
    return None if args is None else args.sequence


def _last_step(summary: RankSummary) -> int | None:
    return int(summary.step_numbers[-1]) if len(summary.step_numbers) else None


def _step_of(summary: RankSummary, position: int) -> int | None:
    """The number of the step that launched the event; None outside all, and where some of the step may be missing."""
    if summary.incomplete:
        return None
    broken_off = summary.damage and summary.comm.step[position] == len(summary.step_numbers) - 1
    return None if broken_off else summary.step_number(position)
