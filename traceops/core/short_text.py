"""Names and text from traces, short enough to read."""

from __future__ import annotations

import re
import textwrap

_BRACKETS = re.compile(r"[<>(]")


def short_name(text: str, limit: int = 72) -> str:
    """A long name without return type, namespaces and parameters; the middle left out if still too long."""
    if len(text) <= limit:
        return text
    short = re.sub(r"^(void|static|inline|__global__)\s+", "", " ".join(text.split()))
    short = short.replace("(anonymous namespace)::", "")
    short = _without_parameters(short)
    short = re.sub(r"\b(?:\w+::)+(?=\w)", "", short) or text
    if len(short) <= limit:
        return short
    return f"{short[: limit * 2 // 3]}…{short[-(limit // 3) :]}"


def _without_parameters(text: str) -> str:
    """Cut the last parenthesis that stands outside template brackets and what follows it."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        char, at = bracket.group(), bracket.start()
        depth += (char == "<") - (char == ">")
        if char == "(" and depth <= 0 and at:
            return text[:at]
    return text


def one_line(text: str, limit: int) -> str:
    """Text from a trace on one line: white space joined, control characters made visible, not longer than `limit`."""
    joined = " ".join(text.split())
    clean = "".join(char if char.isprintable() else "\ufffd" for char in joined)
    return clean if len(clean) <= limit else f"{clean[: limit - 2].rstrip()} …"


def first_words(text: str, limit: int) -> str:
    """The same, cut between words, so that no number loses digits; within a word only where that is most of it."""
    words = textwrap.shorten(one_line(text, len(text) + 2), limit, placeholder=" …")
    return words if len(words) > limit // 2 or len(text) <= limit else one_line(text, limit)
