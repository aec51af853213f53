"""The graph of all ranks' work and collectives; `build.py` makes it from the ranks' programs and the matching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int
from traceops.measure.ledger import OWN_BUCKETS
from traceops.measure.program import RankProgram

# Beside the ledger's own buckets: time in which communication ran while the rank's host was late.
WORK = (*OWN_BUCKETS, "masked")

Steps = NDArray[np.float64]  # of something in each step, ns
Label = tuple[Any, ...]


@dataclass(frozen=True)
class HostWaits:
    """Where a rank's host waited for its device, in order: it launches nothing behind that before the device is there.

    At own time `work` the device was done with what the host waited for, and `host` is the host's own time when it went
    on, `host_input` of it spent in data loading. `stands_at` and `spent` are as those of RankNodes.
    """

    stands_at: Int
    work: Int
    host: Int
    host_input: Int
    spent: Int


@dataclass(frozen=True)
class RankNodes:
    """One rank's part: its collectives and step edges as nodes, and where it waited for one of them.

    `work[i]` is the rank's own time at node i: the moment (ns, common clock) less all waiting in joins
    before it; the node begins `delay[i]` after that, or after the end of node `after[i]` (-1: none),
    whichever is later. Join j, over at `joined_at[j]`, waits at own time `join_work[j]` for the
    end of node `join_node[j]`. Neither node i nor the work behind it begins before `host[i]`, the host's own
    time. `spent` and `join_spent` tell how much of the own time went to each of WORK. `slowed` is how much of it
    before node i compute kernels took only because communication beside them waited for other ranks. Node i was
    launched behind the first `waits_before[i]` of `waits`.
    """

    labels: tuple[Label, ...]
    work: Int
    delay: Int
    after: Int
    stands_at: Int  # the moment of each node (ns, the rank's clock), which orders nodes and joins
    standing: Int  # the same moment on the common clock, or when the join began in which it falls
    join_node: Int
    joined_at: Int
    join_work: Int
    host: Int
    host_input: Int
    spent: Int
    join_spent: Int
    slowed: Int
    waits: HostWaits
    waits_before: Int
    first_edge: int  # node of the first step's start; the other edges follow
    begin: Int  # as measured, common clock
    end: Int


@dataclass(frozen=True)
class StepGraph:
    """All ranks' nodes; `members[c]` are (rank, node) of collective c, in an order in which they can be replayed.

    `needs[c][i]` are the members, as positions in `members[c]`, that member i cannot end without, itself too; None
    where all members end together. `kind[c]` is the index of the collective in `matching.collectives`. `loading_ns` is
    what workers of a rank's loader take for the batches of a step, where that is known; `typical` are the steps like
    each other, None: all.
    """

    ranks: dict[int, RankNodes]
    members: tuple[tuple[tuple[int, int], ...], ...]
    needs: tuple[tuple[tuple[int, ...], ...] | None, ...]
    transfer: Int
    kind: tuple[int, ...]
    steps: tuple[int, ...]
    edges: dict[int, NDArray[np.int64]]  # rank -> node of each edge of `steps`, one more than steps
    roles: dict[int, tuple[int, ...]]  # rank -> the ranks that ran nearly the same program, itself too
    on_cpu: frozenset[int] = frozenset()  # ranks whose work the host itself does
    loading_ns: Mapping[int, float] = field(default_factory=dict)
    typical: NDArray[np.bool_] | None = None
    kernels: Mapping[int, Int] = field(default_factory=dict)  # rank -> how many it ran in each of `steps`

    @cached_property
    def end_of(self) -> dict[int, Int]:
        """Rank -> the place of each of its nodes among the members of all collectives in order, -1 for step edges."""
        found = {rank: [-1] * len(nodes.work) for rank, nodes in self.ranks.items()}
        for place, (rank, node) in enumerate(member for members in self.members for member in members):
            found[rank][node] = place
        return {rank: np.array(own, dtype=np.int64) for rank, own in found.items()}

    def needed_by(self, number: int, rank: int) -> tuple[tuple[int, int], ...]:
        """Those members of a collective, as (rank, node), that this rank's cannot end without, itself too."""
        members, needs = self.members[number], self.needs[number]
        if needs is None:
            return members
        own = next(i for i, (member, _) in enumerate(members) if member == rank)
        return tuple(members[i] for i in needs[own])

    def slowed_us(self, rank: int) -> float:
        """What a rank's kernels took a step only because communication beside them waited, µs."""
        first, *_, last = self.edges[rank].tolist()
        slowed = self.ranks[rank].slowed
        return float(slowed[last] - slowed[first]) / 1e3 / len(self.steps)

    def peers(self, rank: int) -> list[int]:
        """The other ranks that ran the same program."""
        return [other for other in self.roles[rank] if other != rank]


def spent_before(program: RankProgram, moments: Int) -> Int:
    """Own time by WORK before each moment, ns; what no bucket holds is communication that masked a late host."""
    own = program.own_before(moments)
    inside = np.clip(moments, program.times[0], program.times[-1])
    waited = program.joined_before(inside) - program.joined_before(program.times[:1])
    masked = np.maximum(inside - program.times[0] - waited - own.sum(axis=1), 0)
    return np.concatenate((own, masked[:, None]), axis=1)
