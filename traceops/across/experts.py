"""Experts: what each rank gets to compute in each layer, how uneven that is, and what dispatch and combine take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from traceops.across.match import Collective, MatchedCollectives
from traceops.across.replay.graph import WORK, spent_before
from traceops.across.roles import Roles
from traceops.measure.exchanges import message_bytes
from traceops.measure.summary import RankSummary

_COUNTS = 0.01  # of the largest all-to-all: what is smaller tells how many tokens come, and carries none
_COMPUTE = WORK.index("compute")


class ExpertTimes(Struct, frozen=True):
    """What a rank's experts of one layer get and do in a step, means over its steps; times in ns.

    `received` is in bytes, of the dispatch in forward and of the gradients in backward; `compute` is the rank's
    computation between a dispatch and its combine.
    """

    rank: int
    layer: int
    received: float
    compute: float


class Experts(Struct, frozen=True):
    """The experts that a group of ranks shares. Shares of `imbalance` are the most that a rank receives over the mean.

    `imbalance` is by step; `dispatch_ns` and `combine_ns` are transfer a step, all members there, and `gbs` is bytes
    that the average rank sends to others over that time, for each of the two.
    """

    ranks: tuple[int, ...]
    layers: int
    times: tuple[ExpertTimes, ...]
    imbalance: tuple[tuple[int, float], ...]
    dispatch_ns: float
    combine_ns: float
    dispatch_gbs: float | None
    combine_gbs: float | None

    @property
    def mean_imbalance(self) -> float:
        """The mean over steps of the largest share of a rank, 1 where all get as much."""
        return float(np.mean([share for _, share in self.imbalance]))


def find_experts(ranks: Sequence[RankSummary], matching: MatchedCollectives, roles: Roles) -> tuple[Experts, ...]:
    """The experts of each group whose all-to-alls come in pairs, dispatch and combine, in every step.

    Where a step has the pairs of a forward and a backward pass (an even number), the second half is that of the same
    layers from the last to the first.
    """
    by_rank = {summary.rank: summary for summary in ranks}
    of_group: dict[tuple[int, ...], list[Collective]] = defaultdict(list)
    for collective, role in zip(matching.collectives, roles.of_collective, strict=True):
        if role == "expert" and _is_all_to_all(collective.op) and _received(collective, by_rank) is not None:
            of_group[collective.group].append(collective)
    found = [_experts(group, own, by_rank) for group, own in sorted(of_group.items())]
    return tuple(own for own in found if own is not None)


def _experts(group: tuple[int, ...], own: Sequence[Collective], ranks: Mapping[int, RankSummary]) -> Experts | None:
    size = {id(collective): sum(_received(collective, ranks) or ()) for collective in own}
    least = _COUNTS * max(size.values())
    first = ranks[group[0]]
    steps: dict[int, list[Collective]] = defaultdict(list)
    for collective in own:
        position = dict(collective.members)[first.rank]
        step = first.step_number(position)
        if step is not None and size[id(collective)] >= least:
            steps[step].append(collective)
    for of_step in steps.values():
        of_step.sort(key=lambda c: int(first.comm.start[dict(c.members)[first.rank]]))
    counts = {len(of_step) for of_step in steps.values()}
    if len(counts) != 1 or (count := counts.pop()) % 2:
        return None
    pairs = count // 2
    layers = pairs // 2 if pairs % 2 == 0 else pairs
    received: dict[tuple[int, int], float] = defaultdict(float)
    computed: dict[tuple[int, int], float] = defaultdict(float)
    imbalance = []
    for step, of_step in sorted(steps.items()):
        share = np.zeros(len(group))
        for pair in range(pairs):
            dispatch, combine = of_step[2 * pair], of_step[2 * pair + 1]
            layer = pair if pair < layers else pairs - 1 - pair
            got = _received(dispatch, ranks) or ()
            for (rank, position), n in zip(dispatch.members, got, strict=True):
                received[rank, layer] += n / len(steps)
                edges = ranks[rank].comm.end[position], ranks[rank].comm.start[dict(combine.members)[rank]]
                spent = spent_before(ranks[rank].program, np.array(edges, dtype=np.int64))[:, _COMPUTE]
                computed[rank, layer] += float(spent[1] - spent[0]) / len(steps)
            share += got
        imbalance.append((step, float(share.max() / share.mean()) if share.any() else 1.0))
    times = tuple(ExpertTimes(*key, received[key], computed[key]) for key in sorted(received))
    sides = [[c for of_step in steps.values() for c in of_step[side::2]] for side in (0, 1)]
    spent_ns = [sum(c.transfer_ns for c in side) / len(steps) for side in sides]
    gbs = [_gbs(side, ranks) for side in sides]
    return Experts(group, layers, times, tuple(imbalance), spent_ns[0], spent_ns[1], gbs[0], gbs[1])


def _received(collective: Collective, ranks: Mapping[int, RankSummary]) -> tuple[int, ...] | None:
    """Bytes that each member gets, in the order of `members`; None where one does not say."""
    found = []
    for rank, position in collective.members:
        args = ranks[rank].comm.args[position]
        size = None if args is None else message_bytes(args.elements_out or 0, args.dtype)
        if size is None:
            return None
        found.append(size)
    return tuple(found) if any(found) else None


def _gbs(side: Sequence[Collective], ranks: Mapping[int, RankSummary]) -> float | None:
    """Bytes that leave a rank, of n ranks (n - 1) / n of what it gets on average, over the transfer; in GB/s."""
    spent = sum(c.transfer_ns for c in side)
    if not spent:
        return None
    moved = sum(float(np.mean(_received(c, ranks) or (0,))) * (1 - 1 / len(c.group)) for c in side)
    return moved / spent


def _is_all_to_all(op: str) -> bool:
    return op.replace("_", "").lower().startswith("alltoall")
