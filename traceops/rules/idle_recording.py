"""What of a host's lateness may be the profiler's own, where no step was timed without it."""

from __future__ import annotations

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.core.findings import Severity, severity_of
from traceops.core.units import ms_text
from traceops.rules.idle_time import Idle
from traceops.rules.inputs import Inputs

MAY_BE_RECORDING = "recording may be"  # all of it, or most
AT_MOST = "recording, at most"  # the evidence that says so
_MOST = 0.5  # of the lateness


def recording_ms(times: RankTimes) -> float:
    """About the most that recording adds to a step of this rank's host, ms; 0 where the trace has nothing of a host."""
    return times.recording_ms if times.summary.on_gpu else 0.0


def within_lateness_ms(times: RankTimes) -> float:
    """As much of it as the host is late."""
    return min(recording_ms(times), times.mean_ms("idle_host"))


def measured(inputs: Inputs) -> bool:
    """Whether the run itself tells what its steps take without the profiler."""
    told = (inputs.slowdown, inputs.unprofiled_ms, inputs.undisturbed)
    return any(known is not None for known in told)


def certain_severity(worst: Idle, bounds: tuple[float, float, float], seen: Severity) -> Severity | None:
    """How severe the lateness is that recording cannot explain; None where that is no judgement of what is seen.

    Nothing is certain beyond a warning. Where most of the lateness may be recording, and the rest alone is less severe
    than all of it, a remark about the rest would be a clean bill for what nobody knows.
    """
    cost = recording_ms(worst.times)
    left, step = worst.ms - cost, worst.step_ms - cost
    found = severity_of(100.0 * left / step, *bounds) if left > 0 else None
    found = "warning" if found == "error" else found
    return None if found != seen and cost > _MOST * worst.ms else found


def of_program(worst: Idle) -> str:
    """'At least about 9.1 ms of it are the program's own: recording takes this host at most about 31.8 ms'."""
    cost = recording_ms(worst.times)
    own = f"At least about {ms_text(worst.ms - cost)} ms of it are the program's own"
    return f"{own}: recording takes this host at most about {ms_text(cost)} ms"


def may_be_recording(run: CrossRank, worst: Idle) -> str:
    """Why the rule is not evaluated."""
    cost, late = recording_ms(worst.times), worst.ms
    return (
        f"{MAY_BE_RECORDING} {'all' if cost >= late else 'most'} of it: launches are {late:.1f} ms late "
        f"{run.step_words.per}, and recording may take the host up to {cost:.1f} ms"
    )
