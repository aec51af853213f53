"""Text from a trace, a path or a store, before it reaches a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text from a trace or a path without the control characters that would steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
