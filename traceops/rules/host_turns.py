"""That hosts are late by turns, as later light windows show it."""

from __future__ import annotations

from traceops.across.undisturbed import Undisturbed


def told_of_turns(undisturbed: Undisturbed | None, least_pct: float) -> str:
    """A sentence where the latest host changes, by `least_pct` of the step or more; '' where the same one stays it."""
    turns = None if undisturbed is None else undisturbed.turns(least_pct)
    if turns is None:
        return ""
    (begin, end), (then, until) = turns.steps, turns.other_steps
    return (
        f" Whose host is the latest changes: rank {turns.rank}'s in steps {begin} to {end}, rank {turns.other}'s in "
        f"steps {then} to {until}."
    )
