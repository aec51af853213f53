"""On what the host spends the steps before an early window, and no later ones: a warm-up, a finder, a first report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceops.across.early_window import EarlyWindow
from traceops.across.run_steps import WholeRun
from traceops.measure.host_places import CodePlace, host_times
from traceops.traces.observed import Observed

_MOST_OF = 0.5  # of what these steps take longer
_LATER = 0.1  # of what it spends there: with more of it in later steps they do the same, only faster
_LOOKS = 5  # there
_ALIKE, _FAR = 0.75, 1.25  # so many of these steps take about as long as they do in the median


@dataclass(frozen=True)
class EarlyPlace:
    """ms: a step, on this rank, beyond what it spends there in typical steps."""

    rank: int
    place: CodePlace
    ms: float


def early_place(run: WholeRun, observed: Sequence[Observed], early: EarlyWindow, begin: int) -> EarlyPlace | None:
    """begin: the first recorded step.

    None where those before are no longer, differ among themselves, or nothing was seen in most of that.
    """
    longer = early.near_ms - early.later_ms
    took = run.step_ms[run.timed & (run.numbers < begin)] / early.near_ms
    if longer <= 0 or float(((took <= _FAR) & (took >= 1 / _FAR)).mean()) < _ALIKE:
        return None
    best = None
    for one in observed:
        numbers = np.arange(one.first, one.first + len(one.steps))
        usual = {own.key: own.ms for own in run.host.get(one.rank, ()) if not own.waits}
        for own in host_times(one, (numbers > 0) & (numbers < begin), early.near_ms):
            later_ms = usual.get(own.key, 0.0)
            ms = own.ms - later_ms
            if own.waits or own.looks < _LOOKS or ms < _MOST_OF * longer or later_ms > _LATER * own.ms:
                continue
            if best is None or ms > best.ms:
                best = EarlyPlace(one.rank, own.place, ms)
    return best
