"""How wide lines may be, and which signs a stream can show."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import textwrap
from typing import TextIO

USUAL_WIDTH = 80  # of what is no terminal: a pipe, a file, a job's log
_LEAST_WIDTH = 20
_ERRORS = "traceops-signs"

# What our signs are where only ASCII can be shown; of the rest accents go, and then ? stands for it.
_ASCII = {
    "–": "-", "—": "-", "‑": "-", "−": "-", "·": "|", "•": "*", "…": "...", "→": "->", "←": "<-", "⇒": "=>", "×": "x",
    "÷": "/", "µ": "u", "μ": "u", "█": "#", "▏": "|", "✖": "x", "▲": "!", "●": "o", "✔": "+", "≥": ">=", "≤": "<=",
    "≈": "~", "±": "+-", "⁹": "9", "⁻": "-", "²": "2", "³": "3", "⁴": "4", "‘": "'", "’": "'", "“": '"', "”": '"',
    "\u00a0": " ", "\u2009": " ", "\u202f": " ",
}  # fmt: skip


def width_of(file: TextIO) -> int | None:
    """Columns of a terminal, as COLUMNS or it says; 80 of a pipe or file; None of text that stays in memory."""
    try:
        descriptor = file.fileno()
    except (OSError, ValueError, AttributeError):
        descriptor = None
    if descriptor is None and not file.isatty():
        return None
    asked = os.environ.get("COLUMNS", "")
    columns = int(asked) if asked.isdecimal() else 0
    if not columns and descriptor is not None and file.isatty():
        with contextlib.suppress(OSError):
            columns = os.get_terminal_size(descriptor).columns
    return max(columns or USUAL_WIDTH, _LEAST_WIDTH)


def broken_at_words(text: str, width: int | None, hanging: int = 0) -> list[str]:
    """Lines no wider than that, if it is given; further ones begin with blanks.

    A word that is wider, as a path may be, is not broken. What stands before the first word stays.
    """
    if width is None or len(text) <= width:
        return [text]
    indent = max(hanging, len(text) - len(text.lstrip(" ")))
    lines = textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * min(indent, width // 2),
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return lines or [text]


def show_our_signs(stream: TextIO) -> None:
    """Have a stream show ASCII for signs that it lacks, and never fail for one."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="ascii" if _ascii_wanted() else None, errors=_ERRORS)


def as_shown(text: str, stream: TextIO) -> str:
    """Text in the signs that a stream of `show_our_signs` has: '...' for '…', so that its width can be counted."""
    if stream.errors != _ERRORS:
        return text
    return text.encode(stream.encoding, _ERRORS).decode(stream.encoding)


def json_for(stream: TextIO, text: str) -> str:
    """JSON as the stream can show it: what it lacks is escaped and means the same."""
    if (stream.encoding or "utf-8").lower().startswith("utf"):
        return text
    return re.sub(r"[^\x00-\x7f]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _ascii_wanted() -> bool:
    """Whether somebody set a locale of ASCII: Python takes UTF-8 all the same, unless it was told an encoding."""
    told = "PYTHONIOENCODING" in os.environ or "PYTHONUTF8" in os.environ
    return not told and os.environ.get("LC_ALL") in ("C", "POSIX")


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """Of codecs' error handlers: what stands for characters that cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(sign, "?") for sign in lacking), error.end


codecs.register_error(_ERRORS, _in_ascii)
