"""Failures in a log after which it shows steps: the program went on, or was started again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from traceops.hangs.evidence import LogEvent
from traceops.traces.text_lines import blocks

# A step in a line, also behind a colour's escape, or in tqdm's bar. Each begins with few characters: that is fast.
_STEP = re.compile(rb"[sSiI](?:tep|TEP|ter(?:ation)?|TER(?:ATION)?)\b[^\d\n\r]{0,12}(\d{1,9})\b")
_BAR = re.compile(rb"/\d{1,9} \[\d{1,3}:[\d:]{2,6}<[^,\]\r\n]{0,20}, {1,3}\d[\d.]{0,10}(?:s/it|it/s)")
_BAR_WORDS = (b"s/it", b"it/s")  # a block without them holds no bar
_COUNT = re.compile(rb"(?<!\d)\d{1,9}\Z")
# Steps of an epoch: 'Epoch: [0]  [  10/5005]', 'Epoch [1][50/7330]', 'Epoch: 1 [640/60000 (1%)]', 'Train: 0 [50/1251'.
_OF_EPOCH = re.compile(
    rb"(?:[eE]poch|EPOCH|Train:)[^\n\r\[]{0,20}(?:\[\d{1,6}\])?[^\n\r\[]{0,4}\[ {0,8}(\d{1,9})/ {0,8}\d{1,9}[\] ]"
)
# Epochs: "{'loss': 2.3, 'epoch': 0.12}", 'epoch 3: loss 1.2'. They are counted apart from steps.
_EPOCH = re.compile(rb"(?:[eE]poch|EPOCH)['\"]?[ :=#]{1,4}(\d{1,7})(?:\.(\d{1,6}))?(?![\d.])")
_EPOCH_WORDS = (b"poch", b"POCH", b"Train:")
_IN_WORD = re.compile(rb"[A-Za-z_]\Z")
_MAY_PRECEDE = re.compile(rb"(?:\bglobal_|\x1b\[[\d;]{0,20}m)\Z")
_IN_MESSAGE = (b"rror", b"xception", b"raise ")  # 'ValueError: step 0 failed'
_BEFORE = 200  # bytes of a line before its step that are looked at
# What processes had printed into their buffers before they ended, a log may show after the traceback. Steps count from
# there on, and only those that are beyond the steps in between.
_BUFFERED = 1 << 16
_WENT_ON = 50  # lines after an exception that was outlived before: it was outlived again


def without_outlived(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, those that were not its end as 'outlived'. Raises InputError where it cannot be read."""
    lines = sorted({event.line for event in events if event.kind not in ("status", "trouble", "outlived")})
    if not lines:
        return events
    outlived, last = _read(path, lines)
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
    return judged


def _raised_at(event: LogEvent) -> tuple[str, str, int | None] | None:
    """Which exception, and the line of code that raised it; None of what has no traceback."""
    if event.kind == "exit" or not event.frames:
        return None
    return event.text.partition(":")[0], event.frames[0].file, event.frames[0].line


def _is_before(line: int, outlived: set[int]) -> bool:
    return bool(outlived) and line <= max(outlived)


def _read(path: str, lines: Sequence[int]) -> tuple[set[int], int]:
    """Those of `lines` after which two steps were made that no text shortly after them has, and the last line."""
    windows: list[_Window] = []
    outlived: set[int] = set()
    wanted, begin, last = 0, 0, 0
    for number, block in blocks(path):
        last = number + block.count(b"\n")
        if wanted < len(lines) and lines[wanted] <= last:
            for line, place in _line_places(block, number):
                while wanted < len(lines) and lines[wanted] <= line:
                    windows.append(_Window(lines[wanted], begin + place))
                    wanted += 1
        if windows:
            for scale, found in (("steps", _steps(block)), ("epochs", _epochs(block))):
                counts = [(begin + place, count) for place, count in found]
                furthest = [(begin, count) for count in sorted({count for _, count in counts})[-2:]]
                for window in windows:
                    for place, count in furthest if window.offset + _BUFFERED < begin else counts:
                        window.take(scale, place, count)
            outlived |= {window.line for window in windows if window.is_outlived}
            windows = [window for window in windows if not window.is_outlived]
        begin += len(block)
    return outlived, last


@dataclass
class _Window:
    """A failure in a line: the furthest count shortly after it, and those beyond that later on, of each scale."""

    line: int
    offset: int
    between: dict[str, int] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    is_outlived: bool = False

    def take(self, scale: str, offset: int, count: int) -> None:
        if offset < self.offset:
            return
        if offset <= self.offset + _BUFFERED:
            self.between[scale] = max(self.between.get(scale, -1), count)
        elif count > self.between.get(scale, -1):
            self.is_outlived |= self.beyond.get(scale, count) != count
            self.beyond[scale] = count


def _line_places(block: bytes, number: int) -> Iterator[tuple[int, int]]:
    place = 0
    yield number, 0
    while (place := block.find(b"\n", place) + 1) > 0:
        number += 1
        yield number, place


def _steps(block: bytes) -> Iterator[tuple[int, int]]:
    """Place and number of each step, in order of each kind."""
    for match in _STEP.finditer(block):
        before = _line_before(block, match.start())
        in_word = _IN_WORD.search(before) is not None and _MAY_PRECEDE.search(before) is None
        if not in_word and not any(word in before for word in _IN_MESSAGE):
            yield match.start(), int(match[1])
    if any(word in block for word in _BAR_WORDS):
        for match in _BAR.finditer(block):
            if (count := _COUNT.search(block[max(match.start() - 10, 0) : match.start()])) is not None:
                yield match.start(), int(count[0])

    if any(word in block for word in _EPOCH_WORDS):
        for match in _OF_EPOCH.finditer(block):
            yield match.start(), int(match[1])


def _epochs(block: bytes) -> Iterator[tuple[int, int]]:
    """Place and number of each epoch, in millionths."""
    if not any(word in block for word in _EPOCH_WORDS):
        return
    for match in _EPOCH.finditer(block):
        if not any(word in _line_before(block, match.start()) for word in _IN_MESSAGE):
            yield match.start(), 1_000_000 * int(match[1]) + int((match[2] or b"").ljust(6, b"0"))


def _line_before(block: bytes, place: int) -> bytes:
    return block[max(block.rfind(b"\n", 0, place) + 1, place - _BEFORE) : place]
