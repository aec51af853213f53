"""Moments of a trace as exact integers: its decimal µs, its zero, its clock, and the timeline's zero."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from msgspec import Struct

from traceops.core.arrays import Int
from traceops.traces.event import digits_to_ns

_LATEST_NS = 1 << 61  # 73 years; with a file's zero added it still fits an int64
LONGEST_NS = 1 << 56  # 2 years: a longer event is garbage


class Clock(Protocol):
    """A fit of one rank's clock to the common one."""

    def correct(self, t: Int, /) -> Int:
        """Moments of the rank's clock (int64 ns) on the common clock (int64 ns)."""


class Shift(Struct, frozen=True):
    """A clock that is off by a constant, ns."""

    offset_ns: int

    def correct(self, t: Int, /) -> Int:
        """Moments (int64 ns) moved by the offset."""
        moved: Int = t + self.offset_ns
        return moved


class Placement(Struct, frozen=True):
    """Where one file's moments lie on the timeline, all in ns. `base_ns` is the file's own zero, `clock` corrects what
    lies on it (None: as it is), `origin_ns` is the timeline's zero."""

    base_ns: int = 0
    clock: Clock | None = None
    origin_ns: int = 0

    def place(self, t: Int) -> Int:
        """Moments as the analysis has them (the file's zero added) to ns since the timeline's zero."""
        moved: Int = (t if self.clock is None else self.clock.correct(t)) - self.origin_ns
        return moved

    def place_one(self, t: int) -> int:
        """The same for one moment."""
        return int(self.place(np.array([t], dtype=np.int64))[0])


def parse_us(text: bytes) -> int | None:
    """Decimal µs as a file has them to ns; None where it is no number, or none that can be a time."""
    if text[-4:-3] == b".":  # three decimals, which is nearly all there are
        digits = text[:-4] + text[-3:]
        if digits.isdigit() and len(digits) < 19:
            return int(digits)
    ns = digits_to_ns(text)
    return ns if ns is not None and abs(ns) < _LATEST_NS else None


def format_us(ns: int) -> bytes:
    """Nanoseconds as decimal µs with three digits behind the point."""
    return b"%d.%03d" % divmod(ns, 1000) if ns >= 0 else b"-" + format_us(-ns)
