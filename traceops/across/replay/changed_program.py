"""A rank's program with something changed: its times of compute, what it is late in, the order of its nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from traceops.across.replay.graph import WORK, RankNodes
from traceops.across.replay.late_places import LatePlaces
from traceops.core.arrays import Int
from traceops.measure.program import NEVER


def recomputed(nodes: RankNodes, compute: Int) -> RankNodes:
    """The program with other times of compute before its nodes. Kernels that take longer are launched as before.

    So a gap in which the device had nothing launched closes by as much as it is behind by then; the launches alone say
    when it opens. Where launches are not known the gaps stay.
    """
    column = WORK.index("compute")
    own = nodes.spent[:, column]
    order = np.argsort(own, kind="stable")
    joined = np.interp(nodes.join_spent[:, column], own[order], compute[order]).astype(np.int64)
    late = [WORK.index("idle_host"), WORK.index("masked")]
    known = bool((nodes.host > NEVER).any())
    gaps, joined_gaps = (spent[:, late].sum(axis=1) * known for spent in (nodes.spent, nodes.join_spent))
    moment = np.concatenate((nodes.joined_at, nodes.stands_at))
    behind = _behind(
        np.argsort(moment, kind="stable"),
        np.concatenate((joined - nodes.join_spent[:, column], compute - own)),
        np.concatenate((joined_gaps, gaps)),
    )
    joins = len(nodes.join_work)
    return replace(nodes, work=nodes.work + behind[joins:], join_work=nodes.join_work + behind[:joins])


def _behind(order: Int, more: Int, gaps: Int) -> Int:
    """How much later a device is at each of these moments: it takes `more` before them, and `gaps` close by that."""
    later, before_more, before_gaps = 0, 0, 0
    behind = np.zeros(len(order), dtype=np.int64)
    more_by, gaps_by = more[order].tolist(), gaps[order].tolist()
    for at, (place, longer, gap) in enumerate(zip(order.tolist(), more_by, gaps_by, strict=True)):
        later += longer - before_more if at else 0
        later -= min(max(gap - before_gaps, 0), max(later, 0)) if at else 0
        before_more, before_gaps = longer, gap
        behind[place] = later
    return behind


def spared(nodes: RankNodes, places: LatePlaces) -> RankNodes:
    """The program without what it takes longer in these places."""
    return replace(
        nodes,
        work=nodes.work - places.spared,
        standing=nodes.standing - places.spared,
        join_work=nodes.join_work - places.spared_joins,
        host=np.where(nodes.host > NEVER, nodes.host - places.spared_host, NEVER),
    )


def unslowed(nodes: RankNodes, part: float) -> RankNodes:
    """The program without this part of what its kernels took longer beside communication that waited."""
    order = np.argsort(nodes.stands_at, kind="stable")
    joined = np.interp(nodes.joined_at, nodes.stands_at[order], nodes.slowed[order])
    first = int(nodes.slowed[nodes.first_edge])
    return replace(
        nodes,
        work=nodes.work - np.rint(part * (nodes.slowed - first)).astype(np.int64),
        join_work=nodes.join_work - np.rint(part * (joined - first)).astype(np.int64),
    )


def relabelled(source: RankNodes, target: RankNodes) -> RankNodes:
    """The program of `source` with its nodes in the order of `target`.

    A node that only the target has begins with the one before it; a join for one that only the source has goes.
    """
    if source.labels == target.labels:
        return source
    at = {label: node for node, label in enumerate(source.labels)}
    same = np.array([at.get(label, -1) for label in target.labels], dtype=np.int64)
    known = np.flatnonzero(same >= 0)
    before = np.maximum(np.searchsorted(known, np.arange(len(same)), side="right") - 1, 0)
    take = same[known[before]]
    to = np.full(len(source.labels), -1, dtype=np.int64)
    to[same[known]] = known
    after = source.after[take]
    return replace(
        source,
        labels=target.labels,
        first_edge=target.first_edge,
        work=source.work[take],
        delay=np.where(same >= 0, source.delay[take], 0),
        after=np.where((same >= 0) & (after >= 0), to[after], -1),
        stands_at=source.stands_at[take],
        standing=source.standing[take],
        join_node=to[source.join_node],
        host=source.host[take],
        host_input=source.host_input[take],
        spent=source.spent[take],
        slowed=source.slowed[take],
        begin=source.begin[take],
        end=source.end[take],
    )
