"""What is not judged of incomplete traces: what one has lost looks like idle time, and as if its peers waited."""

from __future__ import annotations

from collections.abc import Iterable

from traceops.across.cross_rank import RankTimes
from traceops.core.rank_text import who


def why_incomplete(ranks: Iterable[RankTimes]) -> str:
    """Why these ranks cannot be judged together; empty where each trace is whole, or nearly."""
    lost = [times.summary.rank for times in ranks if times.summary.incomplete]
    traces = "the trace of {} is" if len(lost) == 1 else "the traces of {} are"
    return f"{traces.format(who(lost))} incomplete, see TO-V002" if lost else ""
