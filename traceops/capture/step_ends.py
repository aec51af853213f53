"""What a capture took for the end of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

STEP_ON = ("optimizer", "forward")  # what may end a step of a script that says nothing of steps


@dataclass(frozen=True)
class StepEnds:
    """How often what ended a step, and what ran within one, by name: ``AdamW.step``, ``GradScaler.update``.

    within: what might have ended a step and was taken for a part of one: the other optimizers. beside: what other
    threads did meanwhile, whose training is another one.
    """

    ends: dict[str, int] = field(default_factory=dict)
    within: dict[str, int] = field(default_factory=dict)
    beside: dict[str, int] = field(default_factory=dict)
