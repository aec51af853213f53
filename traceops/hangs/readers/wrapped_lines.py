"""A paste whose long lines a terminal or an e-mail broke: its frames show that, and where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from traceops.hangs.readers.line_prefixes import without_prefixes

_NARROWEST, _WIDEST = 50, 400  # characters
_FRAME = re.compile(r"\s{0,40}File \"")
_WHOLE = re.compile(r"\s{0,40}File \"[^\"]{1,4096}\", line \d{1,9}(?:, in .{1,400})?$")
_TO_NAME = re.compile(r"\s{0,40}File \"[^\"]{1,4096}\", line \d{1,9}, in \S{1,400}$")
_MOST_OF_FRAME = 4  # lines
# What begins a line, and continues none.
_BEGINS = re.compile(
    r"\s{0,40}(?:File \"|Traceback \(most|During handling of |The above exception |\^{3}|~{3}|={5}|-{5}|\*{5})"
    r"|\[(?:rank|default|trainer)\d|\[?[EWIF]\d{3,4} \d\d:|\[?\d{4}-\d\d-\d\d[ T]|[\w.-]{1,99}:\d{1,9}:\d{1,9} \["
    r"|(?:srun|slurmstepd|terminate called|Fatal Python error)\b|[\w.]{0,99}(?:Error|Exception|Interrupt|Warning): "
)


class _Wrap(NamedTuple):
    """at: characters of the longest line. glue: what stood where a line is broken, a space or nothing."""

    at: int
    glue: str


def unwrapped(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Numbered lines, those that were broken as one, with the number of the first; else unchanged."""
    bodies = [without_prefixes(line) for _, line in lines]  # as an e-mail quotes it
    wrap = _wrap_of(bodies)
    if wrap is None:
        yield from lines
        return
    held: tuple[int, str] | None = None
    last = ""
    for (number, _), line in zip(lines, bodies, strict=True):
        if held is not None and _continues(last, line, wrap):
            held = held[0], f"{held[1]}{wrap.glue}{line}"
        else:
            if held is not None:
                yield held
            held = number, line
        last = line
    if held is not None:
        yield held


def _wrap_of(lines: Sequence[str]) -> _Wrap | None:
    """How lines were broken: a frame is whole only together with what follows it, at the same width everywhere."""
    widest = max(map(len, lines), default=0)
    if not _NARROWEST <= widest <= _WIDEST:
        return None
    hard = word = 0
    for at, line in enumerate(lines):
        if _FRAME.match(line) is None or _WHOLE.match(line) is not None:
            continue
        following = lines[at + 1 : at + _MOST_OF_FRAME]
        if len(line) == widest and _is_frame(line, following, ""):
            hard += 1
        elif _is_frame(line, following, " ") and len(line) + 1 + _first_word(following[0]) > widest:
            word += 1
    if not hard and not word:
        return None
    return _Wrap(widest, "" if hard >= word else " ")


def _is_frame(line: str, following: Sequence[str], glue: str) -> bool:
    for more in following:
        if not more.strip() or _BEGINS.match(more) is not None:
            return False
        line = f"{line}{glue}{more}"
        if _TO_NAME.match(line) is not None:
            return True
    return False


def _first_word(line: str) -> int:
    return len(line.split(None, 1)[0]) if line.strip() else 0


def _continues(last: str, line: str, wrap: _Wrap) -> bool:
    if not line.strip() or _BEGINS.match(line) is not None or len(set(last)) < 5:  # a rule is no text
        return False
    if not wrap.glue:
        return len(last) == wrap.at
    return not line[0].isspace() and bool(last.strip()) and len(last) + 1 + _first_word(line) > wrap.at
