"""What a rule is: documented data, apart from the code that judges it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A documented rule; `judged` is False while no command judges it yet.

    `by_cause` is the advice for findings with that cause, in place of `advice`.
    """

    id: str
    title: str
    advice: str
    judged: bool = False
    how: str = ""
    by_cause: tuple[tuple[str, str], ...] = ()

    def advice_for(self, cause: str | None) -> str:
        """What to do about a finding with this cause."""
        return dict(self.by_cause).get(cause or "", self.advice)
