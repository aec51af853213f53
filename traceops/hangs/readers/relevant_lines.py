"""The lines of a log that are worth a look: of a paste all, of a large log its end and the blocks with known words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from traceops.traces.text_lines import blocks, holds_any, lines

_PASTE = 1 << 18  # bytes; a file up to this is read whole, whatever it holds


def relevant_lines(
    path: str, needles: Sequence[bytes], busy: Callable[[], bool]
) -> Iterator[tuple[int, str]]:
    """Numbered lines; those of a paste without the spaces that all of them begin with.

    busy: whether the next lines matter, whatever they hold. Raises InputError where the file cannot be read.
    """
    file = Path(path)
    is_paste = file.is_file() and file.stat().st_size <= _PASTE
    indent = None if is_paste else 0
    passed: tuple[int, bytes] | None = None
    for number, block in blocks(path):
        if indent is None:
            indent = _indent(block)
        passed = None if is_paste or busy() or holds_any(block, needles) else (number, block)
        if passed is None:
            for line_number, line in lines(block, number):
                yield line_number, line[indent:] if line[:indent].isspace() else line
    if passed is not None:
        yield from lines(passed[1], passed[0])


def _indent(block: bytes) -> int:
    """By how much all lines are indented, as people paste them."""
    return min((len(line) - len(line.lstrip(b" ")) for line in block.splitlines() if line.strip()), default=0)
