"""Steps and epochs in a log, as trainings write them: where, which, and whether the line was flushed at once."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterator
from typing import Literal, NamedTuple

Scale = Literal["steps", "bars", "batches", "epochs"]  # what is counted apart

# A step in a line, also behind a colour's escape, or in tqdm's bar. Each begins with few characters: that is fast.
_STEP = re.compile(rb"[sSiI](?:tep|TEP|ter(?:ation)?|TER(?:ATION)?)\b[^\d\n\r]{0,12}(\d{1,9})\b")
_BAR = re.compile(rb"/\d{1,9} \[\d{1,3}:[\d:]{2,6}<[^,\]\r\n]{0,20}, {1,3}\d[\d.]{0,10}(?:s/it|it/s)")
_BAR_WORDS = (b"s/it", b"it/s")  # a block without them holds no bar
_COUNT = re.compile(rb"(?<!\d)\d{1,9}\Z")
# Steps of an epoch: 'Epoch: [0]  [  10/5005]', 'Epoch [1][50/7330]', 'Epoch: 1 [640/60000 (1%)]', 'Train: 0 [50/1251'.
_OF_EPOCH = re.compile(
    rb"(?:[eE]poch|EPOCH|Train:)[^\n\r\[]{0,20}(?:\[\d{1,6}\])?[^\n\r\[]{0,4}\[ {0,8}(\d{1,9})/ {0,8}\d{1,9}[\] ]"
)
# Epochs: "{'loss': 2.3, 'epoch': 0.12}", 'epoch 3: loss 1.2'.
_EPOCH = re.compile(rb"(?:[eE]poch|EPOCH)['\"]?[ :=#]{1,4}(\d{1,7})(?:\.(\d{1,6}))?(?![\d.])")
_EPOCH_WORDS = (b"poch", b"POCH", b"Train:")
_IN_WORD = re.compile(rb"[A-Za-z_]\Z")
_MAY_PRECEDE = re.compile(rb"(?:\bglobal_|\x1b\[[\d;]{0,20}m)\Z")
_IN_MESSAGE = (b"rror", b"xception", b"raise ")  # 'ValueError: step 0 failed'
_BEFORE = 200  # bytes of a line before its step that are looked at
# Python's loggers flush each record, tqdm its bar; print() to a file does not.
_LEVEL = re.compile(rb"\b(?:DEBUG|INFO|WARNING)\b|(?:^|\[)[IW]\d{4} \d\d:")
_ISO = re.compile(rb"\b(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)")
_GLOG = re.compile(rb"(?:^|\[)[DIWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)")


Moment = tuple[str, int]  # the kind of clock, seconds


class Sighting(NamedTuple):
    """A step or an epoch (in millionths) at a place of a block. head: of its line, up to the step."""

    scale: Scale
    place: int
    number: int
    head: bytes

    @property
    def flushed(self) -> bool:
        """Whether the line came into the log when it was written, not when a buffer was full."""
        return self.scale == "bars" or _LEVEL.search(self.head) is not None

    @property
    def moment(self) -> Moment | None:
        """When the line says that it was written."""
        return moment_of(self.head)


def sightings(block: bytes) -> Iterator[Sighting]:
    """Each step and epoch of a block, in order of each kind."""
    for match in _STEP.finditer(block):
        before = _line_before(block, match.start())
        in_word = _IN_WORD.search(before) is not None and _MAY_PRECEDE.search(before) is None
        if not in_word and not any(word in before for word in _IN_MESSAGE):
            yield Sighting("steps", match.start(), int(match[1]), before)
    if any(word in block for word in _BAR_WORDS):
        for match in _BAR.finditer(block):
            if (count := _COUNT.search(block[max(match.start() - 10, 0) : match.start()])) is not None:
                before = _line_before(block, match.start())
                yield Sighting("bars", match.start(), int(count[0]), before)
    if any(word in block for word in _EPOCH_WORDS):
        for match in _OF_EPOCH.finditer(block):
            before = _line_before(block, match.start())
            yield Sighting("batches", match.start(), int(match[1]), before)
        for match in _EPOCH.finditer(block):
            before = _line_before(block, match.start())
            if not any(word in before for word in _IN_MESSAGE):
                millionths = 1_000_000 * int(match[1]) + int((match[2] or b"").ljust(6, b"0"))
                yield Sighting("epochs", match.start(), millionths, before)


def moment_of(head: bytes) -> Moment | None:
    """The time with which a line begins; None without a date in it."""
    if (iso := _ISO.search(head)) is not None:
        return _moment("iso", *map(int, iso.groups()))
    if (glog := _GLOG.search(head)) is not None:
        return _moment("glog", 2000, *map(int, glog.groups()))
    return None


def _moment(clock: str, *date: int) -> Moment | None:
    seconds = seconds_of(*date)
    return None if seconds is None else (clock, seconds)


def seconds_of(*date: int) -> int | None:
    """Year, month, day, hour, minute and second since 1970; None of numbers that are no date."""
    try:
        return timegm(date)
    except ValueError:
        return None


def _line_before(block: bytes, place: int) -> bytes:
    first = max(place - _BEFORE, 0)
    begin = max(block.rfind(b"\n", first, place), block.rfind(b"\r", first, place)) + 1
    return block[max(begin, first) : place]
