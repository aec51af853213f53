"""The optimizer that steps once between others that are made anew.

It is meta-learning's outer one, and its step is the training's: the others train copies of the model and are gone.
"""

from __future__ import annotations

from collections.abc import Callable

_SEVERAL = 2  # ends of a step between two of its own
_TIMES = 2  # that it steps so: once may be a training phase that ends
_LONGEST, _MORE = 2, 8  # times the most steps between two of its own, and so many more: it has stopped
_MANY = 64  # optimizers that are remembered, those that are gone among them


class OuterSteps:
    """lives: whether the optimizer of a number is there still. Numbers rise with the order in which they were seen."""

    def __init__(self, lives: Callable[[int], bool]) -> None:
        self._lives = lives
        self._seen: dict[int, tuple[int, int]] = {}  # by number: the newest one, and the ends, when it stepped last
        self._times: dict[int, int] = {}  # that it stepped once, and another one was new in between
        self._ends = self._since = self._most = 0
        self.number: int | None = None

    def stepped(self, number: int, newest: int, *, ends: bool) -> int | None:
        """Which one is the outer one, now that `number` has stepped.

        newest: of all until now. ends: whether this would end a step of the training, did nobody ask here. One such end
        between two of the outer one's is as good as its own.
        """
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
