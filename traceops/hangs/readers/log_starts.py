"""The events of a log's last start, with what became of each: the failures in it that were over, or came afterwards."""

from __future__ import annotations

from traceops.hangs.evidence import LogEvent
from traceops.hangs.readers.hang_log import Starts, read_starts
from traceops.hangs.readers.log_outlived import without_outlived
from traceops.hangs.readers.log_overflows import with_overflows
from traceops.hangs.readers.log_passing import without_passed
from traceops.hangs.readers.log_pods import with_pod_states
from traceops.hangs.readers.log_requested import without_aftermath
from traceops.hangs.readers.log_served import without_requests
from traceops.hangs.readers.log_spoken import last_lines
from traceops.hangs.readers.log_trained import with_ends


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
