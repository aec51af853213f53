"""One clock for all ranks, from the ends of collectives that every member leaves together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from traceops.across.match import MatchedCollectives
from traceops.core.arrays import Int
from traceops.measure.summary import RankSummary

# All members leave these together; of a broadcast or a reduce the root may leave long before.
_SYNCHRONISES = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.I)
_TOGETHER_NS = 50_000  # both ends of a message are left within this time where neither could go on before
_LEAST_ANCHORS = 3
_LEAST_FOR_DRIFT = 8
_OUT_OF_NOISE = 6.0  # times the residual that a drift moves a clock over the window
_MOST_ANCHORS = 200  # a pair; slopes are taken between all of them
_ONE_CLOCK_NS = 200_000  # ranks of one host whose fits differ by more have other clocks
_NOISE = 4.0  # times what the ends of a collective lie apart: no less is told from noise either
_DRIFT_PPM = 500.0  # no clock of a computer is worse: what looks like more is noise


class ClockFit(Struct, frozen=True):
    """How a rank's clock maps to the common one: t + offset + drift · (t − reference), ns."""

    offset_ns: int = 0
    drift: float = 0.0
    reference_ns: int = 0

    def correct(self, t: Int) -> Int:
        """Moments of the rank's clock (int64 ns) on the common clock."""
        moved: Int = t + self.offset_ns + np.rint(self.drift * (t - self.reference_ns)).astype(np.int64)
        return moved


class ClockAlignment(Struct, frozen=True):
    """A fit a rank, and how far apart the aligned ends of one collective still are (ns).

    `unaligned` are ranks that share no synchronising collective with the others; `anchors` counts
    the collectives used.
    """

    fits: dict[int, ClockFit]
    anchors: int
    residual_p50_ns: float | None
    residual_p95_ns: float | None
    unaligned: tuple[int, ...] = ()


def align_clocks(
    ranks: Sequence[RankSummary], matching: MatchedCollectives, hosts: Mapping[int, str | None] | None = None
) -> ClockAlignment:
    """Fit offset and drift by Theil–Sen on ends of collectives, along a spanning tree over the groups.

    Ranks of one host share its clock: they get the median of their fits, unless their own ends
    contradict that (a trace whose times were shifted), and one without anchors gets another's.
    """
    ends = {summary.rank: summary.comm.end for summary in ranks}
    anchors: dict[int, dict[int, int]] = {rank: {} for rank in ends}
    together = _end_together(ranks, matching)
    used = 0
    for number, collective in enumerate(matching.collectives):
        if _SYNCHRONISES.search(collective.op) or number in together:
            used += 1
            for rank, position in collective.members:
                anchors[rank][number] = int(ends[rank][position])
    fits = _along_tree(anchors)
    fits |= _of_their_hosts(fits, anchors.keys() - fits.keys(), hosts or {})
    unaligned = tuple(sorted(anchors.keys() - fits.keys()))
    fits |= dict.fromkeys(unaligned, ClockFit())
    own = _spreads(fits, anchors)
    fits = _one_a_host(fits, anchors, hosts or {}, own)
    spread = _spreads(fits, anchors)
    if len(own) and np.median(spread) > _ONE_CLOCK_NS:
        spread = own  # late threads, and no clock is at fault: each rank's own fit says whether pairs are right
    return ClockAlignment(
        fits,
        used,
        float(np.percentile(spread, 50)) if len(spread) else None,
        float(np.percentile(spread, 95)) if len(spread) else None,
        unaligned if len(anchors) > 1 else (),
    )


def _end_together(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> set[int]:
    """Sends and receives that both ends leave together: a small message may be sent long before it is received.

    Those of two ranks on GPUs, both ways at once, or else the ones that end latest at the sender.
    """
    ends = {summary.rank: summary.comm.end for summary in ranks if summary.on_gpu}
    apart: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    found = set[int]()
    for number, collective in enumerate(matching.collectives):
        if len(collective.members) != 2 or any(rank not in ends for rank in collective.group):
            continue
        if len(set(collective.links)) == 2:
            found.add(number)
        elif collective.links:
            (sender, sent), (receiver, received) = (collective.members[i] for i in collective.links[0])
            apart[sender, receiver].append((int(ends[sender][sent]) - int(ends[receiver][received]), number))
    for own in apart.values():
        latest = max(later for later, _ in own)
        found |= {number for later, number in own if latest - later <= _TOGETHER_NS}
    return found


def _of_their_hosts(
    fits: Mapping[int, ClockFit], others: Iterable[int], hosts: Mapping[int, str | None]
) -> dict[int, ClockFit]:
    """The fits of ranks that share no anchor with the others, but the host of one that has a fit."""
    by_host = {host: fits[rank] for rank in sorted(fits) if (host := hosts.get(rank)) is not None}
    return {rank: by_host[host] for rank in others if (host := hosts.get(rank)) is not None and host in by_host}


def theil_sen(x: Int, y: Int) -> tuple[float, float]:
    """Slope and the value at median x of the line through the medians [Theil 1950, Sen 1968]."""
    middle = float(np.median(x))
    if len(x) < 2:
        return 0.0, float(np.median(y))
    left, right = np.triu_indices(len(x), 1)
    run = (x[right] - x[left]).astype(float)
    apart = np.abs(run) > 0
    slope = float(np.median((y[right] - y[left])[apart] / run[apart])) if apart.any() else 0.0
    return slope, float(np.median(y - slope * (x - middle)))


def _along_tree(anchors: dict[int, dict[int, int]]) -> dict[int, ClockFit]:
    """Fits of all ranks that can be reached from the one with most anchors, each through its best neighbour."""
    if not anchors:
        return {}
    by_anchor: dict[int, list[int]] = defaultdict(list)
    for rank, own in anchors.items():
        for number in own:
            by_anchor[number].append(rank)
    root = min(anchors, key=lambda rank: (-len(anchors[rank]), rank))
    fits = {root: ClockFit()}
    shared: dict[int, list[tuple[int, float]]] = defaultdict(list)  # rank -> anchors and their common time
    known: dict[int, float] = {}
    newly = [root]
    while True:
        for rank in newly:
            numbers = [number for number in anchors[rank] if number not in known]
            common = fits[rank].correct(np.array([anchors[rank][n] for n in numbers], dtype=np.int64))
            for number, moment in zip(numbers, common, strict=True):
                known[number] = int(moment)
                for other in by_anchor[number]:
                    if other not in fits:
                        shared[other].append((number, int(moment)))
        candidates = [rank for rank in shared if rank not in fits and len(shared[rank]) >= _LEAST_ANCHORS]
        if not candidates:
            return fits
        most = max(len(shared[rank]) for rank in candidates)
        newly = [rank for rank in candidates if len(shared[rank]) == most]
        for rank in newly:
            theirs = np.array([anchors[rank][number] for number, _ in shared[rank]], dtype=np.int64)
            fits[rank] = _fit(theirs, np.array([moment for _, moment in shared[rank]], dtype=np.int64))


def _fit(own: Int, common: Int) -> ClockFit:
    """Offset and drift that take `own` to `common`; drift only where it explains more than it disturbs."""
    if len(own) > _MOST_ANCHORS:
        chosen = np.linspace(0, len(own) - 1, _MOST_ANCHORS).astype(np.int64)
        own, common = own[chosen], common[chosen]
    apart = common - own
    base = int(np.median(apart))
    slope, at_middle = theil_sen(own, apart - base)
    flat = np.abs(apart - base)
    middle = round(float(np.median(own)))
    sloped = np.abs(apart - base - at_middle - slope * (own - middle))
    trusted = len(own) >= _LEAST_FOR_DRIFT and abs(slope) * 1e6 <= _DRIFT_PPM
    moved = abs(slope) * float(np.ptp(own))  # over the window: has to stand out of the noise
    if trusted and np.median(sloped) < 0.5 * np.median(flat) and moved > _OUT_OF_NOISE * np.median(sloped):
        return ClockFit(base + round(at_middle), slope, middle)
    return ClockFit(base, 0.0, middle)


def _one_a_host(
    fits: dict[int, ClockFit],
    anchors: dict[int, dict[int, int]],
    hosts: Mapping[int, Any],
    spread: np.ndarray[Any, Any],
) -> dict[int, ClockFit]:
    """Ranks whose traces came from one clock get its fit: less noise, and kernels keep their order."""
    most = max(_ONE_CLOCK_NS, _NOISE * float(np.median(spread)) if len(spread) else 0.0)
    by_host: dict[Any, list[int]] = defaultdict(list)
    for rank in fits:
        if hosts.get(rank) is not None and anchors[rank]:
            by_host[hosts[rank]].append(rank)
    result = dict(fits)
    for own in by_host.values():
        if len(own) < 2:
            continue
        offsets = np.array([fits[rank].offset_ns for rank in own])
        agree = np.ptp(offsets) < most and all(not fits[rank].drift for rank in own)
        if agree:
            shared = ClockFit(int(np.median(offsets)))
            result |= dict.fromkeys(own, shared)
    return result


def _spreads(fits: dict[int, ClockFit], anchors: dict[int, dict[int, int]]) -> np.ndarray[Any, Any]:
    """Per anchor, last minus first end among its members after alignment, ns."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for rank, own in anchors.items():
        moments = fits[rank].correct(np.fromiter(own.values(), dtype=np.int64, count=len(own)))
        for number, moment in zip(own, moments.tolist(), strict=True):
            first[number] = min(first.get(number, moment), moment)
            last[number] = max(last.get(number, moment), moment)
    return np.array([last[number] - first[number] for number in first], dtype=float)
