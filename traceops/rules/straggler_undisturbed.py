"""What the light window leaves of a rank whose host is late in the recorded steps."""

from __future__ import annotations

import numpy as np

from traceops.across.stragglers import Straggler
from traceops.across.undisturbed import Undisturbed
from traceops.core.findings import Confidence, Severity, severity_of
from traceops.rules.straggler_bounds import IMPACT_BOUNDS


def waited_for(straggler: Straggler, undisturbed: Undisturbed) -> bool:
    """Whether the others wait for it without the profiler as well, or nobody can tell."""
    others = [one for one in undisturbed.ranks if one.rank != straggler.rank]
    late = undisturbed.of(straggler.rank)
    if late is None or not others:
        return True
    bound = IMPACT_BOUNDS[0] / 100 * undisturbed.step_ms
    waits = float(np.mean([one.wait_ms for one in others]))
    unknown = float(np.mean([one.unmatched_ms for one in others]))
    return unknown >= bound or late.wait_ms < waits >= bound


def without_profiler(
    straggler: Straggler, severity: Severity, undisturbed: Undisturbed
) -> tuple[Confidence, Severity, str]:
    """What remains of a late host without the profiler: what the others wait in the light window, at most."""
    late = undisturbed.of(straggler.rank)
    others = [one for one in undisturbed.ranks if one.rank != straggler.rank]
    if late is None or not others:
        return "low", "info", ""
    waits = float(np.mean([one.wait_ms for one in others]))
    unknown = float(np.mean([one.unmatched_ms for one in others]))
    if 100 * unknown / undisturbed.step_ms >= IMPACT_BOUNDS[0]:
        return (
            "low",
            "info",
            (
                f" Without the profiler a step takes {undisturbed.step_ms:.2f} ms; how much of it the others wait "
                f"for is not known: the light window does not tell waiting from transfer in {unknown:.2f} ms of it."
            ),
        )
    note = (
        f" Without the profiler a step takes {undisturbed.step_ms:.2f} ms, and by the light window the others wait for "
        f"{waits:.2f} ms of it."
    )
    if late.wait_ms >= waits or 100 * waits / undisturbed.step_ms < IMPACT_BOUNDS[0]:
        return "low", "info", note
    least = float(np.mean([one.least_wait_ms for one in others]))
    seen = severity_of(100 * least / undisturbed.step_ms, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)
    if seen is None:
        cost = undisturbed.light_ms - undisturbed.step_ms
        doubt = f" But the light window's own steps are {cost:.2f} ms longer: all of that may come of them."
        return "low", "info", note + doubt
    return "medium", "warning" if seen != "error" else severity, note
