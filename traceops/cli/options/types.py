"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number from 1. Raises ArgumentTypeError."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value
