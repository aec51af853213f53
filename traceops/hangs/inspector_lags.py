"""Ranks on which NCCL Inspector wrote nothing more while it wrote on for the others of their communicator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from traceops.core.rank_text import who, who_first
from traceops.fabric.inspector import Inspector, InspectorRank
from traceops.hangs.evidence import LogEvent

_APART_S = 2  # seconds in which the others wrote on: what one interval's end tears apart comes at one moment
# What no rank can complete before all have called it; a rank may be far behind in the others.
_NEEDS_ALL = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll")


def inspector_events(inspector: Inspector) -> tuple[LogEvent, ...]:
    """An event for each number at which some ranks' lines end though the others' go on in several writes.

    Inspector writes at intervals, so that a difference within one write of the others proves nothing. Times are
    compared within one file only: hosts' clocks differ. Sends and receives are left aside, as ranks differ in them.
    """
    alike: defaultdict[tuple[str, str], list[InspectorRank]] = defaultdict(list)
    for row in inspector.completed:
        if not row.is_p2p:
            alike[row.communicator, row.op].append(row)
    return tuple(event for rows in alike.values() for event in _behind(rows))


def _behind(rows: Sequence[InspectorRank]) -> Iterator[LogEvent]:
    most = max(row.last for row in rows)
    ended: defaultdict[int, list[InspectorRank]] = defaultdict(list)
    for row in rows:
        if row.last < most:
            ended[row.last].append(row)
    for last, behind in sorted(ended.items()):
        others = [row for row in rows if row.last > last]
        if min(_wrote_on_s(row, last) for row in others) >= _APART_S:
            yield _event(last, behind, others)


def _wrote_on_s(row: InspectorRank, last: int) -> int:
    """Seconds between the first and the last write of numbers beyond `last`."""
    later = [second for second, number in row.written if number > last]
    return max(later) - min(later)


def _event(last: int, behind: Sequence[InspectorRank], others: Sequence[InspectorRank]) -> LogEvent:
    one = behind[0]
    ranks = [row.rank for row in behind]
    most = max(row.last for row in others)
    wrote_on = min(_wrote_on_s(row, last) for row in others)
    of = f"communicator {one.name or one.communicator} ({one.ranks} ranks)"
    text = (
        f"{who_first(ranks)} of {of}: the last {one.op} that NCCL Inspector wrote is #{last}, "
        f"and it wrote on to #{most} for {who([row.rank for row in others])}, over {wrote_on} s"
    )
    if one.op in _NEEDS_ALL:
        text += (
            f". All ranks take part in each {one.op}, so more was done there than written: the process may have "
            "ended or stopped, or the file was copied earlier"
        )
    return LogEvent("inspector", None, one.path, one.line, text, op=one.op, sequence=last)
