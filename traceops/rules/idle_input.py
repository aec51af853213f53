"""What a rank waits for input without the profiler, where input comes late in every few steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceops.across.cross_rank import RankTimes
from traceops.across.run_steps import WholeRun
from traceops.rules.idle_time import Idle, room_ms

_LEAST_LOOKS = 20  # at a host that waits for input


def seen_waiting_ms(times: RankTimes, whole: WholeRun | None) -> float:
    """What looks at the host see it wait for input in a typical step that is not recorded, the device idle meanwhile.

    Recording makes the host late for its loader, and what the workers do meanwhile it need not wait for. Of the time
    in the loader the device is idle for the part that is recorded. 0 where it was seen there too seldom.
    """
    if whole is None:
        return 0.0
    loading = [one for one in whole.host.get(times.summary.rank, ()) if one.does == "input"]
    took = times.summary.host.input_ms / max(len(times.duration), 1)
    if not took or sum(one.looks for one in loading) < _LEAST_LOOKS:
        return 0.0
    return sum(one.ms for one in loading) * min(times.mean_ms("idle_input") / took, 1.0)


def waits_for_input(idle: Sequence[Idle], whole: WholeRun | None) -> list[Idle]:
    """The same ranks, with no more of it than the steps leave in which input is in time.

    These tell what a step takes then, and its host with it: what a few recorded steps show leaves the device's time.
    Where there are none, and looks at the host see it wait longer than the recorded steps do, that is what it waits.
    """
    if whole is None or whole.in_time_ms is None:
        return [_by_looks(one) for one in idle]
    return [_beyond(one, whole.in_time_ms) for one in idle]


def _by_looks(one: Idle) -> Idle:
    seen = min(one.seen_ms, room_ms(one.times, one.step_ms)) if one.seen_ms else 0.0
    return replace(one, ms=seen, by_looks=True) if seen > one.recorded_ms else one


def _beyond(one: Idle, in_time_ms: float) -> Idle:
    late_ms = max(one.step_ms - in_time_ms, 0.0)
    return replace(one, ms=late_ms, in_time_ms=in_time_ms) if late_ms < one.ms else one
