"""What a rank waits for input without the profiler, where input comes late in every few steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceops.across.run_steps import WholeRun
from traceops.rules.idle_time import Idle


def waits_for_input(idle: Sequence[Idle], whole: WholeRun | None) -> list[Idle]:
    """The same ranks, with no more of it than the steps leave in which input is in time.

    These tell what a step takes then, and its host with it: what a few recorded steps show leaves the device's time.
    """
    if whole is None or whole.in_time_ms is None:
        return list(idle)
    return [_beyond(one, whole.in_time_ms) for one in idle]


def _beyond(one: Idle, in_time_ms: float) -> Idle:
    late_ms = max(one.step_ms - in_time_ms, 0.0)
    return replace(one, ms=late_ms, in_time_ms=in_time_ms) if late_ms < one.ms else one
