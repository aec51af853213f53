"""What each rank's training thread spent in want of a core in the recorded steps, as it told itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceops.core.step_log import CORE_WAIT_NS, RECORDED
from traceops.traces.observed import Observed

CoreWaits = Mapping[int, Mapping[int, int]]  # rank -> step -> ns


def core_waits(observed: Sequence[Observed]) -> CoreWaits:
    """By rank and number of the step; ranks that waited nowhere, or do not tell, are left out."""
    found = {}
    for one in observed:
        recorded = np.flatnonzero(((one.steps["flags"] & RECORDED) > 0) & (one.steps["core_wait"] > 0))
        waited = one.steps["core_wait"].astype(np.int64) * CORE_WAIT_NS
        if len(recorded):
            found[one.rank] = {one.first + int(at): int(waited[at]) for at in recorded}
    return found


def beyond_peers(
    waits: CoreWaits, rank: int, peers: Sequence[int], steps: Sequence[int]
) -> NDArray[np.float64]:
    """What a rank wants for a core in each step beyond its median peer, ns: that part of its lateness is no own."""

    def of(one: int) -> list[int]:
        return [waits.get(one, {}).get(step, 0) for step in steps]

    others = np.median([of(peer) for peer in peers], axis=0) if peers else np.zeros(len(steps))
    more: NDArray[np.float64] = np.maximum(np.array(of(rank), dtype=float) - others, 0.0)
    return more
