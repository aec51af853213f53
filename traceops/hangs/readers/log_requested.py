"""Servers that were asked to stop: what they log behind that follows from it."""

from __future__ import annotations

import re

from traceops.core.text import first_words
from traceops.hangs.evidence import LogEvent
from traceops.hangs.readers.line_prefixes import without_prefixes
from traceops.hangs.readers.log_steps import sightings
from traceops.traces.text_lines import blocks, lines

# SGLang: "SIGTERM received. … Draining requests and shutting down"; vLLM: "[shutdown] API server: shutdown triggered".
_ASKED = re.compile(
    r"\bSIG(?:TERM|INT) received\b.{0,120}\bshutting down\b|\bReceived SIG(?:TERM|INT)\b.{0,120}\bshutting down\b"
    r"|\[shutdown\] .{0,60}\b(?:shutdown triggered|received signal=SIG(?:TERM|INT))\b"
)
_WORDS = ("shutting down", "[shutdown] ")
_NEEDLE = b"hut"
_STARTED = "Application startup complete."  # once more
_SEARCHED = 400
_MOST_QUOTED = 160


def without_aftermath(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log without those behind a request to stop, where nothing failed before it.

    Raises InputError where the file cannot be read.
    """
    if not events or (asked := asked_to_stop(path)) is None or any(event.line < asked[0] for event in events):
        return events
    return ()


def asked_to_stop(path: str) -> tuple[int, str] | None:
    """The line in which a server is asked to stop, and what it says; None where it is at work behind that."""
    found: tuple[int, str] | None = None
    for number, block in blocks(path):
        if _NEEDLE not in block and found is None:
            continue
        for at, line in lines(block, number):
            head = line[:_SEARCHED]
            if found is None:
                if any(words in head for words in _WORDS) and _ASKED.search(head) is not None:
                    found = at, first_words(without_prefixes(line).strip(), _MOST_QUOTED)
            elif _STARTED in head or any(sightings(head.encode(errors="replace"))):
                found = None
    return found
