"""A host that is late by turns in light windows, and does more than its peers do over the whole run."""

from __future__ import annotations

from dataclasses import replace

from traceops.core.findings import Finding, severity_of
from traceops.rules.host_turns import told_of_turns
from traceops.rules.inputs import Inputs
from traceops.rules.plain_cure import waited_for_ms
from traceops.rules.straggler_bounds import IMPACT_BOUNDS


def late_all_the_time(found: Finding, inputs: Inputs, seen_ms: float) -> Finding:
    """The finding of a late host, no remark where it is one only because another was later in one light window.

    A window is six steps, in which a peer may write a checkpoint in the background. seen_ms: what this host was seen
    to do longer than its peers, a step, in all steps that nothing records. It counts as far as the others wait.
    """
    undisturbed = inputs.undisturbed
    turns = told_of_turns(undisturbed, IMPACT_BOUNDS[0])
    if undisturbed is None or not turns or found.severity != "info" or turns not in found.message:
        return found
    waits = waited_for_ms(undisturbed, found.ranks[0])
    saved = min(seen_ms, seen_ms if waits is None else waits)
    severity = severity_of(100 * saved / undisturbed.step_ms, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)
    return found if severity is None else replace(found, severity=severity, confidence="medium")
