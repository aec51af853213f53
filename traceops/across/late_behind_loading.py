"""A rank whose device is late, which nobody waits for because data loading takes as long on all."""

from __future__ import annotations

from traceops.across.lateness import Lateness
from traceops.across.replay.what_if import LOADING, Replays
from traceops.across.stragglers import Straggler, straggler

_MATTERS = 0.02  # of the step: what loading in time must save to hide anything
_OF_DEVICE = ("gpu_compute", "copy")  # the profiler slows hosts, so that one of them always comes last


def late_behind_loading(replays: Replays, lateness: Lateness) -> Straggler | None:
    """Who would be waited for most with batches in time, if its device is the cause; times are of such steps."""
    base, in_time = replays.base.step_ns(), Replays(replays.graph, replays.typical, without=LOADING)
    if float((base - in_time.base.step_ns()).mean()) < _MATTERS * float(base.mean()):
        return None
    blamed = {rank: ns for rank, ns in in_time.base.waited_for.items() if in_time.graph.peers(rank)}
    worst = max(blamed, key=lambda rank: (blamed[rank], -rank), default=None)
    if worst is None:
        return None
    late = straggler(in_time, lateness, worst, [worst])
    return late if late.cause in _OF_DEVICE else None
