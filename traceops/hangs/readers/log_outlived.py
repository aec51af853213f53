"""Failures in a log after which it shows steps: the program went on, or was started again."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from traceops.hangs.evidence import LogEvent, LogKind
from traceops.traces.text_lines import blocks

# A step in a line, also behind a colour's escape, or in tqdm's bar.
_STEP = re.compile(
    rb"(?:(?<![A-Za-z_])|(?<=\dm))(?:global_step|iteration|iter|step)\b[^\d\n\r]{0,12}(\d{1,9})\b"
    rb"|\b(\d{1,9})/\d{1,9} \[\d{1,3}:[\d:]{2,6}<[^,\]\r\n]{0,20}, {1,3}\d[\d.]{0,10}(?:s/it|it/s)",
    re.IGNORECASE,
)
_WORDS = (b"step", b"Step", b"STEP", b"iter", b"Iter", b"s/it", b"it/s")  # a block without them holds no step
_IN_MESSAGE = (b"rror", b"xception", b"raise ")  # 'ValueError: step 0 failed'
_BEFORE = 200  # bytes of a line before its step that are looked at
# What processes had printed into their buffers before they ended, a log may show after the traceback. Steps count from
# there on, and only those that are beyond the steps in between.
_BUFFERED = 1 << 16
_MOST = 1_000_000  # steps of one file
_WENT_ON = 50  # lines after an exception that was outlived before: it was outlived again
_FAILURES: tuple[LogKind, ...] = (
    "error", "memory", "cuda", "nccl", "connection", "timeout", "mismatch", "missing", "monitor",
)  # fmt: skip


def without_outlived(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, those that were not its end as 'outlived'. Raises InputError where it cannot be read.

    Where processes ended in the end and nothing else that is told explains it, all stay as they are.
    """
    lines = sorted({event.line for event in events if event.kind not in ("status", "trouble", "outlived")})
    if not lines:
        return events
    offsets, steps, last = _places(path, lines)
    outlived = _outlived(offsets, steps)
    known = {_raised_at(event) for event in events if event.line in outlived} - {None}
    outlived |= {
        event.line for event in events if _raised_at(event) in known and last - event.line > _WENT_ON
    }
    judged = tuple(
        replace(event, kind="outlived")
        if event.line in outlived and event.kind not in ("status", "trouble")
        else event
        for event in events
        if not (event.kind == "status" and _is_before(event.line, outlived))
    )
    kinds = {event.kind for event in judged}
    return events if "exit" in kinds and kinds.isdisjoint(_FAILURES) else judged


def _raised_at(event: LogEvent) -> tuple[str, str, int | None] | None:
    """Which exception, and the line of code that raised it; None of what has no traceback."""
    if event.kind == "exit" or not event.frames:
        return None
    return event.text.partition(":")[0], event.frames[0].file, event.frames[0].line


def _is_before(line: int, outlived: set[int]) -> bool:
    return bool(outlived) and line <= max(outlived)


def _outlived(offsets: dict[int, int], steps: Sequence[tuple[int, int]]) -> set[int]:
    """The lines after which at least two steps were made that no text shortly after them has."""
    if len(steps) < 2:
        return set()
    at = [offset for offset, _ in steps]
    first, second = [-1] * (len(steps) + 1), [-1] * (len(steps) + 1)  # the two furthest steps from each on
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i][1]
        first[i], second[i] = first[i + 1], second[i + 1]
        if step > first[i]:
            first[i], second[i] = step, first[i + 1]
        elif second[i] < step < first[i]:
            second[i] = step
    found = set()
    for line, offset in offsets.items():
        begin, end = bisect_left(at, offset), bisect_right(at, offset + _BUFFERED)
        between = max((step for _, step in steps[begin:end]), default=-1)
        if second[end] > between:
            found.add(line)
    return found


def _places(path: str, lines: Sequence[int]) -> tuple[dict[int, int], list[tuple[int, int]], int]:
    """Where in the file each of `lines` begins, its steps with their place from the first of them on, its last line."""
    offsets: dict[int, int] = {}
    steps: list[tuple[int, int]] = []
    wanted, begin, last = 0, 0, 0
    for number, block in blocks(path):
        count = block.count(b"\n")
        if wanted < len(lines) and lines[wanted] <= number + count:
            for line, place in _line_places(block, number):
                while wanted < len(lines) and lines[wanted] <= line:
                    offsets[lines[wanted]] = begin + place
                    wanted += 1
        if offsets and len(steps) < _MOST and any(word in block for word in _WORDS):
            steps += ((begin + match.start(), int(match[1] or match[2])) for match in _steps(block))
        begin += len(block)
        last = number + count
    return offsets, steps, last


def _line_places(block: bytes, number: int) -> Iterator[tuple[int, int]]:
    place = 0
    yield number, 0
    while (place := block.find(b"\n", place) + 1) > 0:
        number += 1
        yield number, place


def _steps(block: bytes) -> Iterator[re.Match[bytes]]:
    for match in _STEP.finditer(block):
        begin = max(block.rfind(b"\n", 0, match.start()) + 1, match.start() - _BEFORE)
        before = block[begin : match.start()]
        if not any(word in before for word in _IN_MESSAGE):
            yield match
