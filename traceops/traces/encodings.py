"""Text in UTF-16, as Windows' shells write it, as UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_SAMPLE = 1 << 12  # bytes
_SHARE = 0.7  # of every second byte that is NUL in text of the West
_FEWEST = 16  # bytes


def encoding_of(head: bytes) -> str | None:
    """The encoding of a text that begins so, where it is UTF-16; None for all others, as UTF-8."""
    if (marked := _MARKS.get(head[:2])) is not None:
        return marked
    sample = head[:_SAMPLE]
    if len(sample) < _FEWEST:
        return None
    odd, even = (sample[first::2] for first in (1, 0))
    for encoding, zeros, letters in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros.count(0) >= _SHARE * len(zeros) and letters.count(0) * 20 < len(letters):
            return encoding
    return None


def as_utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Chunks of a text, in UTF-8 where they are UTF-16."""
    decoder = None
    for number, chunk in enumerate(chunks):
        if number == 0 and (encoding := encoding_of(chunk)) is not None:
            decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        if decoder is None:
            yield chunk
        elif text := decoder.decode(chunk).removeprefix("\ufeff"):
            yield text.encode(errors="replace")
