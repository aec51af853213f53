"""Steps and times in a log: progress bars of tqdm, and lines with a time and a step."""

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise
from statistics import median

from traceops.hangs.evidence import LoggedProgress
from traceops.traces.text_lines import blocks

_TQDM = re.compile(
    rb"\b(\d{1,9})/\d{1,9} \[(\d{1,3}(?::\d\d)?:\d\d)<[^,\]\r\n]{0,20}, {1,3}(\d{1,9}(?:\.\d{1,6})?)(s/it|it/s)"
)
_STEP = re.compile(
    rb"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[^\n\r]{0,80}?"
    rb"\b(?:global_step|iteration|iter|step)\b[^\d\n\r]{0,8}(\d{1,9})\b"
)
_BAR_WORDS = (b"s/it", b"it/s")  # a block without them holds no bar
_STEP_WORDS = (b"step", b"iter")
_MOST = 100_000  # points of one file
_EDGE = 1 << 14  # bytes
_FEWEST = 3  # points that a pace can be told from
_SLOWER = 5.0  # times
_LONG = 60.0  # seconds: less is a checkpoint


def read_progress(path: str, rank: int | None = None) -> LoggedProgress | None:
    """How a log's steps went; None where it tells of fewer than three, or where nothing was slow.

    Raises InputError where the file cannot be read.
    """
    bars: list[tuple[int, float]] = []  # step, seconds
    lines: list[tuple[int, float]] = []
    shown: float | None = None
    for number, whole in blocks(path):
        block = whole if number == 1 else _edges(whole)
        for match in _TQDM.finditer(block) if any(map(block.__contains__, _BAR_WORDS)) else ():
            _add(bars, int(match[1]), _seconds(match[2].decode()))
            rate = float(match[3])
            shown = rate if match[4] == b"s/it" else 1 / rate if rate else None
        for match in _STEP.finditer(block) if any(map(block.__contains__, _STEP_WORDS)) else ():
            moment = _moment(f"{match[1].decode()} {match[2].decode()}")
            if moment is not None:
                _add(lines, int(match[3]), moment)
        if len(bars) + len(lines) > _MOST:
            break
    points = bars if len(bars) >= len(lines) else lines
    return _judged(path, rank, points, shown if points is bars else None)


def _edges(block: bytes) -> bytes:
    """A block's beginning and end: enough to see a pace, and the log's last steps."""
    return block if len(block) <= 2 * _EDGE else block[:_EDGE] + b"\n" + block[-_EDGE:]


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


def _moment(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
