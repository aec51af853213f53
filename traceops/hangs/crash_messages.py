"""The numbers in an out-of-memory message and what they come to; and what a message says is not finite."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

# 'Loss is nan', 'grad_norm: inf', 'non-finite loss', 'found NaN in local grad norm'; a loss scale is no loss.
_VALUE = r"(?<!\w)(?:nan|inf|infinite|infinity|not finite|non-?finite)\b"
_WHAT = r"(?<![A-Za-z])(?:loss(?:es)?(?![ _-]?scal)|grad(?:ient)?s?(?:[ _]norms?)?)(?![A-Za-z_])"
# How programs word it that end themselves because of it: the words are any program's own.
_SAID = re.compile(rf"(?P<of>{_WHAT})[^.\n]{{0,40}}{_VALUE}|{_VALUE}[^.\n]{{0,40}}(?P<to>{_WHAT})", re.IGNORECASE)
_NAN = re.compile(r"(?<!\w)nan\b", re.IGNORECASE)
_INF = re.compile(r"(?<!\w)inf(?:inite|inity)?\b", re.IGNORECASE)
_NORM = re.compile(r"(?<![A-Za-z])norms?\b", re.IGNORECASE)
_BEHIND = 60  # characters: 'non-finite loss, ending training tensor([nan, nan], …'
_AHEAD = 40  # 'The total norm of order 2.0 for gradients from `parameters` is non-finite'


def says_not_finite(text: str) -> bool:
    """Whether a message says so of the loss or of gradients."""
    return _SAID.search(text) is not None


def what_is_not_finite(text: str) -> str:
    """'the loss is NaN', 'gradients are inf', 'the loss is not finite (inf or NaN)': no more than the message says."""
    said = _SAID.search(text)
    if said is None:
        return "a value is not finite (inf or NaN)"
    value = _value(said[0]) or _value(text[said.start() : said.end() + _BEHIND]) or "not finite (inf or NaN)"
    if (said["of"] or said["to"]).lower().startswith("loss"):
        return f"the loss is {value}"
    of_norm = _NORM.search(text, max(0, said.start() - _AHEAD), said.end()) is not None
    return f"the norm of gradients is {value}" if of_norm else f"gradients are {value}"


def _value(told: str) -> str | None:
    """Which of both; None where neither is told, or both are."""
    nan, inf = _NAN.search(told) is not None, _INF.search(told) is not None
    return None if nan == inf else "NaN" if nan else "inf"


# The numbers in an out-of-memory message of torch, in the wordings of 1.x to 2.x, and what they come to.


MemoryCause = Literal["fragmented", "full", "others", "outside", "outside_own", "too_large", "refused"]

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(\d{1,12}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB|TiB)"
_PATTERNS = {
    "asked": (rf"Tried to allocate {_SIZE}",),
    "total": (rf"total capac(?:i)?ty of {_SIZE}", rf"; {_SIZE} total capacity"),
    "free": (rf"of which {_SIZE} is free", rf"; {_SIZE} free"),
    "process": (rf"this process has {_SIZE} memory in use",),
    "allocated": (rf"allocated memory {_SIZE} is allocated by PyTorch", rf"; {_SIZE} already allocated"),
    "unallocated": (rf"and {_SIZE} is reserved by PyTorch but unallocated", rf"; {_SIZE} cached"),
    "allowed": (rf"(?<!\d )(?<!\d\. ){_SIZE} allowed;",),  # not the end of a number that a terminal broke
    "reserved": (rf"; {_SIZE} reserved in total",),
    "pools": (rf"with {_SIZE} allocated in private pools",),
}  # fmt: skip
_MUCH_ELSE = 0.15  # of the GPU: more than a context, NCCL and the workspaces of libraries take
_LITTLE = 0.05  # of what the process may have: in pieces, and no more than what a full GPU has lying about


class MemoryMessage(Struct, frozen=True):
    """Bytes; None where the message does not tell. free: of the GPU. unallocated: torch holds and does not use it.

    allowed: that the process may have of the GPU, as it asked itself (set_per_process_memory_fraction). pools: of
    `allocated`, in pools of their own (CUDA graphs), which nothing else may use.
    """

    asked: int | None = None
    total: int | None = None
    free: int | None = None
    process: int | None = None
    allocated: int | None = None
    unallocated: int | None = None
    allowed: int | None = None
    pools: int | None = None

    @property
    def left(self) -> int | None:
        """What the process could still get: what is free, or less where it is not allowed that much."""
        if self.allowed is None or self.free is None or self.allocated is None:
            return self.free
        return min(self.free, max(self.allowed - self.allocated - (self.unallocated or 0), 0))

    @property
    def others(self) -> int | None:
        """What other processes hold; None where the message does not tell what this one does."""
        own = self._own
        if self.total is None or self.free is None or own is None:
            return None
        return max(self.total - self.free - own, 0)

    @property
    def outside(self) -> int | None:
        """What neither is free, nor of this process's torch, nor known to be of others; None where not told."""
        if None in (self.total, self.free, self.allocated, self.unallocated):
            return None
        assert self.total is not None and self.free is not None
        return max(self.total - self.free - (self.others or 0) - self._of_torch, 0)

    @property
    def cause(self) -> MemoryCause | None:
        """Why it did not fit; None where the numbers do not tell, or contradict each other."""
        if self.asked is None or self.free is None or self.total is None or self.free > self.total:
            return None
        if self.asked > self.total:
            return "too_large"
        others, outside, unused, left = self.others or 0, self.outside or 0, self.unallocated, self.left or 0
        if left >= self.asked:
            return "refused" if self.allowed is None else None
        pieces = unused or 0
        if self._decides(others) and others > pieces:
            return "others"
        if unused is None:
            return None
        if self._decides(outside) and outside > pieces:
            return "outside" if self._own is None else "outside_own"
        if pieces >= self.asked or (pieces + left >= self.asked and pieces > left):
            return "fragmented" if pieces >= _LITTLE * self._may_have else "full"
        return "too_large" if pieces + left < self.asked else None

    @property
    def _own(self) -> int | None:
        """What this process holds; None where not told, or less than its torch does: the driver told none."""
        return None if self.process is None or self.process < self._of_torch else self.process

    @property
    def _of_torch(self) -> int:
        return (self.allocated or 0) + (self.unallocated or 0)

    @property
    def _may_have(self) -> int:
        return min(self.total or 0, self.allowed or self.total or 0)

    def _decides(self, held: int) -> bool:
        """Whether much is held elsewhere, and would have been enough."""
        if self.total is None or self.free is None or self.asked is None or self.left != self.free:
            return False  # where it has less left than is free, its own limit was in the way
        return held >= _MUCH_ELSE * self.total and self.free + held >= self.asked


def memory_message(text: str) -> MemoryMessage:
    """The numbers that a message tells."""
    found = {name: _size(patterns, text) for name, patterns in _PATTERNS.items()}
    reserved = found.pop("reserved")
    if found["unallocated"] is None and reserved is not None and found["allocated"] is not None:
        found["unallocated"] = max(reserved - found["allocated"], 0)  # torch 1.4 to 2.0 tells the sum
    return MemoryMessage(**found)


def _size(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        if (match := re.search(pattern, text)) is not None:
            return round(float(match[1]) * _UNITS[match[2]])
    return None
