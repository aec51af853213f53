"""What ended the starts of a program that come before the one which is judged, in the same log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traceops.core.rank_text import who
from traceops.hangs.crash_words import did_what
from traceops.hangs.crashes import find_crashes
from traceops.hangs.evidence import LogEvent

_MOST = 3


def earlier_starts_text(earlier: Sequence[Sequence[LogEvent]]) -> str | None:
    """'Before it, in the same log, an earlier start ended: rank 1 ran out of GPU memory (train.log:60).'

    earlier: by start what its lines tell, in order. None where they tell of no failure.
    """
    ended = [crashes[0] for events in earlier if (crashes := find_crashes(events))]
    if not ended:
        return None
    told = [
        f"{who(crash.ranks) if crash.ranks else 'the program'} {did_what(crash)} "
        f"({Path(crash.event.path).name}:{crash.event.line})"
        for crash in ended[-_MOST:]
    ]
    starts = "an earlier start" if len(ended) == 1 else f"{len(ended)} earlier starts"
    last = f", the last {_MOST} so" if len(ended) > _MOST else ""
    return f"Before it, in the same log, {starts} ended{last}: {'; '.join(told)}."
