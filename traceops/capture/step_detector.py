"""Which step of an optimizer, or which call, ends a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traceops.capture.known import Known
from traceops.capture.outer_steps import OuterSteps


def _none() -> None:
    return None


class StepDetector:
    """Decides which optimizer steps end a training step; several optimizers make one step together.

    Until some optimizer steps a second time, the first one seen stands for the step. Then the last one of
    that first round does (the generator's, after the discriminator's). If another one steps twice without
    it (a gradient scaler that skips it), that one takes over. One that is new, where a step has just ended, begins a
    first round again: a new training phase, or a program that makes its optimizers anew. The earlier one may live on,
    in a cycle of references: then both have the same parameters. Where one keeps stepping once between others that are
    new each time (meta-learning's, on copies of the model), its steps end the training's.

    alone: returns the optimizer whose step is sure to end a training step next, and changes nothing here; else None.
    """

    def __init__(self) -> None:
        self._known = Known()
        self._outer = OuterSteps(self._known.lives)
        self._round: dict[int, None] = {}  # in their order; there may be one for each parameter
        self._learned = True
        self._marker: int | None = None
        self._newest = -1
        self._parameters: tuple[int, ...] = ()  # of the first one of a first round
        self.alone: Callable[[], Any] = _none

    def knows(self, optimizer: Any) -> bool:
        """Whether it has stepped before."""
        return self._known.knows(optimizer)

    def stepped(self, optimizer: Any) -> bool:
        """Whether the step of this optimizer ends a training step."""
        number = self._known.number(optimizer)
        ends = self._ends(number, optimizer)
        outer = self._outer.stepped(number, self._newest, ends=ends)
        if outer is not None:
            ends = number == outer
        sure = self._learned or outer is not None
        self.alone = self._known.reference(optimizer) if ends and sure else _none
        return ends

    def _ends(self, optimizer: int, what: Any) -> bool:
        new, self._newest = optimizer > self._newest, max(optimizer, self._newest)
        if new and self._begins_anew(what):
            self._learned = False
            self._parameters = _parameters(what)
            self._round = {optimizer: None}
            return True
        if not self._learned:
            if optimizer not in self._round:
                self._round[optimizer] = None
                return False
            self._marker = next(reversed(self._round))
            self._learned = True
            self._round = {}
        if optimizer == self._marker or optimizer in self._round:
            self._marker = optimizer
            self._round = {}
            return True
        self._round[optimizer] = None
        return False

    def _begins_anew(self, what: Any) -> bool:
        """Whether an optimizer that was never seen begins a first round, and is none of the round that goes on."""
        first = next(iter(self._round), None)
        if first is None or self._learned:
            return first is None
        return not self._known.lives(first) or (bool(self._parameters) and _parameters(what) == self._parameters)


def _parameters(what: Any) -> tuple[int, ...]:
    """The addresses of an optimizer's parameters, which that keeps alive; none of what is no optimizer."""
    groups = getattr(what, "__dict__", {}).get("param_groups")
    if not isinstance(groups, list):
        return ()
    lists = [group.get("params") for group in groups if isinstance(group, dict)]
    return tuple(id(one) for params in lists if isinstance(params, list) for one in params)
