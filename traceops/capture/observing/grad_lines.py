"""Whether a line of a script stands in a block in which torch keeps no gradients, by the block's own header."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WITH = re.compile(r"(?:async\s+)?with\b")
_WITHOUT = re.compile(r"\b(?:no_grad|inference_mode)\s*\(|\bset_grad_enabled\s*\(\s*False\b")
_AGAIN = re.compile(
    r"\benable_grad\s*\(|\bset_grad_enabled\s*\(\s*True\b|\binference_mode\s*\(\s*(?:mode\s*=\s*)?False\b"
)
_OTHER_SCOPE = re.compile(r"(?:async\s+)?def\b|class\b")
_MOST_LINES = 2_000


def without_gradients(lines: Sequence[str], line: int) -> bool:
    """Of line number `line`, from 1 on. A block in a function that calls this one is none of its own."""
    if not 0 < line <= len(lines):
        return False
    inner = _indent(lines[line - 1])
    for text in reversed(lines[max(line - 1 - _MOST_LINES, 0) : line - 1]):
        said, indent = text.strip(), _indent(text)
        if not said or said.startswith("#") or indent >= inner:
            continue
        inner = indent
        if _WITH.match(said) and _AGAIN.search(said):
            return False
        if _WITH.match(said) and _WITHOUT.search(said):
            return True
        if not inner or _OTHER_SCOPE.match(said):
            return False
    return False


def _indent(text: str) -> int:
    expanded = text.expandtabs(8)
    return len(expanded) - len(expanded.lstrip())
