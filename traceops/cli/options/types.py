"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
import re

_MOST_NUMBERS = 1_000_000  # in a list such as 0-3: more is a slip


def positive(text: str) -> int:
    """A whole number from 1. Raises ArgumentTypeError."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """`0,2-3` as (0, 2, 3). Raises ArgumentTypeError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or len(found) + last - first >= _MOST_NUMBERS:
            raise argparse.ArgumentTypeError(f"takes numbers and ranges such as 0,2-3, not {text!r}")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))
