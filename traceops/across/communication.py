"""What communication costs a run: of its steps, of each call by its size, and of groups slower than their siblings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.across.links import collective_bytes
from traceops.across.match import Collective
from traceops.across.replay.simulate import Scenario, simulate
from traceops.across.roles import of_gradients
from traceops.core.arrays import Floats, median
from traceops.measure.exchanges import BACKWARD, FORWARD


def exposed_pct(run: CrossRank) -> float | None:
    """Percent of the step that is transfer which nothing hides, median over ranks; None where not known."""
    if not run.split:
        return None
    shares = exposed_shares(run)
    return float(median(list(shares.values()))) if shares else None


def exposed_shares(run: CrossRank) -> dict[int, float]:
    """Percent of its steps that each rank spends in transfer which nothing hides; ranks without a step are left out."""
    shares = {times.summary.rank: times.share_pct("comm_transfer") for times in run.ranks}
    return {rank: share for rank, share in shares.items() if share is not None}


_SPAN = 4.0  # the largest calls over the smallest: from here on sizes tell what a byte takes
_LEAST_COUNT = 3  # calls of at most half the largest one's size, and larger ones
_OF_LAYERS = 0.1  # of the calls in forward, and so many in backward: layers make them, and none is of gradients
_FITS = 0.2  # of a call's time: what the median call is off


class CallTimes(Struct, frozen=True):
    """The calls of one operation that reduce gradients in one group; calls, size and ms are a step. fixed_ms: what a
    call takes whatever its size, and ms_per_byte what comes on top; None where sizes or times do not tell the two
    apart."""

    op: str
    calls: float
    size: float
    ms: float
    least_bytes: int
    most_bytes: int
    fixed_ms: float | None
    ms_per_byte: float | None

    @property
    def fewest(self) -> int:
        """Calls that would carry the same bytes if each were as large as the largest one that was seen."""
        return max(math.ceil(self.size / self.most_bytes - 0.01), 1)

    @property
    def in_fewest_ms(self) -> float | None:
        """What they would take, by this run's own calls: nothing is said of larger ones."""
        if self.fixed_ms is None or self.ms_per_byte is None:
            return None
        return min(self.fixed_ms * self.fewest + self.ms_per_byte * self.size, self.ms)

    @property
    def fixed_share(self) -> float | None:
        """The part of their time that each call takes whatever its size, 0 to 1."""
        return None if self.fixed_ms is None else min(self.fixed_ms * self.calls / self.ms, 1.0)


def call_times(run: CrossRank) -> CallTimes | None:
    """Of the operation and group that transfer gradients for longest; None without a call whose size is known."""
    found: dict[tuple[tuple[int, ...], str], list[tuple[int, int]]] = defaultdict(list)
    within: dict[tuple[tuple[int, ...], str], list[int]] = defaultdict(list)
    gradients = {
        times.summary.rank: of_gradients(
            times.summary, run.roles.of_event[times.summary.rank] if run.roles.several else ()
        )
        for times in run.ranks
    }
    phases = {times.summary.rank: times.summary.comm.phase for times in run.ranks}
    for collective in run.matching.collectives:
        size = collective_bytes(collective)
        rank, position = collective.members[0]
        if size and collective.transfer_ns > 0 and rank in gradients and gradients[rank][position]:
            found[collective.group, collective.op].append((size, collective.transfer_ns))
            within[collective.group, collective.op].append(int(phases[rank][position]))
    for key, own in within.items():
        if min(own.count(FORWARD), own.count(BACKWARD)) >= _OF_LAYERS * len(own):
            del found[key]
    if not found:
        return None
    (group, op), calls = max(found.items(), key=lambda entry: sum(ns for _, ns in entry[1]))
    steps = max((len(t.duration) for t in run.ranks if t.summary.rank == group[0]), default=1)
    size, ms = np.array(calls, dtype=np.float64).T
    ms /= 1e6
    fixed, slope = _fit(size, ms) or (None, None)
    return CallTimes(
        op,
        len(calls) / steps,
        float(size.sum()) / steps,
        float(ms.sum()) / steps,
        int(size.min()),
        int(size.max()),
        fixed,
        slope,
    )


def _fit(size: Floats, ms: Floats) -> tuple[float, float] | None:
    """ms of a call of no bytes, and of each byte: the line with the least squares, neither below 0."""
    small = int((2 * size <= size.max()).sum())
    if size.max() < _SPAN * size.min() or min(small, len(size) - small) < _LEAST_COUNT:
        return None
    slope, fixed = (float(value) for value in np.polyfit(size, ms, 1))
    if slope < 0:
        slope, fixed = 0.0, median(ms)
    elif fixed < 0:
        slope, fixed = float((size * ms).sum() / (size * size).sum()), 0.0
    off = float(median(np.abs(fixed + slope * size - ms) / ms))
    return (fixed, slope) if off <= _FITS else None


SLOWER = 2.0  # times as long as in groups of the same kind
_LEAST_CALLS = 3
_LEAST_BYTES = 1_000_000

_Kind = tuple[object, ...]


class SlowSibling(Struct, frozen=True):
    """A group, and the worst of the operations in which it is slow. Times in ns. median and usual: of one transfer,
    here and in its siblings. longer: of all its transfers, a step. saved: what a step gains with them as long as in its
    siblings, None where no replay tells."""

    group: tuple[int, ...]
    median: float
    usual: float
    count: int
    longer: float
    saved: float | None


def slow_siblings(run: CrossRank) -> tuple[SlowSibling, ...] | None:
    """The slow groups, in order of their ranks; None where no two groups can be compared."""
    kinds: dict[_Kind, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for c in run.matching.collectives:
        if (collective_bytes(c) or 0) >= _LEAST_BYTES:
            kinds[_kind(c)][c.group].append(c.transfer_ns)
    slow: dict[tuple[int, ...], dict[_Kind, tuple[float, float, int]]] = defaultdict(dict)
    compared = False
    for kind, groups in kinds.items():
        medians = {g: median(ns) for g, ns in groups.items() if len(ns) >= _LEAST_CALLS}
        for group, middle in medians.items():
            others = [other for g, other in medians.items() if g != group]
            compared |= bool(others)
            usual = median(others) if others else 0.0
            if usual > 0 and middle >= SLOWER * usual:
                slow[group][kind] = (middle, usual, len(groups[group]))
    if not compared:
        return None
    steps = max((len(times.duration) for times in run.ranks), default=1)
    found = []
    for group in sorted(slow):
        middle, usual, count = max(slow[group].values(), key=lambda own: own[0] / own[1])
        longer = sum((own - usual) * count for own, usual, count in slow[group].values()) / max(steps, 1)
        as_siblings = {kind: usual for kind, (_, usual, _) in slow[group].items()}
        found.append(SlowSibling(group, middle, usual, count, longer, _saved(run, group, as_siblings)))
    return tuple(found)


def _kind(c: Collective) -> _Kind:
    return (c.description, c.op, c.elements, c.dtype, len(c.group))


def _saved(run: CrossRank, group: tuple[int, ...], usual: Mapping[_Kind, float]) -> float | None:
    """What a step gains if this group's collectives take as long as those of its siblings, ns."""
    if run.replay is None or not run.replay.what_if.holds:
        return None
    graph, what_if = run.replay.graph, run.replay.what_if
    transfer = graph.transfer.copy()
    for number, index in enumerate(graph.kind):
        c = run.matching.collectives[index]
        if c.group == group and _kind(c) in usual:
            transfer[number] = min(int(transfer[number]), round(usual[_kind(c)]))
    cured = simulate(graph, Scenario(transfer=transfer)).step_ns()
    return max(what_if.mean_ns(what_if.replayed_ns - cured), 0.0)
