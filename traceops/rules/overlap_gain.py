"""What exposed transfer costs a step: how much shorter the step would be without it, at most."""

from __future__ import annotations

from traceops.across.cross_rank import CrossRank
from traceops.across.replay.what_if import NO_COMMUNICATION
from traceops.core.findings import Evidence
from traceops.core.step_words import StepWords
from traceops.core.units import stored

SAVED_AT_MOST = "saved at most"  # the metric of the evidence that is the impact


def gain_of(run: CrossRank, exposed_ms: float) -> float:
    """ms that a step would be shorter without this transfer, at most: not more than the replay saves without any."""
    saved = run.what_if.saved_ns(NO_COMMUNICATION) if run.what_if is not None else None
    return exposed_ms if saved is None else min(exposed_ms, max(saved, 0.0) / 1e6)


def less(gain_ms: float, exposed_ms: float) -> bool:
    """Whether the step would be shorter by less than the transfer, as both are written."""
    return f"{gain_ms:.2f}" != f"{exposed_ms:.2f}"


def gain_text(gain_ms: float, exposed_ms: float, words: StepWords) -> str:
    """A sentence, behind a space: what the transfer that was named costs; none where it is hidden."""
    if f"{exposed_ms:.2f}" == "0.00":
        return ""
    if not less(gain_ms, exposed_ms):
        return f" Without this transfer {words.the} would be at most {gain_ms:.2f} ms shorter."
    shorter = "no shorter" if f"{gain_ms:.2f}" == "0.00" else f"only {gain_ms:.2f} ms shorter"
    return f" Replayed with free communication, {words.the} is {shorter}: other things bound it too."


def gain_evidence(gain_ms: float, words: StepWords) -> Evidence:
    """The same as proof: the impact of the finding."""
    return Evidence(SAVED_AT_MOST, stored(gain_ms), words.unit("ms"))
