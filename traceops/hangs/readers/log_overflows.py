"""What a log shows before a loss scaler gave up: the last steps that it skipped because gradients overflowed."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace

from traceops.hangs.crash_table import crash_kind
from traceops.hangs.evidence import LogEvent
from traceops.traces.text_lines import blocks, lines

# 'OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, reducing to 1' (DeepSpeed), 'gradient overflow detected,
# ignoring gradient, setting loss scale to: 0.25' (fairseq), 'Gradient overflow.  Skipping step, …' (apex).
_SKIPPED = re.compile(r"(?:gradient )?overflow\b.{0,80}\bloss scal.{0,60}", re.IGNORECASE)
_WORDS = (b"verflow", b"VERFLOW")
_MOST = 3


def with_overflows(path: str, events: tuple[LogEvent, ...], since: int) -> tuple[LogEvent, ...]:
    """The events of a log, those of a loss scaler at its minimum with the last overflows `before` them.

    since: the last line of an earlier start. Raises InputError where the file cannot be read.
    """
    ends = [event.line for event in events if event.kind == "error" and crash_kind(event.text) == "loss_scale"]
    if not ends:
        return events
    last = _last_skipped(path, since, min(ends))
    return tuple(
        replace(event, before=last) if event.kind == "error" and event.line in ends else event for event in events
    )


def _last_skipped(path: str, since: int, end: int) -> tuple[tuple[int, str], ...]:
    found: deque[tuple[int, str]] = deque(maxlen=_MOST)
    for number, block in blocks(path):
        if number >= end:
            break
        if not any(word in block for word in _WORDS):
            continue
        for at, line in lines(block, number):
            if since < at < end and (skipped := _SKIPPED.search(line)) is not None:
                found.append((at, " ".join(skipped[0].split())))
    return tuple(found)
