"""Which step of an optimizer, or which call, ends a training step, where several optimizers step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

_SEVERAL = 2  # ends of a step between two of its own
_TIMES = 2  # that it steps so: once may be a training phase that ends
_LONGEST, _MORE = 2, 8  # times the most steps between two of its own, and so many more: it has stopped
_MANY = 64  # optimizers that are remembered, those that are gone among them


class OuterSteps:
    """The optimizer that steps once between others that are made anew: in meta-learning the outer one ends the step.
    lives: whether the optimizer of a number is there still. Numbers rise with the order in which they were seen."""

    def __init__(self, lives: Callable[[int], bool]) -> None:
        self._lives = lives
        self._seen: dict[int, tuple[int, int]] = {}  # by number: the newest one, and the ends, when it stepped last
        self._times: dict[int, int] = {}  # that it stepped once, and another one was new in between
        self._ends = self._since = self._most = 0
        self.number: int | None = None

    def stepped(self, number: int, newest: int, *, ends: bool) -> int | None:
        """Which one is the outer one, now that `number` has stepped. newest: of all until now. ends: whether this would
        end a step of the training, did nobody ask here. One such end between two of the outer one's is as good as its
        own."""
        self._follow(number)
        self._ends += ends
        before, self._seen[number] = self._seen.get(number), (newest, self._ends)
        if before is None:
            self._forget()
        elif newest == before[0]:
            self._times.pop(number, None)
            self._leave(number)  # it steps as a training's own does
        elif self._ends - before[1] >= _SEVERAL:
            self._times[number] = self._times.get(number, 0) + 1
            if self.number is None and self._times[number] >= _TIMES:
                self.number, self._since, self._most = number, 0, 0
        return self.number

    def _follow(self, number: int) -> None:
        """How many steps there are between two of the outer one, and whether it has none any more."""
        if self.number is None:
            return
        if number == self.number:
            self._most, self._since = max(self._most, self._since), 0
            return
        self._since += 1
        if self._most and self._since > _LONGEST * self._most + _MORE:
            self._leave(self.number)

    def _leave(self, number: int) -> None:
        if number == self.number:
            self.number = None

    def _forget(self) -> None:
        if len(self._seen) > _MANY:
            for kept in (self._seen, self._times):
                for number in [one for one in kept if not self._lives(one)]:
                    del kept[number]


class Known:
    """Numbers objects of the program, in the order in which they are first asked for, and keeps none of them alive. An
    address is no number: Python gives it to the next object. It may do so in one rank and not in another, and the ranks
    would number their steps differently."""

    def __init__(self) -> None:
        self._numbers = count()
        self._by_address: dict[int, tuple[Callable[[], Any], int]] = {}
        self._living: set[int] = set()

    def number(self, what: Any) -> int:
        """Of this object."""
        if (known := self._by_address.get(id(what))) is not None and known[0]() is what:
            return known[1]
        number = next(self._numbers)  # in one piece, as several threads may ask
        self._living.add(number)
        self._by_address[id(what)] = self._reference(what, number), number
        return number

    def knows(self, what: Any) -> bool:
        """Whether it has a number."""
        known = self._by_address.get(id(what))
        return known is not None and known[0]() is what

    def reference(self, what: Any) -> Callable[[], Any]:
        """What returns the object, None once it is gone. It has a number already."""
        return self._by_address[id(what)][0]

    def lives(self, number: int) -> bool:
        """Whether the object of this number is there still."""
        return number in self._living

    def _reference(self, what: Any, number: int) -> Callable[[], Any]:
        address = id(what)

        def gone(reference: Any) -> None:
            self._living.discard(number)
            if (known := self._by_address.get(address)) is not None and known[1] == number:
                del self._by_address[address]

        try:
            return weakref.ref(what, gone)
        except TypeError:  # of a class that allows none: it is kept
            return lambda: what


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
        if (outer := self._outer.stepped(number, self._newest, ends=ends)) is not None:
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
        if (first := next(iter(self._round), None)) is None or self._learned:
            return first is None
        return not self._known.lives(first) or (bool(self._parameters) and _parameters(what) == self._parameters)


def _parameters(what: Any) -> tuple[int, ...]:
    """The addresses of an optimizer's parameters, which that keeps alive; none of what is no optimizer."""
    groups = getattr(what, "__dict__", {}).get("param_groups")
    if not isinstance(groups, list):
        return ()
    lists = [group.get("params") for group in groups if isinstance(group, dict)]
    return tuple(id(one) for params in lists if isinstance(params, list) for one in params)
