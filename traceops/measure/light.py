"""One rank's light window: what its device did in each step, by class, and its collectives in order of launch."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, Intervals, union
from traceops.core.rank_files import KERNEL, MEMCPY, NO_NAME
from traceops.measure.activity import communicates
from traceops.traces.light import LightLog


class LightActivity(Struct, frozen=True):
    """One rank's. edges: where steps begin and end on the device, Unix ns; one step of all where that is not known.
    step_ms: of each step, by events on the device. compute, memory: when any such activity ran. Collectives are in
    order of launch: when they ran, on which stream, and the names of their kernels."""

    rank: int
    source: str
    steps: tuple[int, ...]
    step_ms: NDArray[np.float64]
    edges: Int
    compute: Intervals
    memory: Intervals
    start: Int
    end: Int
    stream: Int
    name: tuple[str, ...]

    @property
    def by_step(self) -> bool:
        """Whether each step is known by itself."""
        return len(self.edges) == len(self.steps) + 1


def light_activity(log: LightLog, others: Collection[str] = ()) -> LightActivity | None:
    """What `log` holds; None where it has no whole step. others: kernels that communicate, whatever their names say."""
    if not log.steps:
        return None
    rows = log.rows
    mark = (rows["kind"] == MEMCPY) & (rows["size"] == log.mark_bytes) if log.mark_bytes else np.zeros(len(rows), bool)
    edges = rows["end"][mark].astype(np.int64)
    if len(edges) != len(log.steps) + 1 or (np.diff(edges) <= 0).any():
        # Nothing tells steps apart: the whole window, which begins a step before the measured ones.
        edges = np.array([rows["start"].min(), rows["end"].max()], np.int64)
    if edges[-1] <= edges[0]:
        return None
    rows = rows[~mark]
    kernels = rows["kind"] == KERNEL
    bare = {_bare(name) for name in others if not communicates(name)} - {""}
    of_names = np.array([communicates(name) or any(part in name for part in bare) for name in log.names] + [False])
    named = np.where(rows["name"] == NO_NAME, len(log.names), rows["name"])
    comm = kernels & of_names[named]
    begin, end = rows["start"].astype(np.int64), rows["end"].astype(np.int64)
    order = np.flatnonzero(comm)
    order = order[np.argsort(rows["correlation"][order], kind="stable")]
    return LightActivity(
        rank=log.rank, source=log.source, steps=log.steps, step_ms=np.array(log.step_ms), edges=edges,
        compute=union(begin[kernels & ~comm], end[kernels & ~comm]),
        memory=union(begin[~kernels], end[~kernels]),
        start=begin[order], end=end[order], stream=rows["stream"][order].astype(np.int64),
        name=tuple(log.names[at] for at in named[order]),
    )  # fmt: skip


def _bare(name: str) -> str:
    """A kernel's own name, which its mangled name holds: CUPTI knows the one, and traces have the other."""
    return re.split(r"[<(]", name, maxsplit=1)[0].rpartition("::")[2].rpartition(" ")[2]
