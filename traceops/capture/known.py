"""Numbers objects of the program's, and keeps none of them alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import count
from typing import Any


class Known:
    """Numbers are given in the order in which the objects are first asked for, and none is given twice.

    An address is no number: Python gives it to the next object. It may do so in one rank and not in another, and the
    ranks would number their steps differently.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._by_address: dict[int, tuple[Callable[[], Any], int]] = {}
        self._living: set[int] = set()

    def number(self, what: Any) -> int:
        """Of this object."""
        known = self._by_address.get(id(what))
        if known is not None and known[0]() is what:
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
            known = self._by_address.get(address)
            if known is not None and known[1] == number:
                del self._by_address[address]

        try:
            return weakref.ref(what, gone)
        except TypeError:  # of a class that allows none: it is kept
            return lambda: what
