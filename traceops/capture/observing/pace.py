"""When to look at the host: often at first, later so rarely that looking costs a fixed part of the time.

A look costs the thread that trains more than the thread that looks can see: it gives up the interpreter's lock, sleeps
until the look is over, and wakes up. On two hosts of H200s a look cost it 110 to 210 µs, and lasts 30 to 40; on a CPU,
since it falls where it is due, 110 to 190 µs in Python 3.11 and 190 to 210 in 3.12.
"""

from __future__ import annotations

_WAKING_NS = 170_000  # what being woken for a look costs the thread that trains, beside the look
_COST = 0.0005  # of the time: what looks may take
_FREE_NS = 50_000_000  # of the looks before, so that a short training has some: with those, ten times as often
_FREE_COST = 0.005
_LEAST_S, _MOST_S = 0.01, 1.0  # between two looks
_SLOWER_AFTER = 30_000  # looks: then half as often, so that a run of days does not fill the disk
# Looks at a step that takes longer than usual, and wakings to find one: of the time, beyond what is free.
_SLOW_COST, _SLOW_FREE_NS = 0.0003, 15_000_000


class Pace:
    """What looks have cost so far, and how soon there may be another. Times are of `time.perf_counter_ns`."""

    def __init__(self, begun_ns: int) -> None:
        self._begun_ns = begun_ns
        self._look_ns = 30_000.0  # the first ones are slower
        self._spent_ns = self._slow_ns = 0.0

    @property
    def cost_ns(self) -> float:
        """Of a look."""
        return self._look_ns + _WAKING_NS

    def looked(self, took_ns: int, *, early: bool) -> None:
        """A look is over. early: it was not due yet, but the step takes longer than usual."""
        self._look_ns += 0.05 * (took_ns - self._look_ns)
        if early:
            self._slow_ns += self.cost_ns
        else:
            self._spent_ns += self.cost_ns

    def woken(self) -> None:
        """There was nothing to look at."""
        self._slow_ns += _WAKING_NS

    def pause_ns(self, looks: int) -> float:
        """Between two looks, on average, after so many."""
        part = _FREE_COST if self._spent_ns < _FREE_NS else _COST
        seconds = min(max(self.cost_ns / part / 1e9, _LEAST_S), _MOST_S)
        return 1e9 * seconds * (1 << min(looks // _SLOWER_AFTER, 6))

    def has_left(self, now_ns: int, *, to_find: bool = False) -> bool:
        """Whether a step that takes longer may be looked at early; to_find: whether to wake up to see if one does.

        Half of what there is goes to that at most: in a training of long steps each one would want it.
        """
        part = 0.5 if to_find else 1.0
        return self._slow_ns < part * (_SLOW_FREE_NS + _SLOW_COST * (now_ns - self._begun_ns))
