"""What exposed transfer costs a step: how much shorter the replay is without it, and how much hosts decide of that."""

from __future__ import annotations

from dataclasses import dataclass

from traceops.across.cross_rank import CrossRank
from traceops.across.replay.what_if import HOST_IN_TIME, NO_COMMUNICATION
from traceops.core.findings import SEVERITIES, Evidence, Severity, severity_of
from traceops.core.step_words import StepWords
from traceops.core.units import ms_text, stored

SAVED = "saved without it"  # the metric of the evidence that is the impact
SAVED_AT_BEST = "saved without it and with no host late"
LEAST_GAIN_PCT = 3.0  # of the step: of less, exposed transfer is a remark
_ALIKE = 0.05  # of the transfer: less makes no difference that is worth a word


def alike(ms: float, of_ms: float) -> bool:
    """Whether a step that is shorter by `ms` is so by as much as the transfer `of_ms`, near enough."""
    return ms >= (1 - _ALIKE) * of_ms


@dataclass(frozen=True)
class Gain:
    """ms that a step would be shorter without a transfer, which is `of_ms` exposed.

    ms: as hosts were recorded, where the replay holds, or with none late, where that is known of the step without the
    profiler; else the transfer itself. best_ms: with no host late, where that is clearly more; a profiler slows hosts.
    replayed: the replay says so.
    """

    ms: float
    of_ms: float
    best_ms: float | None
    replayed: bool

    @property
    def is_less(self) -> bool:
        """Whether the step would be shorter by clearly less than the transfer."""
        return not alike(self.ms, self.of_ms)


def gain_of(run: CrossRank, exposed_ms: float, *, in_time: bool = False, left_ms: float | None = None) -> Gain:
    """What a step gains without this transfer: not more than the transfer, nor than the replay saves without any.

    in_time: whether no host is late in the step that this is about. left_ms: what hosts leave of such a step at most,
    where they were seen to run ahead: one that keeps up with a step is not known to keep up with a shorter one.
    """
    saved = None if run.what_if is None else run.what_if.saved_ns(NO_COMMUNICATION)
    if run.what_if is None or saved is None:
        return Gain(exposed_ms, exposed_ms, None, False)
    gain = min(exposed_ms, max(saved, 0.0) / 1e6)
    ends = run.what_if.range_ns(NO_COMMUNICATION)
    if ends is None:
        return Gain(gain, exposed_ms, None, True)
    hosts = run.what_if.saved_ns(HOST_IN_TIME)
    if in_time and hosts is not None:
        alone = run.what_if.mean_ns(run.what_if.replayed_ns) - max(hosts, 0.0) - ends[0]
        alone = min(exposed_ms, max(gain, alone / 1e6))
        sure = alone if left_ms is None else min(alone, max(gain, left_ms))
        return Gain(sure, exposed_ms, alone if alone - sure > _ALIKE * exposed_ms else None, True)
    best = min(exposed_ms, (run.what_if.mean_ns(run.what_if.replayed_ns) - ends[0]) / 1e6)
    return Gain(gain, exposed_ms, best if best - gain > _ALIKE * exposed_ms else None, True)


def graded(severity: Severity, gain: Gain, step_ms: float, bounds: tuple[float, float, float]) -> Severity:
    """A severity by the share of the step, lowered to that of what the step would save: percent for each severity.

    Where hosts bound the step it counts how much shorter it is with none late, as a profiler slows them; but where
    next to nothing is saved with hosts as they are, all of it is a remark. A remark stays one, however little is saved.
    """
    if gain.ms < LEAST_GAIN_PCT / 100 * step_ms:
        return "info"
    saved_ms = gain.ms if gain.best_ms is None else gain.best_ms
    by_gain = severity_of(100.0 * saved_ms / step_ms, *bounds) if step_ms else None
    return "info" if by_gain is None else min(severity, by_gain, key=SEVERITIES.index)


def gain_text(gain: Gain, words: StepWords) -> str:
    """A sentence, behind a space: what the transfer that was named costs; none where it is hidden, or nobody knows."""
    if not gain.replayed or f"{gain.of_ms:.2f}" == "0.00":
        return ""
    if not gain.is_less:
        return f" Replayed with free communication, {words.the} is about as much shorter."
    shorter = "no shorter" if f"{gain.ms:.2f}" == "0.00" else f"only {gain.ms:.2f} ms shorter"
    bound = (
        "other things bound it too"
        if gain.best_ms is None
        else f"hosts bound it too, and with none of them late it is up to {gain.best_ms:.2f} ms shorter"
    )
    return f" Replayed with free communication, {words.the} is {shorter}: {bound}."


def step_left(gain: Gain, step_ms: float) -> str:
    """'84.5 ms', or '84.5 ms (80.1 with hosts in time)': what is left of a step without the transfer."""
    left = f"{ms_text(max(step_ms - gain.ms, 0.0))} ms"
    if gain.best_ms is None:
        return left
    return f"{left} ({ms_text(max(step_ms - gain.best_ms, 0.0))} with hosts in time)"


def gain_evidence(gain: Gain, words: StepWords) -> tuple[Evidence, ...]:
    """The same as proof: the impact of the finding, and what may come on top."""
    best = () if gain.best_ms is None else (Evidence(SAVED_AT_BEST, stored(gain.best_ms), words.unit("ms")),)
    return (Evidence(SAVED, stored(gain.ms), words.unit("ms")), *best) if gain.replayed else ()
