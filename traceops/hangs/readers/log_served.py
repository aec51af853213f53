"""Failures of one request in a server's log, behind which it answers others: no end of the server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from traceops.hangs.evidence import LogEvent, LogKind
from traceops.traces.text_lines import blocks, lines

# uvicorn's and aiohttp's line on a request: 'INFO:  127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK'.
_ANSWER = re.compile(r'"POST /\S{0,200} HTTP/\d(?:\.\d)?" (\d)\d\d\b')
_NEEDLES = (b'"POST /', b"startup complete.")
_STARTED = "Application startup complete."
_ENOUGH = 10  # answers: a few may be of requests that came before the failure
_CLOSE = 10  # lines behind a traceback, in which its own request is refused
_OF_FRAME = 6  # lines of it, at most
_OF_REQUEST: tuple[LogKind, ...] = ("error", "memory", "cuda")


def without_requests(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, failures of single requests as 'outlived' with the server's logger going on.

    Raises InputError where the file cannot be read.
    """
    close = {
        event.line: event.line + _OF_FRAME * len(event.frames) + _CLOSE for event in events if event.kind in _OF_REQUEST
    }
    answered = _answered(path, close) if close else set()
    return tuple(
        replace(event, kind="outlived", was="trouble")
        if event.line in answered and event.kind in _OF_REQUEST
        else event
        for event in events
    )


def _answered(path: str, close: Mapping[int, int]) -> set[int]:
    """The failures behind which the same start of the server goes on to answer. close: line to line."""
    left = dict.fromkeys(close, 0)
    refused: set[int] = set()
    answered: set[int] = set()
    for number, block in blocks(path):
        if not left or not any(needle in block for needle in _NEEDLES):
            continue
        for at, line in lines(block, number):
            if _STARTED in line:
                left = {failed: count for failed, count in left.items() if failed >= at}
            elif (answer := _ANSWER.search(line)) is not None and answer[1] in "24":
                for failed in [failed for failed in left if failed < at]:
                    left[failed] += answer[1] == "2"
                    if answer[1] == "4" and at <= close[failed]:
                        refused.add(failed)
                    if left[failed] >= (1 if failed in refused else _ENOUGH):
                        answered.add(failed)
                        del left[failed]
    return answered
