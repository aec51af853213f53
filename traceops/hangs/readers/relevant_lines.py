"""The lines of a log that are worth a look: of a paste all, of a large log its end and the blocks with known words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from traceops.hangs.readers.line_prefixes import host_prefix
from traceops.traces.text_lines import blocks, holds_any, lines

_SAMPLE = 1 << 15  # bytes
_PASTE = 1 << 18  # bytes; a file up to this is read whole, whatever it holds


def relevant_lines(
    path: str, needles: Sequence[bytes], busy: Callable[[], bool]
) -> Iterator[tuple[int, str]]:
    """Numbered lines; those of a paste without the spaces that all of them begin with, those of hosts without names.

    busy: whether the next lines matter, whatever they hold. Raises InputError where the file cannot be read.
    """
    file = Path(path)
    is_paste = file.is_file() and file.stat().st_size <= _PASTE
    indent = None if is_paste else 0
    passed: tuple[int, bytes] | None = None
    prefix: re.Pattern[str] | None = None
    first = True
    for number, block in blocks(path):
        if indent is None:
            indent = _indent(block)
        if first:
            first, prefix = False, host_prefix([line for _, line in lines(block[:_SAMPLE], number)])
        passed = None if is_paste or busy() or holds_any(block, needles) else (number, block)
        if passed is None:
            for line_number, line in lines(block, number):
                line = line[indent:] if line[:indent].isspace() else line
                yield line_number, line if prefix is None else prefix.sub("", line, count=1)
    for line_number, line in lines(passed[1], passed[0]) if passed is not None else ():
        yield line_number, line if prefix is None else prefix.sub("", line, count=1)


def _indent(block: bytes) -> int:
    """By how much all lines are indented, as people paste them."""
    return min((len(line) - len(line.lstrip(b" ")) for line in block.splitlines() if line.strip()), default=0)
