"""Rows of a trace as text, on the clock of one rank."""

from __future__ import annotations

from .truth import RankTruth


class Clock:
    """Turns true time into what a rank's file says: µs with three decimals after its base."""

    def __init__(self, rank: RankTruth, base: int) -> None:
        self.base = base
        self.pid = 1000 + rank.rank
        self._rank = rank
        self._shift = rank.offset_ns - base
        self._drifts = bool(rank.drift_ppm)
        self.window_start = rank.window_start

    def since_base(self, ns: int) -> int:
        """ns after the base of the file."""
        return self._rank.on_clock(ns) - self.base if self._drifts else ns + self._shift

    def times(self, start: int, end: int) -> str:
        """The two fields of an event."""
        if self._drifts:
            start, end = self.since_base(start), self.since_base(end)
        else:
            start, end = start + self._shift, end + self._shift
        us, ns = divmod(start, 1000)
        dur_us, dur_ns = divmod(end - start, 1000)
        return f'"ts": {us}.{ns:03d}, "dur": {dur_us}.{dur_ns:03d}'


def row(
    cat: str, name: str, pid: int | str, tid: int | str, clock: Clock, start: int, end: int, args: str = ""
) -> str:  # fmt: skip
    """A complete event; `start` and `end` in true time, `args` the inside of the JSON object."""
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid}, '
        f'{clock.times(start, end)}, "args": {{{args}}}}}'
    )


def metadata_row(name: str, clock: Clock, pid: int, tid: int, args: str) -> str:
    """A row that names a process or thread; args as JSON."""
    ts = clock.since_base(clock.window_start)
    where = f'"ts": {ts // 1000}.{ts % 1000:03d}, "pid": {pid}, "tid": {tid}'
    return f'{{"name": "{name}", "ph": "M", {where}, "args": {args}}}'
