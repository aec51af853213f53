"""What a program writes, in lines: a progress bar that it draws anew is one line, whose last state counts."""

from __future__ import annotations

import re

from msgspec import Struct

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
    """Takes the bytes of one program, and gives back those of lines that are final.

    The work is linear in the bytes, and no more than some pieces are kept of them. A line is final once it is ended; a
    line that was drawn anew only once the program has gone on below it, since tqdm and rich go back up to their bars.
    """

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
        if self._is_plain:
            final.append(self._plain(data[drawn:]))
        else:
            self._lines(data[drawn:], now, final)
        return b"".join(final)

    @property
    def _is_plain(self) -> bool:
        return len(self._rows) == 1 and not self._rows[0].drawn and not self._back

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
