"""Steps of two kinds, as a WGAN has: what ended steps and what was within some of them only, as run.json tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traceops.core.step_kinds import round_steps, rounds, seldom, usual_ends

_CALL = ".forward"


@dataclass(frozen=True)
class StepKinds:
    """ends: what ended the steps; another: what was within `count` of `steps` only, perhaps of the same name."""

    ends: tuple[str, ...]
    another: str
    count: int
    steps: int

    @property
    def every(self) -> float:
        """How many steps a round of the training has."""
        return round_steps(self.steps, self.count)

    def may_be(self, numbers: Sequence[int], recorded: int) -> bool:
        """Whether these of so many recorded steps may be those that have it: they are as many, and in its rhythm."""
        lengths = rounds(self.steps, self.count)
        in_rhythm = not lengths or any(
            all((number - numbers[0]) % length == 0 for number in numbers) for length in lengths
        )
        return len(numbers) <= recorded / self.every + 1 and in_rhythm


def step_kinds(manifest: Mapping[str, Any]) -> StepKinds | None:
    """Of the first rank that tells; None where all steps are alike, as far as known."""
    for entry in manifest.get("ranks") or ():
        ends, within = _counts(entry.get("step_ends")), _counts(entry.get("steps_within"))
        if not ends:
            continue
        steps = sum(ends.values())
        names = seldom(steps, within)
        if not names:
            return None
        return StepKinds(tuple(usual_ends(ends, within)), names[0], within[names[0]], steps)
    return None


def ends_by_calls(manifest: Mapping[str, Any]) -> bool:
    """Whether a step ended where a model's forward returned, on each rank that tells (`--step-on forward`)."""
    told = [_counts(entry.get("step_ends")) for entry in manifest.get("ranks") or ()]
    return any(told) and all(name.endswith(_CALL) for ends in told for name in ends)


def _counts(told: Any) -> dict[str, int]:
    items = told.items() if isinstance(told, dict) else ()
    return {
        str(name)[:200]: count
        for name, count in items
        if isinstance(count, int) and not isinstance(count, bool) and count > 0
    }
