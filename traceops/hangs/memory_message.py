"""The numbers in an out-of-memory message of torch, in the wordings of 1.x to 2.x, and what they come to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

MemoryCause = Literal["fragmented", "others", "too_large"]

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(\d{1,12}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB|TiB)"
_PATTERNS = {
    "asked": (rf"Tried to allocate {_SIZE}",),
    "total": (rf"total capac(?:i)?ty of {_SIZE}", rf"; {_SIZE} total capacity"),
    "free": (rf"of which {_SIZE} is free", rf"; {_SIZE} free"),
    "process": (rf"this process has {_SIZE} memory in use",),
    "allocated": (rf"allocated memory {_SIZE} is allocated by PyTorch", rf"; {_SIZE} already allocated"),
    "unallocated": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "allowed": (rf"{_SIZE} allowed;",),
    "reserved": (rf"; {_SIZE} reserved in total", rf"; {_SIZE} cached"),
}  # fmt: skip
_MUCH_ELSE = (
    0.15  # of the GPU that neither this process nor what is free accounts for: another process has it
)


@dataclass(frozen=True)
class MemoryMessage:
    """Bytes; None where the message does not tell. free: of the GPU. unallocated: torch holds and does not use it.

    allowed: that the process may have of the GPU, as it asked itself (set_per_process_memory_fraction).
    """

    asked: int | None = None
    total: int | None = None
    free: int | None = None
    process: int | None = None
    allocated: int | None = None
    unallocated: int | None = None
    allowed: int | None = None

    @property
    def left(self) -> int | None:
        """What the process could still get: what is free, or less where it is not allowed that much."""
        if self.allowed is None or self.free is None or self.allocated is None:
            return self.free
        return min(self.free, max(self.allowed - self.allocated - (self.unallocated or 0), 0))

    @property
    def others(self) -> int | None:
        """What other processes hold; None where the message does not tell what this one does."""
        if self.total is None or self.free is None or self.process is None:
            return None
        return max(self.total - self.free - self.process, 0)

    @property
    def cause(self) -> MemoryCause | None:
        """Why it did not fit; None where the numbers do not tell."""
        if self.asked is None or self.free is None or self.total is None:
            return None
        if self.asked > self.total:
            return "too_large"
        others, unused, left = self.others, self.unallocated, self.left or 0
        if others is not None and others >= _MUCH_ELSE * self.total and self.free + others >= self.asked:
            return "others"
        if unused is None or (self.process is None and left >= self.asked):
            return None  # the numbers contradict what happened, or leave out what matters
        if unused >= self.asked or (unused + left >= self.asked and unused > left):
            return "fragmented"
        return "too_large" if unused + left < self.asked else None


def memory_message(text: str) -> MemoryMessage:
    """The numbers that a message tells."""
    found = {name: _size(patterns, text) for name, patterns in _PATTERNS.items()}
    reserved = found.pop("reserved")
    if found["unallocated"] is None and reserved is not None and found["allocated"] is not None:
        found["unallocated"] = max(reserved - found["allocated"], 0)  # torch before 2.1 tells the sum
    return MemoryMessage(**found)


def _size(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        if (match := re.search(pattern, text)) is not None:
            return round(float(match[1]) * _UNITS[match[2]])
    return None
