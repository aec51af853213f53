"""Which operator is around what: parents and own time of nested host events, without a loop over events."""

from __future__ import annotations

import numpy as np

from traceops.model import Events, Int


def parents(events: Events, ops: Int, rows: Int) -> Int:
    """Position in `ops` of the innermost operator around each of `rows` on its thread, -1 outside all.

    A row that is in `ops` itself gets the operator around it. Host events of a thread nest: they lie inside
    each other or beside each other.
    """
    found = np.full(len(rows), -1, dtype=np.int64)
    for tid in np.unique(events.tid[rows]):
        own = np.flatnonzero(events.tid[ops] == tid)
        mine = np.flatnonzero(events.tid[rows] == tid)
        if len(own):
            found[mine] = _of_thread(events, ops, own, rows[mine])
    return found


def own_time(events: Events, ops: Int) -> Int:
    """Duration of each operator less that of the operators directly inside it, ns, never below 0."""
    parent = parents(events, ops, ops)
    inside = np.zeros(len(ops), dtype=np.int64)
    np.add.at(inside, parent[parent >= 0], events.dur[ops[parent >= 0]])
    left: Int = np.maximum(events.dur[ops] - inside, 0)
    return left


def _of_thread(events: Events, ops: Int, own: Int, rows: Int) -> Int:
    order = np.lexsort((ops[own], -events.dur[ops[own]], events.ts[ops[own]]))
    own = own[order]
    start, ends = events.ts[ops[own]], np.sort(events.end[ops[own]])
    # Of the operators begun before, those not ended yet are around: their number is the depth.
    depth = np.maximum(np.arange(len(own)) - np.searchsorted(ends, start, side="right"), 0)
    itself = np.full(len(events), -1, dtype=np.int64)
    itself[ops[own]] = np.arange(len(own))
    begun = np.searchsorted(start, events.ts[rows], side="right")
    begun = np.where(itself[rows] >= 0, itself[rows], begun)
    around = np.maximum(begun - np.searchsorted(ends, events.ts[rows], side="right"), 0)
    found = np.full(len(rows), -1, dtype=np.int64)
    for level in range(int(depth.max()) + 1):
        at = np.flatnonzero(depth == level)
        wanted = np.flatnonzero(around == level + 1)
        before = np.searchsorted(at, begun[wanted], side="left") - 1
        known = before >= 0
        found[wanted[known]] = own[at[before[known]]]
    return found
