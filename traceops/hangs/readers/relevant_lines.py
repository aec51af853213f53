"""The lines of a log that are worth a look: of a paste all, of a large log its end and the blocks with known words."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from traceops.hangs.readers.learned_prefixes import common_prefix
from traceops.hangs.readers.line_prefixes import host_prefix
from traceops.hangs.readers.wrapped_lines import unwrapped
from traceops.traces.text_lines import blocks, holds_any, lines, words_in

_SAMPLE = 1 << 15  # bytes
_EDGE, _LAST = 16, 4  # blocks
_PASTE = 1 << 18  # bytes; a file up to this is read whole, whatever it holds


def relevant_lines(path: str, needles: Sequence[bytes], busy: Callable[[], bool]) -> Iterator[tuple[int, str, bool]]:
    """Numbered lines; those of a paste without the spaces that all of them begin with, those of hosts without names.

    Beside each: whether a needle may stand in it. In a large log one in each block is much, and few lines hold it.
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
            first, sample = False, [line for _, line in lines(block[:_SAMPLE], number)]
            prefix = host_prefix(sample) or common_prefix([line[indent:] for line in sample])
        own = (
            (at, (line if prefix is None else prefix.sub("", line, count=1)))
            for at, line in _without_indent(lines(block, number), indent)
        )
        if is_paste:
            yield from ((at, line, True) for at, line in unwrapped(list(own)))
            continue
        # An escape may stand within a needle.
        found = None if b"\x1b" in block else [word.decode() for word in words_in(block, needles)]
        tells = holds_any(block, needles) if found is None else bool(found)
        passed = None if tells or busy() else (number, block)
        if passed is None:
            for at, line in own:
                yield at, line, found is None or any(map(line.__contains__, found))
    for at, line in lines(passed[1], passed[0]) if passed is not None else ():
        yield at, line if prefix is None else prefix.sub("", line, count=1), True


def edge_blocks(path: str) -> Iterator[tuple[int, bytes]]:
    """The blocks at a log's beginning and at its end: of a log of a few megabytes all."""
    last: deque[tuple[int, bytes]] = deque(maxlen=_EDGE)
    for count, block in enumerate(blocks(path)):
        if count < _EDGE:
            yield block
        else:
            last.append(block)
    yield from last


def last_blocks(path: str) -> Iterable[tuple[int, bytes]]:
    """The blocks at a log's end."""
    return deque(blocks(path), maxlen=_LAST)


def _without_indent(numbered: Iterable[tuple[int, str]], indent: int) -> Iterator[tuple[int, str]]:
    for number, line in numbered:
        yield number, line[indent:] if indent and line[:indent].isspace() else line


def _indent(block: bytes) -> int:
    """By how much all lines are indented, as people paste them."""
    return min((len(line) - len(line.lstrip(b" \t")) for line in block.splitlines() if line.strip()), default=0)
