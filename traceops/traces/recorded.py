"""Collectives of a backend whose events name no group, completed from what the capture added to the trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from traceops.core.rank_files import COLLECTIVES, RECORDED_KEY
from traceops.traces.collective import count
from traceops.traces.model import CommArgs, Events

_SOONER_NS = 1_000_000  # than its call a collective may begin: two clocks are read
_CLEARLY = 2  # times as late as the closest: another fit


class _Recorded(Struct, frozen=True):
    created_ns: int
    args: CommArgs


def with_recorded(events: Events, raw: dict[str, Any]) -> dict[int, CommArgs]:
    """What the events' arguments and the trace's metadata `raw` say of the collectives, by row.

    A backend runs its collectives in the order in which they were called. So those of one name are paired from the last
    one that had been called when its last event began. Where one event would begin before its call, one group's calls
    left no events, or the name is left.
    """
    rows = raw.get(COLLECTIVES)
    known: dict[str, list[_Recorded]] = defaultdict(list)
    for row in rows if isinstance(rows, list) else ():
        if (read := _read(row)) is not None:
            known[read[0]].append(read[1])
    found = dict(events.comm)
    on_device = events.in_cats("gpu_user_annotation")  # the same note, around what was launched inside it
    numbers = {name: number for number, name in enumerate(events.names) if name in known}
    for name, number in numbers.items():
        own = np.flatnonzero((events.name == number) & ~on_device)
        own = own[np.argsort(events.ts[own], kind="stable")]
        found.update(_paired(own.tolist(), events.ts[own].tolist(), known[name]))
    return found


def _paired(rows: Sequence[int], starts: Sequence[int], known: list[_Recorded]) -> dict[int, CommArgs]:
    """The calls by row: all of them or, where they do not fit, those without one group's.

    A thread that the profiler does not follow, such as one that writes a checkpoint, leaves no events of its calls.
    """
    called = sorted((one for one in known if one.created_ns <= starts[-1] + _SOONER_NS), key=_created)
    found = _last_ones(rows, starts, called)
    if found is None:
        without = [
            fit
            for group in sorted({one.args.group_name or "" for one in called})
            if (fit := _last_ones(rows, starts, [one for one in called if one.args.group_name != group]))
        ]
        found = _closest(without)
    return {} if found is None else {row: one.args for row, one in found.pairs}


class _Fit(Struct, frozen=True):
    pairs: list[tuple[int, _Recorded]]
    later_ns: int  # the events begin than their calls, in all


def _last_ones(rows: Sequence[int], starts: Sequence[int], called: list[_Recorded]) -> _Fit | None:
    """The last of both paired; None where there is none, or where one event would begin before its call."""
    most = min(len(rows), len(called))
    if not most:
        return None
    late = [start - one.created_ns for start, one in zip(starts[-most:], called[-most:], strict=True)]
    if min(late) < -_SOONER_NS:
        return None
    return _Fit(list(zip(rows[-most:], called[-most:], strict=True)), sum(late))


def _closest(fits: Sequence[_Fit]) -> _Fit | None:
    """The one that pairs most events; of several the one whose events follow their calls clearly closest."""
    most = max((len(fit.pairs) for fit in fits), default=0)
    best = sorted((fit for fit in fits if len(fit.pairs) == most), key=lambda fit: fit.later_ns)
    if len(best) > 1 and best[1].later_ns < _CLEARLY * best[0].later_ns:
        return None
    return best[0] if best else None


def _created(one: _Recorded) -> int:
    return one.created_ns


def _read(row: Any) -> tuple[str, _Recorded] | None:
    """The name and what was recorded of one collective; None for what is no such list."""
    if not isinstance(row, list) or len(row) != len(RECORDED_KEY):
        return None
    name, group, description, sequence, elements_in, elements_out, dtype, created = row
    texts = (name, group, description)
    created_ns = count(created)
    if created_ns is None or not all(isinstance(text, str) for text in texts):
        return None
    args = CommArgs(
        op=name.partition(":")[2],
        elements_in=count(elements_in) or None,
        elements_out=count(elements_out) or None,
        dtype=dtype if isinstance(dtype, str) else None,
        group_name=group,
        group_description=description,
        sequence=count(sequence),
    )
    return name, _Recorded(created_ns, args)
