"""What a rank waits for input without the profiler: what its host does besides is no part of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceops.across.run_steps import WholeRun
from traceops.rules.idle_recording import recording_ms
from traceops.rules.idle_time import Idle


def waits_for_input(idle: Sequence[Idle], whole: WholeRun | None) -> list[Idle]:
    """The same ranks, with as much of it as leaves the host its own time in a step without the profiler.

    Where input comes late in every few steps, the others tell what a step takes with input in time.
    """
    return [_with_host(one, whole) for one in idle]


def _with_host(one: Idle, whole: WholeRun | None) -> Idle:
    longer_ms = one.times.step_ms - one.step_ms
    if longer_ms <= 0 or not one.recorded_ms:
        return one
    # Recorded steps are longer because recording takes the host time, and because ranks wait longer for such a host.
    # What that does not explain is input that the recorded steps wait for and others do not.
    by_host = min(recording_ms(one.times), one.times.mean_ms("idle_host")) + one.times.mean_ms("comm_wait")
    most = one.recorded_ms - max(longer_ms - by_host, 0.0)
    if whole is None or whole.in_time_ms is None:
        return replace(one, ms=min(one.ms, max(most, 0.0)))
    late_ms = max(one.step_ms - whole.in_time_ms, 0.0)
    return replace(one, ms=min(one.ms, late_ms), in_time_ms=whole.in_time_ms)
