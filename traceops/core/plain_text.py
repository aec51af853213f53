"""Text from a trace, a path or a store, before it reaches a terminal, a table or a page."""

from __future__ import annotations

# Signs that a spreadsheet takes for the begin of a formula, also in their full-width form. Our CSV files put ' before.
FORMULA = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")

# Signs that turn the direction of what follows, in a page or table beyond the name that holds them.
TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))

# Spaces of fixed width, as in '34\u202f999', are none that Python calls printable.
_SPACES = dict.fromkeys(map(ord, "\u00a0\u2009\u202f"), " ")


def printable(text: str) -> str:
    """Text from a trace or a path without the control characters that would steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text.translate(_SPACES))
