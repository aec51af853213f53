"""What the cure of a late host saves of a step without the profiler: recorded steps hold the profiler's cost too."""

from __future__ import annotations

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from traceops.across.undisturbed import Undisturbed
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Evidence, Finding, severity_of
from traceops.core.units import ms_text, stored
from traceops.measure.recording import SLOWED
from traceops.rules.inputs import Inputs
from traceops.rules.straggler_claims import Late
from traceops.rules.straggler_conditions import IMPACT_BOUNDS


def in_plain_steps(found: Finding, inputs: Inputs, seen_ms: float) -> Finding:
    """The finding of a late host, told of a step without the profiler where one is known.

    It is so where that step is clearly shorter, or where its host was seen to do more there than the replay saves: in
    recorded steps the others' hosts are slow as well.

    What its peers' pace saves in the replay is scaled by what the others wait in either step, as all hosts were slowed
    alike. seen_ms: what this host was seen to do longer than its peers in steps that nothing records; that is
    measured, and counts where it is more. Neither is more than the others wait. Ranks that nobody waits for without
    the profiler are a remark already, and stay as they are.
    """
    undisturbed, rank = inputs.undisturbed, found.ranks[0]
    recorded_ms, waited = found.impact_ms, found.number(Fact.WAITING_FOR_IT)
    if found.severity == "info" or undisturbed is None or not recorded_ms or not waited:
        return found
    waits = waited_for_ms(undisturbed, rank)
    if waits is None or (inputs.run.step_ms < SLOWED * undisturbed.step_ms and seen_ms <= recorded_ms):
        return found
    saved = min(max(recorded_ms * min(waits / waited, 1.0), seen_ms), waits)
    pct = 100 * saved / undisturbed.step_ms
    severity = severity_of(pct, IMPACT_BOUNDS[0], *IMPACT_BOUNDS) or "info"
    left, step = ms_text(undisturbed.step_ms - saved), ms_text(undisturbed.step_ms)
    claim, message, headline = claim_of(found, Late), found.message, found.headline
    if claim is not None:  # what the others wait is of these steps then
        headline = structs.replace(claim, steps=(), met=None, waiting=waits, waiting_on_average=None).headline()
        message = message.replace(claim.headline(), headline, 1)
    message += (
        f" Without the profiler the other ranks' pace would leave {left} of a step's {step} ms ({pct:.0f} % less)."
    )
    evidence = (
        Evidence(Fact.PLAIN_STEP, stored(undisturbed.step_ms), "ms"),
        Evidence(Fact.PLAIN_SAVED, stored(saved), "ms/step", rank=rank),
        Evidence(Fact.PLAIN_WAIT, stored(waits), "ms/step and rank", rank=rank),
        Evidence(Fact.RECORDED, stored(recorded_ms), "ms/step", rank=rank),
    )
    return replace(
        found,
        severity=severity if saved > recorded_ms else min(severity, found.severity, key=SEVERITIES.index),
        message=message,
        headline=headline,
        impact_ms=stored(saved),
        evidence=(*found.evidence, *evidence),
    )


def waited_for_ms(undisturbed: Undisturbed, rank: int) -> float | None:
    """What the others wait in the undisturbed step, mean over them; None where that is not told."""
    others = [one.wait_ms for one in undisturbed.ranks if one.rank != rank]
    return float(np.mean(others)) if others and undisturbed.of(rank) is not None else None
