"""Why a rank is late: what most of the waiting is charged to, or the work whose loss saves what its cure does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceops.across.lateness import CAUSE_OF, CAUSES, LEAST_SHARE, Lateness
from traceops.across.own_times import far_beyond, host_ns, loads_longer, own_time
from traceops.across.replay.graph import WORK, StepGraph, Steps
from traceops.across.replay.late_places import LatePlaces, late_places
from traceops.across.replay.simulate import simulate
from traceops.across.replay.what_if import HOST, LOADING, Replays

_COVERS = 0.80  # of the lateness: what a cause must explain to be named


def cause_of(
    replays: Replays, lateness: Lateness, rank: int, peers: Sequence[int], rest: Sequence[int], saved: Steps
) -> str:
    """The cause that covers most of the charge, if it covers enough of it; else what a replay shows.

    A rank may be late for another reason. Those that wait for it let their hosts run ahead. Then that rank alone
    shows idle time for its host, though its host is no slower than theirs. Such time does not count against the
    cause.
    """
    graph = replays.graph
    charged = dict(zip(CAUSES, lateness.caused[rank].sum(axis=1).tolist(), strict=True))
    if not peers and (places := late_places(graph, rank)) is not None:
        charged = _by_cause(graph, rank, places)  # who is late elsewhere hides what the others wait for it
    total = sum(charged.values())
    if not loads_longer(graph, rank, peers, 0.5 * charged["input"] / max(len(peers), 1)):
        # It loads as long as they do; what they wait for it elsewhere only hides theirs.
        charged["host"] += charged.pop("input")
    best = max(charged, key=lambda cause: charged[cause])
    if best in ("input", "gpu_compute", "copy") and total > 0:
        own, others = host_ns(graph, rank), [ns for peer in peers if (ns := host_ns(graph, peer)) is not None]
        if own is not None and others and own - float(np.median(others)) < 0.2 * total / max(len(peers), 1):
            total -= charged["host"]
    if best != "unknown" and charged[best] >= _COVERS * total > 0 and (lateness.share(rank) or 0) >= LEAST_SHARE:
        return best
    return _cause_by_replay(replays, rank, peers, rest, float(saved.mean()))


def _by_cause(graph: StepGraph, rank: int, places: LatePlaces) -> dict[str, float]:
    """What a rank takes longer where it is late, by CAUSES."""
    found = dict.fromkeys(CAUSES, 0.0)
    for work, more in places.more.items():
        cause = CAUSE_OF.get(work, "unknown")
        found["host" if cause == "gpu_compute" and rank in graph.on_cpu else cause] += max(more, 0.0)
    return found


def _cause_by_replay(replays: Replays, rank: int, peers: Sequence[int], rest: Sequence[int], saved: float) -> str:
    """The kind of work whose loss on this rank alone saves what its cure does, the others being cured."""
    graph = replays.graph
    others, cured = replays.cure(rest), replays.cured(rest)
    if others is None or cured is None or not peers or saved <= 0:
        return "unknown"
    before = cured.fed_ns().mean()
    far = far_beyond(graph, rank, rest)  # then those that are cured run as it does
    alike = (rank, *(other for other, peer in others.program_of.items() if far and peer == rank))
    for cause, work in (("input", LOADING), ("copy", ("memory",)), ("host", HOST)):
        if cause == "input" and not loads_longer(graph, rank, peers, 0.5 * saved * len(graph.steps)):
            continue
        without = simulate(graph, replace(others, without=work, without_on=alike)).fed_ns().mean()
        if before - without >= _COVERS * saved:
            return cause
    compute = WORK.index("compute")
    more = own_time(graph, rank)[compute] - np.median([own_time(graph, peer)[compute] for peer in peers])
    if more / max(len(graph.steps), 1) < _COVERS * saved:
        return "unknown"
    return "host" if rank in graph.on_cpu else "gpu_compute"
