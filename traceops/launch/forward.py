"""Forwards what torchrun and the ranks print: one thread, linear in the bytes, in bounded memory; a bar is a line."""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from msgspec import Struct

from traceops.core.claims import Wording
from traceops.launch.display import LineSource, Screen, without_chatter

_text = Wording("launch", "run")
PIECE_BYTES = 1 << 16  # a longer line is passed on in pieces
_MOST_ROWS = 16  # bars that a program draws below each other
_SETTLED_S = 0.5  # between moving down to draw a bar and back up lie microseconds
_PARTIAL_S = 1.0
_CONTROL = re.compile(rb"\x1b\[([0-9;?]*)([AGJK])")
_CUT_SEQUENCE = re.compile(rb"\x1b(\[[0-9;?]{0,16})?\Z")
_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class _Row(Struct):
    """One line of the terminal. drawn: the program went back to its begin, as one does for a bar."""

    text: bytes = b""
    drawn: bool = False


class TerminalRows:
    """Takes the bytes of one program, and gives back those of lines that are final. The work is linear in the bytes,
    and no more than some pieces are kept of them. A line is final once it is ended; a line that was drawn anew only
    once the program has gone on below it, since tqdm and rich go back up to their bars."""

    def __init__(self) -> None:
        self._rows = [_Row()]
        self._at = 0
        self._back = False  # the next byte goes to the begin of the line
        self._carry = b""  # a sequence or a \r\n that the last piece cut
        self._moved = self._written = 0.0
        self._drawn_last: _Row | None = None

    @property
    def live(self) -> bytes:
        """The bar as it looks now, or a line that is not ended; nothing if there is neither."""
        row = self._drawn_last if self._drawn_last is not None else self._rows[-1]
        return _COLOURS.sub(b"", row.text).rstrip()

    @property
    def draws(self) -> bool:
        """Whether there is a bar that is not final."""
        return self._drawn_last is not None

    def feed(self, data: bytes, now: float) -> bytes:
        """The bytes that are final now. The last may be a piece of a line without its end."""
        self._written = now
        data = (self._carry + data).replace(b"\r\n", b"\n")
        self._carry = b""
        if data.endswith(b"\r"):
            self._carry, data = b"\r", data[:-1]
        elif (cut := _CUT_SEQUENCE.search(data, max(len(data) - 20, 0))) is not None:
            self._carry, data = cut[0], data[: cut.start()]
        final: list[bytes] = []
        last = max(data.rfind(b"\r"), *(found.start() for found in _CONTROL.finditer(data)), -1)
        end = data.find(b"\n", last) + 1 if last >= 0 else 0
        drawn = end if end or last < 0 else len(data)  # up to the end of the last line with anything special
        if drawn:
            self._lines(data[:drawn], now, final)
        if len(self._rows) == 1 and not self._rows[0].drawn and not self._back:
            final.append(self._plain(data[drawn:]))
        else:
            self._lines(data[drawn:], now, final)
        return b"".join(final)

    def _lines(self, data: bytes, now: float, final: list[bytes]) -> None:
        for number, line in enumerate(data.split(b"\n")):
            if number:
                self._down(now, final)
            position = 0
            for control in _CONTROL.finditer(line):
                self._line(line[position : control.start()], final)
                position = control.end()
                self._sequence(control, now)
            self._line(line[position:], final)

    def _line(self, text: bytes, final: list[bytes]) -> None:
        """Text with carriage returns: what follows the last one stands in the place of all before."""
        seen = text.rstrip(b"\r")
        _, returned, rest = seen.rpartition(b"\r")
        self._back = self._back or bool(returned)
        self._write(rest, final)
        self._back = self._back or len(seen) < len(text)

    def settle(self, now: float, *, partial: bool) -> bytes:
        """What is final because nothing came after it for a while; `partial`: also a line without its end."""
        final: list[bytes] = []
        if self._at and self._at == len(self._rows) - 1 and now - self._moved > _SETTLED_S:
            self._commit(self._at, final)
        row = self._rows[-1]
        if partial and len(self._rows) == 1 and row.text and not row.drawn and now - self._written > _PARTIAL_S:
            final.append(row.text)
            row.text = b""
        return b"".join(final)

    def end(self) -> bytes:
        """The rest, as it is when the program has ended."""
        self._carry = b""
        final: list[bytes] = []
        last = self._rows[-1]
        self._commit(len(self._rows) - 1, final)
        if last.text.strip() or not last.drawn:
            final.append(last.text)
        self._rows, self._at, self._drawn_last = [_Row()], 0, None
        return b"".join(final)

    def _plain(self, data: bytes) -> bytes:
        row = self._rows[0]
        cut = data.rfind(b"\n") + 1
        if not cut and len(row.text) + len(data) < PIECE_BYTES:
            row.text += data
            return b""
        cut = cut or _whole_characters(data)
        final, row.text = row.text + data[:cut], data[cut:]
        if len(row.text) >= PIECE_BYTES:
            cut = _whole_characters(row.text)
            final, row.text = final + row.text[:cut], row.text[cut:]
        return final

    def _write(self, text: bytes, final: list[bytes]) -> None:
        if not text:
            return
        row = self._rows[self._at]
        if self._back:
            row.text, row.drawn, self._back = b"", True, False
            self._drawn_last = row
        room = PIECE_BYTES - len(row.text)
        if len(text) < room:
            row.text += text
        elif row.drawn or self._at < len(self._rows) - 1:  # no terminal shows more of a bar
            row.text += text[: max(room, 0)]
        else:
            self._commit(self._at, final)
            cut = _whole_characters(text)
            final.append(row.text + text[:cut])
            row.text = text[cut:]

    def _down(self, now: float, final: list[bytes]) -> None:
        row, self._back, self._moved = self._rows[self._at], False, now
        self._at += 1
        if self._at < len(self._rows):
            return
        self._rows.append(_Row())
        if not row.drawn:
            self._commit(self._at, final)  # it goes on below its bars
        elif len(self._rows) > _MOST_ROWS:
            self._commit(1, final)

    def _sequence(self, control: re.Match[bytes], now: float) -> None:
        number, letter = control[1], control[2]
        if letter == b"A":
            self._at = max(self._at - int(number or b"1"), 0) if number.isdigit() or not number else self._at
            self._moved = now
        elif letter == b"G":
            self._back = True
        elif letter in b"KJ":
            row = self._rows[self._at]
            if self._back or number == b"2":
                row.text, row.drawn = b"", row.drawn or self._back

    def _commit(self, count: int, final: list[bytes]) -> None:
        """The first `count` rows are final; a bar that was wiped away was nothing."""
        for row in self._rows[:count]:
            if not row.drawn or _COLOURS.sub(b"", row.text).strip():
                final.append((row.text.rstrip() if row.drawn else row.text) + b"\n")
            if row is self._drawn_last:
                self._drawn_last = None
        self._rows = self._rows[count:]
        self._at = max(self._at - count, 0)


def _whole_characters(data: bytes) -> int:
    """How many bytes of `data` to pass on so that no character of UTF-8 is cut."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # a character begins here
            needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) - back if needs > back else len(data)
    return len(data)


_READ_BYTES = 1 << 18
_POLL_S = 0.1
_OPEN_PIPE_S = 2.0  # the ranks have ended, and somebody else has their pipe open
_RANK_KNOWN_S = 30.0  # on several machines, the ranks say themselves which they are
_KEPT_BYTES = 1 << 20
# From the first of these lines on, torchrun reports the failure at length; we do so in two lines.
_FAILURE = re.compile(rb"torch/distributed/elastic/.*(Sending process|failed \(exitcode)|^Traceback ", re.M)

RankOf = Callable[[int], int | None]


class Shown(Struct, frozen=True):
    """What of the ranks' output is shown. all_ranks: not only rank 0's. marks: with ``[rank N]`` before each line."""

    all_ranks: bool = True
    marks: bool = True

    def mark(self, rank: int | None, local: int) -> bytes:
        """What stands before the lines of a rank, or of the process with this local rank where it is not known."""
        if not self.marks:
            return b""
        return b"[rank %d] " % rank if rank is not None else b"[local rank %d] " % local

    def shows(self, rank: int | None, local: int) -> bool:
        """Whether that rank's lines are shown while it runs."""
        return self.all_ranks or (local if rank is None else rank) == 0


ALL_SHOWN = Shown()


class Forwarder:
    """Reads torchrun's pipes and the files that the ranks write their output to, and shows it all.

    pipes: of torchrun's stdout and stderr. logs: folder in which the supervisor makes the files of the ranks; None
    where they write to the pipes as well. rank_of: the rank that has a local rank, None as long as it is not known.
    shown: of the files; what comes through the pipes is all shown.
    """

    def __init__(
        self,
        pipes: tuple[IO[bytes], IO[bytes]],
        logs: Path | None,
        rank_of: RankOf,
        screen: Screen,
        shown: Shown | None = None,
    ) -> None:
        self._screen, self._kept_open, self._logs, self._rank_of = screen, pipes, logs, rank_of
        self._shown = shown or ALL_SHOWN
        self._quiet: set[Path] = set()  # files of ranks that are not shown
        self._own = _Own(muting=logs is not None)
        stdout, stderr = (pipe.fileno() for pipe in pipes)
        self._pipes = {
            stdout: _Stream(stdout, LineSource(), screen, None, chatters=False),
            stderr: _Stream(stderr, LineSource(error=True), screen, self._own, chatters=True),
        }
        self._files: dict[Path, _Stream] = {}
        self._found: dict[Path, float] = {}  # files of ranks that are not known yet, and since when
        self._over = threading.Event()
        self._given_up = threading.Event()
        self._moved_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="traceops-forward", daemon=True)
        self._thread.start()

    @property
    def has_failure(self) -> bool:
        """Whether torchrun has begun to report a failure."""
        return self._own.muted

    def mute(self) -> None:
        """Show nothing more of what torchrun prints itself."""
        self._own.muted = True

    def own_words(self) -> str:
        """What torchrun printed itself, or the end of it."""
        return self._own.text()

    def finish(self, patience_s: float, hurry: Callable[[], bool]) -> None:
        """The ranks have ended: pass on the rest. Not for longer than `patience_s` after the last byte was taken."""
        self._moved_s = time.monotonic()
        self._over.set()
        while self._thread.is_alive() and time.monotonic() - self._moved_s < patience_s and not hurry():
            self._thread.join(_POLL_S)
        self._given_up.set()
        self._screen.rest()

    def _run(self) -> None:
        try:
            return self._forward()
        except Exception as error:  # a mistake of ours
            self._screen.say(_text("not_shown", kind_of_error=type(error).__name__, error=error))
        # Read the pipes all the same, or torchrun would wait for ever to write to them.
        while self._pipes and not self._given_up.is_set():
            ready, _, _ = select.select(list(self._pipes), [], [], _POLL_S)
            for descriptor in ready:
                if not os.read(descriptor, _READ_BYTES):
                    del self._pipes[descriptor]
            if not ready and self._over.is_set():
                return

    def _forward(self) -> None:
        quiet_since = time.monotonic()
        while not self._given_up.is_set():
            over = self._over.is_set()  # asked before the reading: what is written until then is read
            self._find_files(over)
            # Read a piece of every stream that has one; return the number of bytes.
            read = sum(stream.read() for stream in self._files.values())
            ready: list[int] = []
            if self._pipes:
                ready, _, _ = select.select(list(self._pipes), [], [], 0 if read else _POLL_S)
            elif not read:
                time.sleep(_POLL_S)
            for descriptor in ready:
                if (size := self._pipes[descriptor].read()) == 0:
                    self._pipes.pop(descriptor).end()
                read += size
            for stream in (*self._pipes.values(), *self._files.values()):
                stream.settle()
            now = time.monotonic()
            if read:
                self._moved_s = quiet_since = now
            elif over and (not self._pipes or now - quiet_since > _OPEN_PIPE_S):
                break
        if not self._given_up.is_set():
            for stream in (*self._pipes.values(), *self._files.values()):
                stream.end()
        for stream in self._files.values():
            stream.close()

    def _find_files(self, over: bool) -> None:
        for path in self._logs.glob("*/attempt_*/*/*.log") if self._logs is not None else ():
            if path in self._files or path in self._quiet or not path.parent.name.isdigit():
                continue
            local, now = int(path.parent.name), time.monotonic()
            rank = self._rank_of(local)
            if rank is None and not over and now - self._found.setdefault(path, now) < _RANK_KNOWN_S:
                continue
            if not self._shown.shows(rank, local):
                self._quiet.add(path)
                continue
            source = LineSource(self._shown.mark(rank, local), path.name == "stderr.log", local)
            with suppress(OSError):
                chatters = path.name != "stdout.log"
                self._files[path] = _Stream(os.open(path, os.O_RDONLY), source, self._screen, None, chatters=chatters)


class _Own:
    """torchrun's own lines. muting: whether they are known to be its own, and not those of ranks."""

    def __init__(self, *, muting: bool) -> None:
        self._muting = muting
        self._kept = bytearray()
        self.muted = False

    def take(self, lines: bytes) -> bytes:
        """Keep the lines; returns what to show of them."""
        self._kept += lines
        if len(self._kept) > 2 * _KEPT_BYTES:
            del self._kept[:-_KEPT_BYTES]
        if self.muted and self._muting:
            return b""
        failure = _FAILURE.search(lines) if self._muting else None
        if failure is None:
            return lines
        self.muted = True
        return lines[: lines.rfind(b"\n", 0, failure.start() + 1) + 1]

    def text(self) -> str:
        return bytes(self._kept).decode(errors="replace")


class _Stream:
    """One of the streams, on its way from `descriptor` to the screen. chatters: Kineto may talk about itself in it."""

    def __init__(
        self, descriptor: int, source: LineSource, screen: Screen, own: _Own | None, *, chatters: bool
    ) -> None:
        self._descriptor, self._source, self._screen, self._own = descriptor, source, screen, own
        self._chatters, self._live = chatters, screen.live(source)
        self._rows = TerminalRows()
        self._bar = b""

    def read(self) -> int:
        """Pass the next piece on; returns its size."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except OSError:  # a disk that fails: the rest is lost here, the run goes on
            return 0
        if data:
            self._show(self._rows.feed(data, time.monotonic()))
        return len(data)

    def settle(self) -> None:
        """Show what is final by now."""
        self._show(self._rows.settle(time.monotonic(), partial=not self._live))

    def end(self) -> None:
        """Show the rest."""
        self._show(self._rows.end())

    def close(self) -> None:
        os.close(self._descriptor)

    def _show(self, final: bytes) -> None:
        if self._chatters:
            final = without_chatter(final)
        if self._own is not None:
            final = self._own.take(final)
        if final:
            self._screen.output(final, self._source)
        bar = self._rows.live if self._rows.draws or self._live else b""
        if bar or self._bar:
            self._bar = bar
            self._screen.bar(bar, self._source)
