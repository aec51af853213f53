"""Steps, epochs and times in a log: where each is, when it was written, and where steps became slow."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

from msgspec import Struct

from traceops.core.text import first_words
from traceops.hangs.evidence import LogEvent, LoggedProgress, Since
from traceops.hangs.readers.prefixes import without_prefixes
from traceops.traces.text_index import backwards, indexed, spread_blocks
from traceops.traces.text_lines import lines

Scale = Literal["steps", "bars", "batches", "epochs"]  # what is counted apart
# A step in a line, also behind a colour's escape, or in tqdm's bar. Each begins with few characters: that is fast.
_STEP = re.compile(rb"[sSiI](?:tep|TEP|ter(?:ation)?|TER(?:ATION)?)\b(?!/)[^\d\n\r]{0,12}(\d{1,9})\b")
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
    for clock, pattern, year in (("iso", _ISO, ()), ("glog", _GLOG, (2000,))):
        if (match := pattern.search(head)) is not None:
            seconds = seconds_of(*year, *map(int, match.groups()))
            return None if seconds is None else (clock, seconds)
    return None


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


_HEAD = 200  # bytes of a line in which its time is looked for
_OF_KERNEL = (b"NVRM: ", b" kernel: ", b"Killed process")


class LogTimes(Struct, frozen=True):
    """first, last: of the lines that have one; last_step: of the last step whose line has one. steps: it shows any.
    pids: those of the asked that it names as a process of the job."""

    first: Moment | None
    last: Moment | None
    last_step: Moment | None
    steps: bool
    pids: frozenset[int]


def read_times(path: str, pids: Sequence[int]) -> LogTimes:
    """When a log was written, and which of `pids` it names. Raises InputError where the file cannot be read."""
    first: Moment | None = None
    steps, named = False, set[int]()
    for piece in indexed(path):
        block = piece.data()
        first = first or _first_moment(block.splitlines())
        steps = steps or any(sightings(block))
        named |= {pid for pid in pids if pid not in named and _names(block, pid)}
    last: Moment | None = None
    last_step: Moment | None = None
    for piece in backwards(path) if first is not None else ():
        block = piece.data()
        last = last or _first_moment(block.splitlines()[::-1])
        if steps and last_step is None:
            seen = [told for sight in sightings(block) if (told := sight.moment) is not None]
            last_step = seen[-1] if seen else None
        if last is not None and (last_step is not None or not steps):
            break
    return LogTimes(first, last, last_step, steps, frozenset(named))


def _first_moment(lines: Iterable[bytes]) -> Moment | None:
    own = (line for line in lines if not any(words in line for words in _OF_KERNEL))
    return next((moment for line in own if (moment := moment_of(line[:_HEAD])) is not None), None)


def _names(block: bytes, pid: int) -> bool:
    """Whether a line names the process as the job's: torchrun's report, NCCL's 'host:pid:tid', Ray's 'pid=4711'."""
    digits = b"%d" % pid
    if digits not in block:
        return False
    named = re.compile(rb"(?:\bpid[=: ]{1,3}|:|\[)" + digits + rb"\b(?!\.)")
    return any(named.search(line) for line in _lines_with(digits, block) if not any(map(line.__contains__, _OF_KERNEL)))


def _lines_with(words: bytes, block: bytes) -> Iterator[bytes]:
    """The lines that hold the words: the others are not even divided."""
    at = block.find(words)
    while at >= 0:
        begin = block.rfind(b"\n", 0, at) + 1
        end = block.find(b"\n", at) + 1 or len(block)
        yield from (line for line in block[begin:end].splitlines() if words in line)
        at = block.find(words, end)


_TQDM = re.compile(
    rb"\b(\d{1,9})/\d{1,9} \[(\d{1,3}(?::\d\d)?:\d\d)<[^,\]\r\n]{0,20}, {1,3}(\d{1,9}(?:\.\d{1,6})?)(s/it|it/s)"
)
_TIMED_STEP = re.compile(
    rb"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[^\n\r]{0,80}?"
    rb"\b(?:global_step|iteration|iter|step)\b[^\d\n\r]{0,8}(\d{1,9})\b"
)
_STEP_WORDS = (b"step", b"iter")
_MOST = 100_000  # points of one file
_MOST_BLOCKS = 512  # of 256 kB, in each of which steps are looked for
_EDGE = 1 << 14  # bytes
_FEWEST = 3  # points that a pace can be told from
_SLOWER = 5.0  # times
_LONG = 60.0  # seconds: less is a checkpoint


def read_progress(path: str, rank: int | None = None) -> LoggedProgress | None:
    """How a log's steps went; None where it tells of fewer than three, or where nothing was slow. Raises InputError
    where the file cannot be read."""
    bars: list[tuple[int, float]] = []  # step, seconds
    lines: list[tuple[int, float]] = []
    shown: float | None = None
    for piece in spread_blocks(path, _MOST_BLOCKS):
        block = piece.data()
        if piece.number > 1 and len(block) > 2 * _EDGE:  # enough to see a pace, and the log's last steps
            block = block[:_EDGE] + b"\n" + block[-_EDGE:]
        for match in _TQDM.finditer(block) if any(map(block.__contains__, _BAR_WORDS)) else ():
            _add(bars, int(match[1]), _seconds(match[2].decode()))
            rate = float(match[3])
            shown = rate if match[4] == b"s/it" else 1 / rate if rate else None
        for match in _TIMED_STEP.finditer(block) if any(map(block.__contains__, _STEP_WORDS)) else ():
            if (moment := _seconds_of_date(f"{match[1].decode()} {match[2].decode()}")) is not None:
                _add(lines, int(match[3]), moment)
        if len(bars) + len(lines) > _MOST:
            break
    points = bars if len(bars) >= len(lines) else lines
    return _judged(path, rank, points, shown if points is bars else None)


def _judged(path: str, rank: int | None, points: list[tuple[int, float]], shown: float | None) -> LoggedProgress | None:
    paces = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(points)]
    step, elapsed = points[-1] if points else (0, 0.0)
    if shown is not None and step and elapsed and shown > 2 * _SLOWER * elapsed / step:
        return LoggedProgress(path, rank, step, elapsed / step, shown=shown, elapsed_s=elapsed)
    if len(points) < _FEWEST or points[-1][1] - points[-2][1] < _LONG:
        return None
    if (usual := median(paces[:-1])) <= 0 or paces[-1] < _SLOWER * usual:
        return None
    return LoggedProgress(path, rank, points[-2][0], usual, pace_s=paces[-1], until=points[-1][0])


def _add(points: list[tuple[int, float]], step: int, seconds: float) -> None:
    """A step after the last; where the count or the clock goes back, another bar or run begins."""
    if points and (step < points[-1][0] or seconds < points[-1][1]):
        points.clear()
    if not points or step > points[-1][0]:
        points.append((step, seconds))


def _seconds(text: str) -> float:
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part)
    return float(total)


def _seconds_of_date(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


_TIME = re.compile(rb"(?<![\d:])([0-2]\d):([0-5]\d):([0-5]\d)(?![\d:])")
_SPENT = re.compile(r"Timeout\(ms\)=(\d{1,12})\)(?: ran for (\d{1,12}) milliseconds)?")
_LEVELS = re.compile(
    r"^[\d\-:.,TZ\s|\[\]]{8,80}(?:- ?)?(?:[\w.]{1,60} - )?(?:\[?(?:DEBUG|INFO|WARNING|ERROR)\]?[\s:-]{0,4})?"
)
_CLOCK_HEAD = 120  # bytes in which a line has its time
_DAY = 86_400
_MOST_TEXT = 120
_LONGEST_WAIT = 12 * 3600  # within which a time of day tells which day


def waits_since(events: Sequence[LogEvent]) -> list[Since]:
    """When the waits that timed out began, earliest first, those of one second together, of logs that tell the time.
    Raises InputError where a file cannot be read."""
    found: list[Since] = []
    for path in dict.fromkeys(event.path for event in events if event.kind == "timeout"):
        late = [event for event in events if event.kind == "timeout" and event.path == path and event.rank is not None]
        times = dict(_times_of(path, {event.line for event in late}))
        began: dict[int, list[int]] = {}
        for event in late:
            if (spent := _spent_s(event)) is not None and event.line in times and event.rank is not None:
                began.setdefault((times[event.line] - spent) % _DAY, []).append(event.rank)
        if began:
            first = min(began, key=lambda second: (-len(began[second]), second))
            clock = f"{first // 3600:02}:{first // 60 % 60:02}:{first % 60:02}"
            said = tuple(_said_at(path, clock.encode(), min(event.line for event in late)))
            found.append(Since(tuple(sorted(set(began[first]))), clock, path, said[-2:]))
    return found


def clock_of(line: bytes) -> str | None:
    """The time of day in the head of a line, '10:00:06': the last, which is the program's own; None without one."""
    times = _TIME.findall(line[:_CLOCK_HEAD])
    return b":".join(times[-1]).decode() if times else None


def _spent_s(event: LogEvent) -> int | None:
    """How long it had waited, in whole seconds: its limit, within the watchdog's round."""
    if (told := _SPENT.search(event.text)) is None:
        return None
    spent = int(told[1]) // 1000
    return spent if 0 < spent <= _LONGEST_WAIT else None


def _times_of(path: str, wanted: set[int]) -> Iterator[tuple[int, int]]:
    """The time of day of some lines, in seconds: the last in their heads, which is the program's own."""
    for piece in indexed(path):
        if not any(piece.number <= line <= piece.behind for line in wanted):
            continue
        for at, line in enumerate(piece.data().split(b"\n"), piece.number):
            if at in wanted and (times := _TIME.findall(line[:_CLOCK_HEAD])):
                hour, minute, second = map(int, times[-1])
                yield at, 3600 * hour + 60 * minute + second


def _said_at(path: str, clock: bytes, before: int) -> Iterator[tuple[int, str]]:
    for piece in indexed(path):
        if piece.number >= before:
            return
        if clock not in piece.data():
            continue
        for at, line in lines(piece.data(), piece.number):
            if at < before and clock.decode() in line[:_CLOCK_HEAD]:
                body = without_prefixes(line)
                if said := _LEVELS.sub("", body).strip():
                    yield at, first_words(said, _MOST_TEXT)
