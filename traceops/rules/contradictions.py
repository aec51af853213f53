"""TO-V007: traces that contradict each other, their names or run.json, and are used all the same."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.across.apart import ApartInTime, apart_in_time
from traceops.across.cross_rank import CrossRank
from traceops.core.findings import Evidence
from traceops.core.rank_text import who
from traceops.core.rule import Rule, Verdict
from traceops.core.units import clock_text

CONTRADICTIONS = Rule(
    id="TO-V007",
    title="Traces contradict each other",
    fires=(
        "Fires for every file that is used and whose rank, times, step numbers or run differ from what its name, the "
        "other traces or run.json say. What cannot be of the run is left out, and is a finding of TO-V002."
    ),
    advice=(
        "Put the traces of one capture, and its run.json, into a separate folder, each trace under its own "
        "rank. Until then, numbers that compare ranks may mix two runs."
    ),
)
RULES = (CONTRADICTIONS,)


def judge_contradictions(doubts: Sequence[tuple[str, str]], run: CrossRank) -> Verdict:
    """TO-V007: one finding a file, so that each is named."""
    doubted = {path for path, _ in doubts}
    apart = apart_in_time([times.summary for times in run.ranks], run.matching)
    told = [*doubts, *((one.path, _apart_text(one)) for one in apart if one.path not in doubted)]
    found = [
        CONTRADICTIONS.finding("warning", "high", f"{path}: {what}.", [Evidence("file", path)]) for path, what in told
    ]
    return CONTRADICTIONS.verdict(*found, clear="the traces, their names and run.json fit together")


def _apart_text(one: ApartInTime) -> str:
    when = "before" if one.after_ns < 0 else "after"
    return (
        f"begins {clock_text(abs(one.after_ns) / 1e9)} {when} the {'trace' if len(one.others) == 1 else 'traces'} of "
        f"{who(one.others)} with the same steps, and none of its collectives is among theirs: it is of another "
        "capture. It is used; put each capture in a folder of its own"
    )
