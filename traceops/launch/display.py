"""The training's output and one line of progress, on a terminal or in a log."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from traceops.capture.progress import Progress

# Kineto reports its own stages on stderr, whatever its log level: not an error, and not the training's.
_CHATTER = re.compile(
    rb"^(\[rank \d+\] )?(USDT|STAGE|INFO):\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ \w+\.cpp:\d+\]"
)
_SPAN_S = 10.0
_PLAIN_EVERY_S = 5.0
_TERMINAL_EVERY_S = 0.5


def is_chatter(line: bytes) -> bool:
    """Whether a line of stderr is Kineto talking about itself."""
    return _CHATTER.match(line) is not None


class Pace:
    """Turns the ranks' records into steps, step time and samples per second of the last seconds."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._seen: deque[tuple[int, int, int | None]] = deque()  # (time_ns, step, samples of all ranks)

    def line(self, records: Sequence[Progress], alive: int) -> str:
        """What to show; the step is that of the rank furthest behind."""
        behind = min(records, key=lambda record: record.step, default=None)
        people = f"{alive}/{self._ranks} ranks alive"
        if behind is None or behind.step == 0:
            return f"before the first step · {people}"
        known = [record.samples for record in records if record.samples is not None]
        now = (behind.time_ns, behind.step, sum(known) if known else None)
        if not self._seen or now[1] > self._seen[-1][1]:
            self._seen.append(now)
        while len(self._seen) > 2 and now[0] - self._seen[0][0] > _SPAN_S * 1e9:
            self._seen.popleft()
        parts = [f"step {behind.step} ({behind.phase})"]
        (t0, s0, n0), (t1, s1, n1) = self._seen[0], self._seen[-1]
        if s1 > s0 and t1 > t0:
            parts.append(f"{(t1 - t0) / (s1 - s0) / 1e6:.1f} ms/step")
            if n0 is not None and n1 is not None and n1 > n0:
                parts.append(f"{(n1 - n0) / ((t1 - t0) / 1e9):.0f} samples/s")
        return " · ".join([*parts, people])


class Screen:
    """Writes the training's output and the progress line without one tearing the other."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._shown = False
        self._last = time.monotonic()

    def output(self, data: bytes, *, error: bool) -> None:
        """Pass on what the training printed."""
        with self._lock:
            self._clear()
            stream = sys.stderr if error else sys.stdout
            stream.write(data.decode(errors="replace"))
            stream.flush()

    def progress(self, line: str) -> None:
        """Show `line`: at once on a terminal, every few seconds elsewhere."""
        now = time.monotonic()
        if now - self._last < (_TERMINAL_EVERY_S if self._terminal else _PLAIN_EVERY_S):
            return
        self._last = now
        with self._lock:
            self._clear()
            if self._terminal:
                columns = shutil.get_terminal_size().columns  # a longer line would wrap and stay
                sys.stderr.write(line[: columns - 1])
                self._shown = True
            else:
                sys.stderr.write(f"traceops: {line}\n")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """A line of traceops's own."""
        with self._lock:
            self._clear()
            sys.stderr.write(f"traceops: {text}\n")
            sys.stderr.flush()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block nothing else is written, so that a longer text stays in one piece."""
        with self._lock:
            self._clear()
            yield

    def _clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K")
            self._shown = False
