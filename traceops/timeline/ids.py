"""Keeps the ids of flows and asynchronous events of different ranks apart."""

from __future__ import annotations

import msgspec

from traceops.timeline.reader import WholeEvent

_BLOCK_BITS = 32  # ids of a rank; with 2**21 ranks they still are exact in a double
_COUNTED_FROM = 1 << 31  # ids that are no small number are counted from here
_ID_KEYS = ("id", "bind_id")


def first_id(slot: int) -> int:
    """The smallest id of the rank in this place of the timeline."""
    return slot << _BLOCK_BITS


class Ids:
    """New ids for one rank's events: equal ones stay equal, and none is another rank's."""

    def __init__(self, slot: int) -> None:
        self._first = first_id(slot)
        self._counted: dict[bytes, int] = {}

    def rewrite(self, event: WholeEvent) -> None:
        """Replace every id in the event; a counter's is part of its name and stays."""
        if bytes(event.get("ph", b"")) == b'"C"':
            return
        for key in _ID_KEYS:
            if key in event:
                event[key] = self.new(bytes(event[key]))
        if "id2" in event:
            try:
                parts = msgspec.json.decode(event["id2"], type=WholeEvent)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return
            new = {key: self.new(bytes(part)) for key, part in parts.items()}
            event["id2"] = msgspec.Raw(msgspec.json.encode(new))

    def new(self, text: bytes) -> msgspec.Raw:
        """The id for one written as `text` in the file: a number for a number, hex text for text."""
        if text.isdigit() and len(text) <= 10 and (number := int(text)) < _COUNTED_FROM:
            return msgspec.Raw(b"%d" % (self._first + number))
        number = self._first + _COUNTED_FROM + self._counted.setdefault(text, len(self._counted))
        return msgspec.Raw(b'"0x%x"' % number if text.startswith(b'"') else b"%d" % number)
