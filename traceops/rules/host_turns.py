"""That hosts are late by turns, as later light windows show it."""

from __future__ import annotations

from traceops.across.host_turns import host_turns
from traceops.across.undisturbed import Undisturbed


def told_of_turns(undisturbed: Undisturbed | None, least_pct: float) -> str:
    """A sentence where the latest host changes, by `least_pct` of the step or more; '' where the same one stays it."""
    if undisturbed is None:
        return ""
    turns = host_turns(undisturbed.looks, least_pct / 100 * undisturbed.step_ms)
    if turns is None:
        return ""
    (begin, end), (then, until) = turns.steps, turns.other_steps
    return (
        f" Whose host is the latest changes: rank {turns.rank}'s in steps {begin} to {end}, rank {turns.other}'s in "
        f"steps {then} to {until}."
    )
