"""TO-I003 where autograd's anomaly detection is on: it makes the host wait behind each function of backward."""

from __future__ import annotations

from dataclasses import replace

from traceops.core.arrays import mean_ms
from traceops.core.findings import Evidence, Finding
from traceops.core.units import count_text, ms_text, stored
from traceops.rules.inputs import Inputs

ANOMALY = "anomaly_detection"
ANOMALY_ADVICE = (
    "Switch anomaly detection off: torch.autograd.set_detect_anomaly(False), no detect_anomaly() around the step, "
    "Lightning's Trainer(detect_anomaly=False). It is for finding where a NaN comes from."
)
_LEAST = 3.0  # reads a step: of fewer functions nobody's step is long


def of_anomaly(found: Finding, inputs: Inputs) -> Finding:
    """The finding with how often autograd looks for NaN in a step, where it does."""
    told = next((e for e in found.evidence if e.metric == "idle_sync"), None)
    times = None if told is None else inputs.run.times_of(told.rank)
    checks = None if times is None else times.summary.anomaly
    if times is None or checks is None or not times.typical.any():
        return found
    count, ms = float(checks.count[times.typical].mean()), mean_ms(checks.host_ns[times.typical])
    if count < _LEAST:
        return found
    words = inputs.run.step_words
    said = (
        f"Anomaly detection is on: behind {count_text(count)} functions of backward {words.per} autograd reads whether "
        f"a value is NaN, which takes {ms_text(ms)} ms of the host as recorded."
    )
    return replace(
        found,
        message=f"{found.message} {said}",
        evidence=(
            *found.evidence,
            Evidence("reads of autograd's anomaly detection", round(count, 1), words.per, rank=times.summary.rank),
            Evidence("host in them", stored(ms), words.unit("ms"), rank=times.summary.rank),
        ),
        cause=ANOMALY,
        advice=ANOMALY_ADVICE,
    )
