"""What of a host's lateness may be the profiler's own, where no step was timed without it."""

from __future__ import annotations

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.core.findings import Severity, severity_of
from traceops.rules.idle_time import Idle
from traceops.rules.inputs import Inputs

# Of the host, for each of its events that is recorded. Runs on one host with H200 took 0.5 to 2.8 µs, programs on
# another 1.5 to 12, half of them 4 or more [docs/field.md].
RECORDING_US = 5.0
MAY_BE_ALL = "recording may be all of it"
_WITH_STACK = 3.0  # times the events: two calls of Python are recorded for each of the others


def recorded_events(times: RankTimes) -> float:
    """How many events of this rank's host are recorded in a step, those of Python with them."""
    return times.recorded_events * (_WITH_STACK if times.summary.meta.with_stack else 1.0)


def recording_ms(times: RankTimes) -> float:
    """About what the profiler adds to a step of this rank's host, ms; 0 where the trace has nothing of a host."""
    return recorded_events(times) * RECORDING_US / 1e3 if times.summary.on_gpu else 0.0


def within_lateness_ms(times: RankTimes) -> float:
    """As much of it as the host is late."""
    return min(recording_ms(times), times.mean_ms("idle_host"))


def measured(inputs: Inputs) -> bool:
    """Whether the run itself tells what its steps take without the profiler."""
    told = (inputs.slowdown, inputs.unprofiled_ms, inputs.undisturbed)
    return any(known is not None for known in told)


def severity_beyond(worst: Idle, bounds: tuple[float, float, float]) -> Severity | None:
    """How severe the lateness is that recording does not explain."""
    cost = recording_ms(worst.times)
    left, step = worst.ms - cost, worst.step_ms - cost
    return severity_of(100.0 * left / step, *bounds) if left > 0 else None


def at_cost(times: RankTimes) -> str:
    """'recording 4,803 events takes a host 24.0 ms, at 5 µs each'."""
    return (
        f"recording {recorded_events(times):,.0f} events takes a host {recording_ms(times):.1f} ms, at "
        f"{RECORDING_US:g} µs each"
    )


def may_be_all(run: CrossRank, worst: Idle) -> str:
    """Why the rule is not evaluated."""
    return (
        f"{MAY_BE_ALL}: launches are {worst.ms:.1f} ms late {run.step_words.per}, and {at_cost(worst.times)}"
    )
