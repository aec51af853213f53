"""Collectives of a backend whose events name no group, completed from what the capture added to the trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceops.core.trace_keys import COLLECTIVES, RECORDED
from traceops.traces.collective import count
from traceops.traces.model import CommArgs, Events

_SOONER_NS = 1_000_000  # than its call a collective may begin: two clocks are read


@dataclass(frozen=True)
class _Recorded:
    created_ns: int
    args: CommArgs


def with_recorded(events: Events, raw: dict[str, Any]) -> dict[int, CommArgs]:
    """What the events' arguments and the trace's metadata `raw` say of the collectives, by row.

    A backend runs its collectives in the order in which they were called. So those of one name are paired from the last
    one that had been called when its last event began; a name of which one event would begin before its call is left.
    """
    rows = raw.get(COLLECTIVES)
    known: dict[str, list[_Recorded]] = defaultdict(list)
    for row in rows if isinstance(rows, list) else ():
        if (read := _read(row)) is not None:
            known[read[0]].append(read[1])
    found = dict(events.comm)
    numbers = {name: number for number, name in enumerate(events.names) if name in known}
    for name, number in numbers.items():
        own = np.flatnonzero(events.name == number)
        own = own[np.argsort(events.ts[own], kind="stable")]
        found.update(_paired(own.tolist(), events.ts[own].tolist(), known[name]))
    return found


def _paired(rows: Sequence[int], starts: Sequence[int], known: list[_Recorded]) -> dict[int, CommArgs]:
    known = sorted(
        (one for one in known if one.created_ns <= starts[-1] + _SOONER_NS), key=lambda r: r.created_ns
    )
    most = min(len(rows), len(known))
    if not most:
        return {}
    pairs = list(zip(rows[-most:], starts[-most:], known[-most:], strict=True))
    if any(one.created_ns > start + _SOONER_NS for _, start, one in pairs):
        return {}
    return {row: one.args for row, _, one in pairs}


def _read(row: Any) -> tuple[str, _Recorded] | None:
    """The name and what was recorded of one collective; None for what is no such list."""
    if not isinstance(row, list) or len(row) != len(RECORDED):
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
