"""Collectives that hosts run for what lies on their GPUs, as gloo does: copied to the host, exchanged, copied back."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traceops.core.arrays import Int
from traceops.measure.host_rows import DEVICE_MEMORY_CATS, ONE_WAY, OPERATOR_CATS, HostRows, named, rows_named
from traceops.traces.model import Events

_CALL = re.compile(r"^c10d::(?!.*wait)")
_TO_DEVICE = re.compile(r"HtoD|Host(ToDevice| -> Device)", re.IGNORECASE)


@dataclass(frozen=True)
class HostCollectives:
    """Per collective the row of the backend's note, and when the ranks exchanged data, ns.

    `launch` is the call that asked for it, or the note itself where that is not known; `launched` when it had.
    """

    row: Int
    start: Int
    end: Int
    launch: Int
    launched: Int


def find_host_collectives(events: Events, host: HostRows) -> HostCollectives | None:
    """The collectives of a rank with a GPU that its host runs; None where nothing tells when each was.

    The backend's thread first waits for the device, which may still compute what goes round: its note lasts longer
    than the exchange. That begins when the last such wait is over and ends with the first copy back to the device. A
    send or receive lasts until it is waited for: where there are such, nothing is known.
    """
    rows = host.exchanged
    if not len(rows) or named(events, ONE_WAY).take(events.name[rows]).any():
        return None
    rows = rows[np.argsort(events.ts[rows], kind="stable")]
    start, end = _exchange(events, host, rows)
    launch = calls_of(events, rows)
    launched = np.where(launch == rows, events.ts[rows], events.ts[launch] + events.dur[launch])
    return HostCollectives(rows, start, end, launch, np.minimum(launched, start))


def _exchange(events: Events, host: HostRows, rows: Int) -> tuple[Int, Int]:
    """When each exchange began and ended: after the thread's waits for the device, and before it copies back."""
    start, end = events.ts[rows].copy(), events.ts[rows] + events.dur[rows]
    copies = np.flatnonzero(events.in_cats(*DEVICE_MEMORY_CATS))
    back = events.correlation[copies[named(events, _TO_DEVICE).take(events.name[copies])]]
    calls = host.launches[np.isin(events.correlation[host.launches], back[back >= 0])]
    waits = host.waits_of_exchanges
    for tid in np.unique(events.tid[rows]):
        own = np.flatnonzero(events.tid[rows] == tid)
        first = _first_from(np.sort(events.ts[calls[events.tid[calls] == tid]]), start[own])
        end[own] = np.minimum(end[own], first)
        over = waits[events.tid[waits] == tid]
        over = np.sort(events.ts[over] + events.dur[over])
        last = np.searchsorted(over, end[own], side="right") - 1
        found = last >= 0
        start[own[found]] = np.maximum(start[own[found]], over[last[found]])
    return start, end


def _first_from(moments: Int, since: Int) -> Int:
    """The first of sorted moments at or after each of `since`; the end of time where there is none."""
    padded: Int = np.append(moments, np.iinfo(np.int64).max)
    first: Int = padded[np.searchsorted(moments, since)]
    return first


def calls_of(events: Events, rows: Int) -> Int:
    """The call of each collective, in the order of `rows`: its own row where they do not fit.

    A backend runs its collectives in the order in which they were called.
    """
    calls = rows_named(events, _CALL)
    calls = calls[events.in_cats(*OPERATOR_CATS)[calls]]
    calls = calls[np.argsort(events.ts[calls], kind="stable")]
    calls = calls[events.ts[calls] <= events.ts[rows[-1]]]
    most = min(len(rows), len(calls))
    found: Int = rows.copy()
    if most and (events.ts[calls[-most:]] <= events.ts[rows[-most:]]).all():
        found[-most:] = calls[-most:]
    return found
