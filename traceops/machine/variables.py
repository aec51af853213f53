"""Variables that NCCL, torch and network libraries read, and which values they take, from `variables.ini`."""

from __future__ import annotations

import configparser
import re
from functools import cache
from pathlib import Path

from msgspec import Struct

# NCCL reads numbers by strtoll: what is none, like "true", counts as 0 and is not complained about.
NUMBER = range(-(2**63), 2**63)
COUNT = range(1, 2**63)
SWITCH = range(2)
DISTANCES = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "0", "1", "2", "3", "4", "5")
FAMILIES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "TORCH_DISTRIBUTED_", "GLOO_", "OFI_NCCL_")
TORCH_SWITCH = ("1", "0", "true", "false", "t", "f", "yes", "no", "y", "n")
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


class Variable(Struct, frozen=True):
    """What is known of one variable. values: the words it takes, whatever their case; a range for numbers; None where
    anything goes. since and until: the first and the last version (``2.28``) of NCCL, or of torch for names with TORCH,
    that knows it; empty where it is older, or still there."""

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


class Known(Struct, frozen=True):
    """All variables that are known. renamed: a variable's old name with the new one and since when it is right ("torch
    2.2"). unread: names that scripts carry along though nothing reads them, with what to do instead. unrelated: names
    that images and build scripts set."""

    variables: dict[str, Variable]
    renamed: dict[str, tuple[str, str]]
    unread: dict[str, str]
    unrelated: frozenset[str]


@cache
def known_variables() -> Known:
    """What `variables.ini` beside this module says."""
    table = configparser.ConfigParser(delimiters=("=",), comment_prefixes=(";",), interpolation=None)
    table.optionxform = str  # type: ignore[method-assign, assignment]
    table.read_string(Path(__file__).with_name("variables.ini").read_text(encoding="utf-8"))
    variables = {}
    for section in ("nccl", "torch", "network"):
        for name, row in table[section].items():
            values, since, until, does = (part.strip() for part in row.split("|", 3))
            variables[name] = Variable(name, _values(values), does, since, until)
    renamed = {
        name: (new.strip(), since.strip()) for name, row in table["renamed"].items() for new, since in [row.split("|")]
    }
    return Known(variables, renamed, dict(table["read by nothing"]), frozenset(table["of no concern"]))


def _values(text: str) -> tuple[str, ...] | range | None:
    named: dict[str, tuple[str, ...] | range | None] = {
        "any": None, "number": NUMBER, "count": COUNT, "from-0": range(2**63), "switch": TORCH_SWITCH,
        "distance": DISTANCES,
    }  # fmt: skip
    if text in named:
        return named[text]
    if between := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", text):
        return range(int(between[1]), int(between[2]) + 1)
    return tuple(text.split())


def as_number(value: str) -> int | None:
    """The number that C's strtoll reads, in base 8, 10 or 16; None where the text does not begin with one."""
    if (match := _NUMBER.match(value)) is None:
        return None
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") and len(digits) > 1 else 10
    return int(match[1] + digits, base)


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``2.28.9`` is (2, 28, 9), ``2.11.0+cu130`` (2, 11, 0), empty text ()."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
