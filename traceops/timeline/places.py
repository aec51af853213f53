"""Numbers of tracks: what is common to all ranks, each rank's, and what lies in it."""

from __future__ import annotations

FINDINGS = 1
_HOSTS, _RANKS, _ROWS = 1 << 20, 1 << 24, 1 << 32


def host_uuid(number: int) -> int:
    """The track of a host, counted from 0."""
    return _HOSTS + number


def rank_uuid(slot: int) -> int:
    """The track that all tracks of the rank in this place of the timeline lie in."""
    return _RANKS + slot


class TrackNumbers:
    """Hands out numbers for the tracks of one rank; `added` for those that traceops adds to it."""

    def __init__(self, slot: int, added: bool = False) -> None:
        self._next = (2 * slot + 1 + added) * _ROWS

    def next(self) -> int:
        """A number that no other track has."""
        self._next += 1
        return self._next
