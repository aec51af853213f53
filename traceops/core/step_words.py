"""What a sentence calls the step: a step, or the window, where nothing tells where steps begin."""

from __future__ import annotations

from msgspec import Struct

from traceops.core.words import Unit


class StepWords(Struct, frozen=True):
    """Words for what times are of. Whoever makes a sentence is given them; none is changed afterwards.

    a: 'a step would take'. each: 'of each step'. per: 'a step', behind an amount. rate: '/step', behind a unit.
    """

    noun: str
    a: str
    each: str
    per: str
    rate: str

    @property
    def the(self) -> str:
        """'the step'."""
        return f"the {self.noun}"

    @property
    def heading(self) -> str:
        """'Step ms', over a column."""
        return f"{self.noun.capitalize()} ms"

    @property
    def typical(self) -> str:
        """'typical step'; there is one window only."""
        return self.choose("typical step", "window")

    def each_of(self, amount: str) -> str:
        """'each 12 ms step'."""
        return self.choose(f"each {amount} step", f"the window of {amount}")

    def unit(self, unit: str) -> str:
        """'ms/step'."""
        return f"{unit}{self.rate}"

    def choose(self, of_step: str, of_window: str) -> str:
        """Which of two phrases, where they differ in more than a word."""
        return of_window if self is WINDOW else of_step


STEP = StepWords(noun="step", a="a step", each="each step", per="a step", rate="/step")
WINDOW = StepWords(noun="window", a="the window", each="the window", per="in the window", rate="")


def step_words(unit: Unit) -> StepWords:
    """The words for a unit; of a run without a whole step those of steps."""
    return WINDOW if unit == "window" else STEP
