"""A variable that NCCL, torch or a network library reads, and whether a value is one it takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

# NCCL reads numbers by strtoll: what is none, like "true", counts as 0 and is not complained about.
NUMBER = range(-(2**63), 2**63)
COUNT = range(1, 2**63)
SWITCH = range(2)
TORCH_SWITCH = ("1", "0", "true", "false", "t", "f", "yes", "no", "y", "n")
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


@dataclass(frozen=True)
class Variable:
    """What is known of one variable.

    values: the words it takes, whatever their case; a range for numbers; None where anything goes. since and until:
    the first and the last version (``2.28``) of NCCL, or of torch for names with TORCH, that knows it; empty where it
    is older, or still there.
    """

    name: str
    values: tuple[str, ...] | range | None
    does: str
    since: str = ""
    until: str = ""

    def takes(self, value: str) -> bool:
        """Whether `value` is one of those allowed; an empty one counts as not set."""
        if self.values is None or not value.strip():
            return True
        if isinstance(self.values, range):
            number = as_number(value)
            return number is not None and number in self.values
        return value.strip().casefold() in {word.casefold() for word in self.values}

    def allowed(self) -> str:
        """The values it takes, in words."""
        if self.values is None:
            return "anything"
        if not isinstance(self.values, range):
            return ", ".join(self.values)
        if self.values == NUMBER:
            return "a number"
        if self.values in (SWITCH, COUNT):
            return "0 or 1" if self.values == SWITCH else "a number from 1"
        return f"{self.values[0]} to {self.values[-1]}"


def as_number(value: str) -> int | None:
    """The number that C's strtoll reads, in base 8, 10 or 16; None where the text does not begin with one."""
    match = _NUMBER.match(value)
    if match is None:
        return None
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") and len(digits) > 1 else 10
    return int(match[1] + digits, base)


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``2.28.9`` is (2, 28, 9), ``2.11.0+cu130`` (2, 11, 0), empty text ()."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
