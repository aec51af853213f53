"""Puts files with zeros and clocks of their own on one time."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

import numpy as np
from msgspec.structs import replace

from traceops.timeline.reader import TimelineHeader
from traceops.timeline.times import Clock, Placement, Shift

_ORIGIN_NS = 1_000_000
_FAR_NS = 3600 * 10**9  # no clock of a cluster is off by that


def place_files(
    headers: Mapping[int, TimelineHeader], clocks: Mapping[int, Clock]
) -> tuple[dict[int, Placement], tuple[int, ...]]:
    """For each rank its placement; the timeline's zero is the last whole ms before all events.

    Viewers keep times as doubles, which hold a ns only where the numbers are small. The ranks returned besides name
    no zero, which stands at a file's end and may be cut off. They were given that of the others, because they would
    lie far from those otherwise.
    """
    placements = {
        rank: Placement(header.base_ns or 0, _needed(clocks.get(rank), header)) for rank, header in headers.items()
    }
    known = [rank for rank, header in headers.items() if header.base_ns and header.first_ns is not None]
    borrowed = []
    if known:
        usual = median_low([placements[rank].base_ns for rank in known])
        about = median_low([placements[rank].place_one(headers[rank].first_ns or 0) for rank in known])
        for rank, header in headers.items():
            if header.base_ns or header.first_ns is None:
                continue
            apart = abs(placements[rank].place_one(header.first_ns) - about)
            if apart > _FAR_NS and abs(header.first_ns + usual - about) < apart:
                placements[rank] = replace(placements[rank], clock=Shift(usual))
                borrowed.append(rank)
    firsts = [own.place_one(first) for rank, own in placements.items() if (first := headers[rank].first_ns) is not None]
    origin = min(firsts, default=0) // _ORIGIN_NS * _ORIGIN_NS
    return {rank: replace(own, origin_ns=origin) for rank, own in placements.items()}, tuple(borrowed)


def _needed(clock: Clock | None, header: TimelineHeader) -> Clock | None:
    """None for a clock that moves nothing: two moments that stay are enough to know of a line."""
    if clock is None:
        return None
    moments = np.array([0, header.first_ns or 0], dtype=np.int64)
    return None if np.array_equal(clock.correct(moments), moments) else clock
