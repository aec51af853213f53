"""When a wait began, by its limit, and what the log has of that second."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from traceops.core.text import first_words
from traceops.hangs.evidence import LogEvent, Since
from traceops.hangs.readers.prefixes import without_prefixes
from traceops.traces.text_lines import blocks, lines

_TIME = re.compile(rb"(?<![\d:])([0-2]\d):([0-5]\d):([0-5]\d)(?![\d:])")
_SPENT = re.compile(r"Timeout\(ms\)=(\d{1,12})\)(?: ran for (\d{1,12}) milliseconds)?")
_LEVELS = re.compile(
    r"^[\d\-:.,TZ\s|\[\]]{8,80}(?:- ?)?(?:[\w.]{1,60} - )?(?:\[?(?:DEBUG|INFO|WARNING|ERROR)\]?[\s:-]{0,4})?"
)
_HEAD = 120  # bytes in which a line has its time
_DAY = 86_400
_MOST_TEXT = 120
_LONGEST_WAIT = 12 * 3600  # within which a time of day tells which day


def waits_since(events: Sequence[LogEvent]) -> list[Since]:
    """When the waits that timed out began, earliest first, those of one second together, of logs that tell the time.

    Raises InputError where a file cannot be read.
    """
    found: list[Since] = []
    for path in dict.fromkeys(event.path for event in events if event.kind == "timeout"):
        late = [event for event in events if event.kind == "timeout" and event.path == path and event.rank is not None]
        times = dict(_times_of(path, {event.line for event in late}))
        began: dict[int, list[int]] = {}
        for event in late:
            spent = _spent_s(event)
            if spent is not None and event.line in times and event.rank is not None:
                began.setdefault((times[event.line] - spent) % _DAY, []).append(event.rank)
        if began:
            first = min(began, key=lambda second: (-len(began[second]), second))
            clock = f"{first // 3600:02}:{first // 60 % 60:02}:{first % 60:02}"
            said = tuple(_said_at(path, clock.encode(), min(event.line for event in late)))
            found.append(Since(tuple(sorted(set(began[first]))), clock, path, said[-2:]))
    return found


def _spent_s(event: LogEvent) -> int | None:
    """How long it had waited, in whole seconds: its limit, within the watchdog's round."""
    told = _SPENT.search(event.text)
    if told is None:
        return None
    spent = int(told[1]) // 1000
    return spent if 0 < spent <= _LONGEST_WAIT else None


def _times_of(path: str, wanted: set[int]) -> Iterator[tuple[int, int]]:
    """The time of day of some lines, in seconds: the last in their heads, which is the program's own."""
    for number, block in blocks(path):
        last = number + block.count(b"\n")
        if not any(number <= line <= last for line in wanted):
            continue
        for at, line in enumerate(block.split(b"\n"), number):
            if at in wanted and (times := _TIME.findall(line[:_HEAD])):
                hour, minute, second = map(int, times[-1])
                yield at, 3600 * hour + 60 * minute + second


def _said_at(path: str, clock: bytes, before: int) -> Iterator[tuple[int, str]]:
    for number, block in blocks(path):
        if number >= before:
            return
        if clock not in block:
            continue
        for at, line in lines(block, number):
            if at < before and clock.decode() in line[:_HEAD]:
                body = without_prefixes(line)
                said = _LEVELS.sub("", body).strip()
                if said:
                    yield at, first_words(said, _MOST_TEXT)
