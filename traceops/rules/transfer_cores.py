"""How much of a transfer that the ranks' own cores do may be waiting for a core: TO-O001 to TO-O003 claim the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceops.across.core_waits import recorded_waits
from traceops.core.findings import SEVERITIES, Evidence, Finding, severity_of
from traceops.core.rule import Verdict
from traceops.core.units import percent_text
from traceops.rules.inputs import Inputs
from traceops.rules.recorded_cores import WAITS_PCT


def waited_pct(inputs: Inputs) -> float:
    """Percent of the recorded steps in which the median rank wants a core; 0 where GPUs exchange by themselves."""
    run = inputs.run
    if any(times.summary.on_gpu for times in run.ranks) and not run.through_host:
        return 0.0
    waits = recorded_waits(inputs.observed)
    told = [waits[rank].beside_pct if rank in waits else 0.0 for rank in (t.summary.rank for t in run.ranks)]
    return float(np.median(told)) if told else 0.0


def without_waiting(verdict: Verdict, share_pct: str, bounds: Sequence[float], waited: float) -> Verdict:
    """The verdict, as severe as what is left of the transfer where all of the waiting for a core lies in it.

    share_pct: the metric of the finding's evidence that is held to the bounds.
    """
    if waited < WAITS_PCT:
        return verdict
    return replace(verdict, findings=tuple(_without(one, share_pct, bounds, waited) for one in verdict.findings))


def _without(found: Finding, share_pct: str, bounds: Sequence[float], waited: float) -> Finding:
    share = next((e.value for e in found.evidence if e.metric == share_pct), None)
    if not isinstance(share, (int, float)):
        return found
    left = severity_of(share - waited, *bounds) or "info"
    if SEVERITIES.index(left) >= SEVERITIES.index(found.severity):
        return found
    return replace(
        found,
        severity=left,
        message=f"{found.message} The ranks wait {percent_text(waited)} of these steps for a core, and their cores do "
        "the transfer: nothing tells how much of it is that.",
        evidence=(*found.evidence, Evidence("waits for a core", round(waited, 1), "% of recorded steps", WAITS_PCT)),
    )
