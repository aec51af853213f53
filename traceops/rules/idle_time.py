"""How long a rank's device is idle for a cause, as far as a step without the profiler leaves room for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.across.undisturbed import Undisturbed
from traceops.measure.ledger import IDLE_BUCKETS

_LEAST_STEPS = 3
_NONE = 0.1  # of the mean: what the median step has where few steps hold it all
_DEVICE_WORK = ("compute", "comm_transfer", "comm_unmatched", "memory")


@dataclass(frozen=True)
class Idle:
    """Idle time of one rank in one bucket, ms a step; `step_ms` is the step that it is a part of.

    `recorded_ms` is what the trace shows, `ms` what of it a step without the profiler has room for. `wait_ms`: in that
    step, for other ranks, where the light window tells.
    """

    times: RankTimes
    ms: float
    step_ms: float
    recorded_ms: float
    light: bool = False  # whether the light window tells how long the device is idle
    wait_ms: float = 0.0
    in_time_ms: float | None = None  # of input that is late in every few steps: the mean of the others
    seen_ms: float = 0.0  # in which looks at the host see it wait for input, see idle_input.seen_waiting_ms
    by_looks: bool = False  # whether these tell how long it is

    @property
    def pct(self) -> float:
        return 100.0 * self.ms / self.step_ms

    @property
    def recorded_pct(self) -> float:
        return 100.0 * self.recorded_ms / self.times.step_ms

    @property
    def bounded(self) -> bool:
        """Whether it is not what the trace shows: the step without the profiler has no room for all of it."""
        return self.light or self.by_looks or self.ms < self.recorded_ms


def idle_of(
    times: RankTimes,
    bucket: str,
    unprofiled_ms: float | None,
    undisturbed: Undisturbed | None,
    host_share: float,
    seen_input_ms: float = 0.0,
) -> Idle:
    """A rank's idle time in a bucket, as far as a step without the profiler leaves room for it.

    The device's own work takes as long without the profiler; the host's does not. Where there is a light window, it
    shows how long the device is idle: no cause of that can take longer. Input is claimed as recorded (TO-I002), so the
    host has no more than what that leaves, or what the looks at the host leave that saw it wait for input in the other
    steps. host_share: of idle time, as recorded. seen_input_ms: see idle_input.seen_waiting_ms.
    """
    for_input = max(times.mean_ms("idle_input"), seen_input_ms)
    recorded, step = times.mean_ms(bucket), times.step_ms
    own = None if undisturbed is None or not times.summary.on_gpu else undisturbed.of(times.summary.rank)
    if undisturbed is not None and own is not None:
        # The host's part of it: a rank that waited in the recorded steps may starve in others, and the other way round.
        most = min(recorded, own.idle_ms)
        if bucket == "idle_host":
            most = min(own.idle_ms * host_share, max(own.idle_ms - for_input, 0.0))
        seen = min(seen_input_ms, own.idle_ms)  # no longer than the device is idle
        return Idle(times, most, undisturbed.step_ms, recorded, light=True, wait_ms=own.wait_ms, seen_ms=seen)
    if not unprofiled_ms or not times.summary.on_gpu or unprofiled_ms >= step:
        return Idle(times, recorded, step, recorded)
    room = room_ms(times, unprofiled_ms)
    if bucket == "idle_host":
        room -= for_input
    return Idle(times, min(recorded, max(room, 0.0)), unprofiled_ms, recorded, seen_ms=seen_input_ms)


def few_steps(times: RankTimes, bucket: str) -> int | None:
    """In how many of the typical steps nearly all of a bucket lies, where those are few; None where they are not.

    A window of a few steps holds one in which the loss is read, or none: how often that comes it does not tell.
    """
    took = times.buckets[bucket][times.typical].astype(np.float64)
    if len(took) < _LEAST_STEPS or not took.any() or np.median(took) > _NONE * took.mean():
        return None
    return int((took > took.mean() / 2).sum())


def work_ms(times: RankTimes) -> float:
    """What the device of this rank works for in a step."""
    return sum(times.mean_ms(own) for own in _DEVICE_WORK)


def room_ms(times: RankTimes, step_ms: float) -> float:
    """What a step of this length leaves beside the device's work."""
    return step_ms - work_ms(times)


def in_time_ms(idle: Sequence[Idle], run: CrossRank, undisturbed: Undisturbed, saved: float) -> float | None:
    """What the undisturbed step gains with all launches in time, ms. saved: what the recorded one gains, by the replay.

    The device's work is left, and what ranks wait for besides their hosts: of the time in which the busiest device
    does not work, the same part as the replay leaves of it in the recorded step. None where that one has no such time.
    """
    room = undisturbed.step_ms - max(one.busy_ms for one in undisturbed.ranks)
    if room <= 0:
        return 0.0  # the busiest device works all the time, whatever hosts do
    recorded = run.step_ms - max(work_ms(times) for times in run.ranks)
    if recorded <= 0:
        return None
    part = min(saved / recorded, 1.0)
    return min(room * part, max(one.ms + one.wait_ms for one in idle))


def host_share(ranks: Sequence[RankTimes]) -> float:
    """What part of all idle time is the host's, as recorded; all of it where nothing is idle."""
    idle = sum(times.mean_ms(bucket) for times in ranks for bucket in IDLE_BUCKETS)
    return sum(times.mean_ms("idle_host") for times in ranks) / idle if idle > 0 else 1.0


def unknown_pct(ranks: Sequence[RankTimes]) -> float:
    """The most that any of these ranks is idle for an unknown cause, percent of its step."""
    return max((times.share_pct("idle_unknown") or 0.0 for times in ranks), default=0.0)
