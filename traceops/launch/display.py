"""The training's output and one line of progress, on a terminal or in a log, and errors of our own that stay there."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, TypeVar

from msgspec import Struct

from traceops.core.claims import Wording
from traceops.core.redaction import redact_text
from traceops.core.text import printable

# Kineto reports its own stages on stderr, whatever its log level: not an error, and not the training's. Nor is that a
# machine has no GPU or no driver of one (CUDA's codes 100 and 35). A progress bar has not ended its line then: what it
# drew stays, and the line's end.
_KINETO = (rb"(?:(?:USDT|STAGE|INFO):{0}|ERROR:{0} gpuGetDeviceCount failed with code (?:35|100)\b).*").replace(
    b"{0}", rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ \w+\.cpp:\d+\]"
)
_CHATTER = re.compile(rb"^" + _KINETO + rb"\n?|" + _KINETO, re.MULTILINE)
_PLAIN_EVERY_S = 5.0  # in a log: at first, then each twentieth of the time that the run has taken
_PLAIN_PART = 0.05
_PLAIN_MOST_S = 60.0
_TERMINAL_EVERY_S = 0.5
_BAR_EVERY_S = 10.0
_REDRAW_S = 0.1
_BUSY_S = 1.0  # whoever reads our output may have stopped to; the run goes on


def without_chatter(lines: bytes) -> bytes:
    """Lines of stderr, less those in which Kineto talks about itself."""
    return _CHATTER.sub(b"", lines) if b".cpp:" in lines else lines


class LineSource(Struct, frozen=True):
    """Who writes: the mark before each of its lines, and whether to stderr. order: of bars, the least is shown."""

    mark: bytes = b""
    error: bool = False
    order: int = 0


class _Bar(Struct):
    text: bytes
    logged: bytes  # as it last stood in the log
    logged_s: float


class Screen:
    """Writes the training's output and the lines that change without one tearing the other.

    On a terminal the last lines are those that change: a progress bar of the ranks and our own progress. Elsewhere both
    are written now and then. Nobody may be there to read: then the output is lost, and the run goes on.
    shows_progress: whether our own progress is shown at all.
    """

    def __init__(self, *, shows_progress: bool = True) -> None:
        self._shows_progress = shows_progress
        self._terminal = sys.stderr.isatty()
        self._one_terminal = self._terminal and _same_file(sys.stdout, sys.stderr)
        self._lock = threading.Lock()
        self._open: dict[bool, LineSource] = {}  # whose line is not ended yet, on stderr and not
        self._bars: dict[LineSource, _Bar] = {}
        self._progress = ""
        self._shown = 0
        self._drawn_s = self._last = self._began = time.monotonic()

    @property
    def one_place(self) -> bool:
        """Whether stdout and stderr are one terminal, pipe or file."""
        return _same_file(sys.stdout, sys.stderr)

    def live(self, source: LineSource) -> bool:
        """Whether what `source` draws is seen as it changes, on a terminal."""
        return self._one_terminal or (self._terminal and source.error)

    def output(self, data: bytes, source: LineSource) -> None:
        """Pass on what the training printed; a last line without its end may be continued."""
        with self._lock:
            self._clear()
            if data:
                self._lines(data, source)
            self._draw()

    def bar(self, text: bytes, source: LineSource) -> None:
        """The progress bar of `source` as it looks now, b"" once it is final; shown, or thinned in a log."""
        with self._lock:
            now = time.monotonic()
            bar = self._bars.get(source)
            if not text:
                self._bars.pop(source, None)
            elif bar is None:
                self._bars[source] = _Bar(text, b"", now)
            else:
                bar.text = text
            if self.live(source):
                if now - self._drawn_s >= _REDRAW_S or not text:
                    self._clear()
                    self._draw()
            elif bar is not None and text not in (b"", bar.logged) and now - bar.logged_s >= _BAR_EVERY_S:
                bar.logged, bar.logged_s = text, now
                self._clear()
                self._lines(text + b"\n", source)

    def progress(self, line: str) -> None:
        """Show `line`: at once on a terminal, now and then in a log. Not while others write."""
        now = time.monotonic()
        pause_s = _TERMINAL_EVERY_S
        if not self._terminal:  # a log of days shall be read
            by_length_s = min(max(_PLAIN_EVERY_S, _PLAIN_PART * (now - self._began)), _PLAIN_MOST_S)
            pause_s = _PLAIN_MOST_S if line == self._progress else by_length_s
        if not self._shows_progress or now - self._last < pause_s or not self._lock.acquire(blocking=False):
            return
        try:
            self._last, self._progress = now, line
            self._clear()
            if self._terminal:
                self._draw()
            else:
                self._lines(f"traceops: {line}\n".encode(), _OURS)
        finally:
            self._lock.release()

    def say(self, text: str) -> None:
        """A line of traceops's own."""
        if not self._lock.acquire(timeout=_BUSY_S):
            return
        try:
            self._clear()
            self._lines(f"traceops: {printable(redact_text(text))}\n".encode(errors="backslashreplace"), _OURS)
            self._draw()
        finally:
            self._lock.release()

    def rest(self) -> None:
        """The ranks have ended, and with them the lines that change."""
        if self._lock.acquire(timeout=_BUSY_S):
            self._clear()
            self._bars, self._progress = {}, ""
            self._lock.release()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block nothing else is written, so that a longer text stays in one piece."""
        with self._lock:
            self._clear()
            self._end_line(_OURS)
            yield

    def _lines(self, data: bytes, source: LineSource) -> None:
        if self._open.get(source.error) != source:
            self._end_line(source)
            data = source.mark + data
        whole = data.endswith(b"\n")
        if source.mark:
            data = data.replace(b"\n", b"\n" + source.mark)
            data = data[: -len(source.mark)] if whole else data
        if not whole:
            self._open[source.error] = source
        else:
            self._open.pop(source.error, None)
        _write(source.error, data)

    def _end_line(self, source: LineSource) -> None:
        """End a line that another has begun on the same stream, or terminal."""
        for error in (False, True) if self._one_terminal else (source.error,):
            if self._open.pop(error, source) != source:
                _write(error, b"\n")

    def _draw(self) -> None:
        if not self._terminal:
            return
        self._drawn_s = time.monotonic()
        columns = shutil.get_terminal_size().columns - 1  # a longer line would wrap and stay
        bars = sorted((s for s in self._bars if self.live(s)), key=lambda source: source.order)
        lines = []
        if bars:
            others = len({source.order for source in bars}) - 1
            more = f" (and {others} more rank{'s' if others > 1 else ''})" if others else ""
            text = (bars[0].mark + self._bars[bars[0]].text).decode(errors="replace")
            lines.append(text[: max(columns - len(more), 0)] + more)
        lines += [self._progress] if self._progress else []
        if lines:
            self._end_line(_OURS)
            _write(True, "\n".join(line[:columns] for line in lines).encode(errors="replace"))
        self._shown = len(lines)

    def _clear(self) -> None:
        if self._shown:
            _write(True, b"\r\x1b[2K" + b"\x1b[1A\x1b[2K" * (self._shown - 1))
            self._shown = 0


_OURS = LineSource(error=True, order=-1)


def _write(error: bool, data: bytes) -> None:
    """To stderr or stdout; nothing where that is closed, or its terminal gone."""
    stream = sys.stderr if error else sys.stdout
    with suppress(OSError, ValueError, AttributeError):
        if (raw := getattr(stream, "buffer", None)) is None:  # a stand-in for text only
            stream.write(data.decode(errors="replace"))
        else:
            stream.flush()
            raw.write(data)
        stream.flush()


def _same_file(one: TextIO, other: TextIO) -> bool:
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError, AttributeError):
        return False


_text = Wording("launch", "chores")
T = TypeVar("T")


class Containment:
    """Runs what the training does not need, and says once of each that it failed. failed: what failed so far, with
    why."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.failed: dict[str, str] = {}

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Let no error out of the block; `what` it does, by its key in [chores] of words/launch.ini."""
        try:
            yield
        except Exception as error:  # MemoryError too; a signal that ends us goes through
            with suppress(Exception):  # of reporting it: the screen may be what fails
                if what not in self.failed:
                    self.failed[what] = reason(error)
                    self._screen.say(_text("failed", chore=_text(what), why=self.failed[what]))

    def made(self, what: str, make: Callable[[], T]) -> T | None:
        """What `make` returns; None where it fails, which is reported."""
        with self(what):
            return make()
        return None


def reason(error: Exception) -> str:
    """The error in the system's words, with the file where it names one."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
