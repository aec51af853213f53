"""What a source of a light window is: it records the device until it is told to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Activities:
    """What the device did, `ROW`s of `core/rank_files.py`.

    discarded: activities that are missing. clocks: before and after, where the times are not Unix ns.
    """

    rows: bytes
    names: tuple[str, ...]
    discarded: int = 0
    clocks: tuple[tuple[int, ...], ...] = ()


class Source(Protocol):
    """Started where a step begins, stopped where one ends and the device is idle. Each may raise: then `abandon`."""

    name: str

    def start(self) -> str | None:
        """Record; what is in the way, None where nothing is."""

    def stop(self) -> Activities | str:
        """What was recorded, or why there is nothing. Afterwards nothing is on any more."""

    def abandon(self) -> None:
        """Stop, whatever state it is in, and keep nothing."""
