"""A log's last start: its events with what became of each, and the last line of ranks that say nothing else."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection

from msgspec.structs import replace

from traceops.hangs.crash_table import crash_kind
from traceops.hangs.evidence import LogEvent
from traceops.hangs.readers.hang_log import Starts, read_starts
from traceops.hangs.readers.schedulers import with_pod_states, without_passed
from traceops.hangs.readers.went_on import with_ends, without_aftermath, without_outlived, without_requests
from traceops.traces.text_lines import blocks, lines

# Only torch's own prefix, '[rank3]:', behind a time or a host at most: it counts the ranks of the job.
_LINE = re.compile(rb"(?:^|\r)(?:[\w./:+-]{1,60} ){0,2}\[rank(\d{1,7})\]:? ?([^\r\n]{1,400})", re.MULTILINE)
_WORD = b"[rank"
_MOST = 1 << 12  # ranks


def last_lines(path: str, known: Collection[int]) -> tuple[LogEvent, ...]:
    """The last line of each rank that is not known, as 'said', in order.

    Raises InputError where the file cannot be read.
    """
    found: dict[int, tuple[int, str]] = {}
    for number, block in blocks(path):
        if _WORD not in block:
            continue
        line, at = number, 0
        for match in _LINE.finditer(block):
            rank = int(match[1])
            if rank not in known and (rank in found or len(found) < _MOST):
                line, at = line + block.count(b"\n", at, match.start(1)), match.start(1)
                found[rank] = line, match[2].decode(errors="replace").strip()
    return tuple(LogEvent("said", rank, path, *found[rank]) for rank in sorted(found))


# What a log shows before a loss scaler gave up: the last steps that it skipped because gradients overflowed.


# 'OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, reducing to 1' (DeepSpeed), 'gradient overflow detected,
# ignoring gradient, setting loss scale to: 0.25' (fairseq), 'Gradient overflow.  Skipping step, …' (apex).
_SKIPPED = re.compile(r"(?:gradient )?overflow\b.{0,80}\bloss scal.{0,60}", re.IGNORECASE)
_WORDS = (b"verflow", b"VERFLOW")
_MOST_OVERFLOWS = 3


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
    found: deque[tuple[int, str]] = deque(maxlen=_MOST_OVERFLOWS)
    for number, block in blocks(path):
        if number >= end:
            break
        if not any(word in block for word in _WORDS):
            continue
        for at, line in lines(block, number):
            if since < at < end and (skipped := _SKIPPED.search(line)) is not None:
                found.append((at, " ".join(skipped[0].split())))
    return tuple(found)


# The events of a log's last start, with what became of each: the failures in it that were over, or came afterwards.


def read_last_start(path: str, rank: int | None = None) -> tuple[tuple[LogEvent, ...], Starts]:
    """The events of the last start that the log tells of, and by start those of the ones before it.

    rank: whose the lines are that name none. Raises InputError where the file cannot be read.
    """
    events, earlier = read_starts(path, rank)
    for judged in (without_requests, without_outlived, with_ends, without_aftermath, without_passed, with_pod_states):
        events = judged(path, events)
    since = max((event.line for start in earlier for event in start), default=0)
    events = with_overflows(path, events, since)
    if any(event.kind == "timeout" for event in events):
        events += last_lines(path, {event.rank for event in events if event.rank is not None})
    return events, earlier
