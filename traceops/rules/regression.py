"""TO-R001: a metric that a comparison finds worse."""

from __future__ import annotations

from traceops.core.rule import JudgedBy, Rule

REGRESSED = Rule(
    id="TO-R001",
    title="A metric regressed",
    fires=(
        "`traceops compare` only: a gated metric is worse by more than its threshold, and (unless it is "
        "exact) its interval excludes zero after Holm's correction."
    ),
    advice=(
        "The explanations below the verdict say what changed, the first one most likely why. Where it is "
        "accepted, write a waiver with a reason and a day it ends into traceops.toml."
    ),
    judged_by=JudgedBy.COMPARE,
)
RULES = (REGRESSED,)
