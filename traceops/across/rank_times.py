"""What each rank's time goes to: its ledger, what its groups are for, experts, and passes of an inference server."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from traceops.across.match import Collective, MatchedCollectives, waits_by_rank
from traceops.across.replay.graph import WORK, StepGraph, spent_before
from traceops.across.roles import ROLE_ORDER, Roles, kind_of
from traceops.core.arrays import Int, Intervals, Mask, intersect, mean_ms, median, subtract, total, union
from traceops.core.words import Role
from traceops.measure.exchanges import message_bytes
from traceops.measure.phases import InferencePass, PassKind
from traceops.measure.summary import RankSummary


class RankTimes(Struct, frozen=True, dict=True):
    """One rank's ledger, ns per bucket and step; waiting and transfer of all its collectives in the steps.
    `caused_wait_ns` is what others waited for this rank with nothing else to do; all of them None where waiting and
    transfer cannot be told apart; the last also where much of the waiting is charged to nobody. `typical` says which
    steps are like the others: means are taken over these."""

    summary: RankSummary
    duration: Int
    buckets: dict[str, Int]
    typical: Mask
    wait_ns: int | None
    transfer_ns: int | None
    caused_wait_ns: int | None

    def mean_ms(self, bucket: str) -> float:
        """Time in a bucket, ms: mean over the typical steps."""
        return self._means[bucket]

    @cached_property
    def _means(self) -> dict[str, float]:
        steps = int(np.count_nonzero(self.typical))
        return {bucket: float(ns) / steps / 1e6 if steps else 0.0 for bucket, ns in self._sums.items()}

    @cached_property
    def _sums(self) -> dict[str, int]:
        """Time in each bucket, ns: all of the typical steps."""
        return {bucket: total(ns[self.typical]) for bucket, ns in self.buckets.items()}

    @cached_property
    def _typical_ns(self) -> int:
        return total(self.duration[self.typical])

    @cached_property
    def step_ms(self) -> float:
        """Duration of a step, ms: mean over the typical steps."""
        return mean_ms(self.duration[self.typical])

    @property
    def recording_ms(self) -> float:
        """The most that recording takes of a step on this host, ms: mean over the typical steps; 0 where not known."""
        return self.mean(self.summary.host.recording) / 1e6

    @property
    def loading_ms(self) -> float:
        """The host in data loading in a step, the device busy or not, ms: mean over the typical steps."""
        return self.mean(self.summary.host.loading) / 1e6

    def mean(self, by_step: Sequence[int]) -> float:
        """Of the typical steps; 0 where nothing is known."""
        known = len(by_step) == len(self.typical) and self.typical.any()
        return float(np.array(by_step)[self.typical].mean()) if known else 0.0

    def share_pct(self, bucket: str) -> float | None:
        """Percent of the typical steps that a bucket takes; None without a step."""
        return 100.0 * self._sums[bucket] / self._typical_ns if self._typical_ns > 0 else None


class RoleTimes(Struct, frozen=True):
    """Exposed communication of one rank and role, ns per step; over all roles they add up to the ledger's buckets."""

    wait: Int
    transfer: Int
    unmatched: Int

    @property
    def exposed(self) -> Int:
        """All of it."""
        return self.wait + self.transfer + self.unmatched


ByRole = Mapping[Role, RoleTimes]


def measure_role_times(ranks: Sequence[RankSummary], matching: MatchedCollectives, roles: Roles) -> dict[int, ByRole]:
    """By rank and role. An instant in which several roles do the same goes to the first of ROLE_ORDER."""
    matched: dict[int, list[tuple[int, int, int]]] = {summary.rank: [] for summary in ranks}
    for collective, role in zip(matching.collectives, roles.of_collective, strict=True):
        code = ROLE_ORDER.index(role)
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            matched[rank].append((position, wait, code))
    return {summary.rank: _of_rank(summary, matched[summary.rank], roles) for summary in ranks}


def _of_rank(summary: RankSummary, matched: Sequence[tuple[int, int, int]], roles: Roles) -> ByRole:
    comm, exposed = summary.comm, summary.ledger.exposed
    at, wait, code = np.array(matched, dtype=np.int64).reshape(-1, 3).T
    start, end = comm.start[at], comm.end[at]
    turn = start + wait
    moving = union(turn, end)
    transferring = intersect(exposed, moving)
    waiting = subtract(intersect(exposed, union(start, turn)), moving)
    rest = subtract(subtract(exposed, transferring), waiting)
    every = np.array([ROLE_ORDER.index(role) for role in roles.of_event[summary.rank]], dtype=np.int64)
    parts: dict[Role, dict[str, Int]] = defaultdict(dict)
    for name, left, begins, ends, of in (
        ("transfer", transferring, turn, end, code),
        ("wait", waiting, start, turn, code),
        ("unmatched", rest, comm.start, comm.end, every),
    ):
        for number in sorted({*of.tolist()}):
            chosen = of == number
            own = union(begins[chosen], ends[chosen])
            parts[ROLE_ORDER[number]][name] = _within(intersect(left, own), summary)
            left = subtract(left, own)
    none = np.zeros(len(summary.step_numbers), dtype=np.int64)
    return {
        role: RoleTimes(own.get("wait", none), own.get("transfer", none), own.get("unmatched", none))
        for role, own in parts.items()
    }


def _within(part: Intervals, summary: RankSummary) -> Int:
    return part.within(summary.step_edges[:-1], summary.step_edges[1:])


_MOST = 0.5  # of the time, to name the role


def waiting_role(graph: StepGraph, roles: Roles, late: int, others: Sequence[int]) -> Role | None:
    """The role of the communication before which a rank loses time: there the others meet it first. Between each two of
    its collectives its own time is compared with the median of `others`, its peers. None where no role has half of what
    it takes longer."""
    own = graph.ranks[late]
    shared = set(own.labels).intersection(*(graph.ranks[rank].labels for rank in others))
    if not others or not shared:
        return None
    at = [node for node in own.work.argsort(kind="stable").tolist() if own.labels[node] in shared]
    labels = [own.labels[node] for node in at]
    spent = np.diff(own.work[at])
    theirs = []
    for nodes in (graph.ranks[rank] for rank in others):
        work_of = dict(zip(nodes.labels, nodes.work.tolist(), strict=True))
        theirs.append(np.diff([work_of[label] for label in labels]))
    usual = median(theirs, axis=0)
    number_of = {node: number for number, members in enumerate(graph.members) for rank, node in members if rank == late}
    lost: dict[Role | None, float] = defaultdict(float)
    for node, more in zip(at[1:], (spent - usual).tolist(), strict=True):
        number = number_of.get(node)
        lost[None if number is None else roles.of_collective[graph.kind[number]]] += more
    total = sum(ms for ms in lost.values() if ms > 0)
    role, most = max(lost.items(), key=lambda item: item[1])
    return role if most > 0 and most >= _MOST * total else None


def role_of_groups(roles: Roles, matching: MatchedCollectives, groups: Sequence[tuple[int, ...]]) -> Role | None:
    """The role of most transfer in these groups; None where none has half of it."""
    chosen, moved = set(groups), Counter[Role]()
    for collective, role in zip(matching.collectives, roles.of_collective, strict=True):
        if collective.group in chosen:
            moved[role] += collective.transfer_ns
    if not moved:
        return None
    role, most = max(moved.items(), key=lambda item: item[1])
    return role if most > 0 and most >= _MOST * sum(moved.values()) else None


KINDS: tuple[PassKind, ...] = ("prefill", "mixed", "decode")


class Passes(Struct, frozen=True):
    """Passes of one kind on all ranks, a value each; ns. `between`: the device runs nothing from the end of the pass
    before to the first kernel. `scheduling`: the host is in neither pass meanwhile. `waiting` and `transfer`: of
    matched collectives inside the pass, waiting for late members (skew) and moving data. `unmatched`: communication of
    which that cannot be told."""

    kind: PassKind
    of_rank: tuple[int, ...]
    passes: tuple[InferencePass, ...]
    between: Int
    scheduling: Int
    waiting: Int
    transfer: Int
    unmatched: Int


def measure_passes(ranks: Sequence[RankSummary], matching: MatchedCollectives) -> tuple[Passes, ...]:
    """The passes of each kind that the traces annotate; () for anything but inference."""
    if not any(summary.passes for summary in ranks):
        return ()
    waits = waits_by_rank(matching, ranks)
    rows: dict[PassKind, list[tuple[int, InferencePass, tuple[int, ...]]]] = defaultdict(list)
    for summary in ranks:
        start, turn, end = waits[summary.rank]
        moving = union(turn, end)
        waiting = subtract(union(start, turn), moving)
        other = subtract(subtract(union(summary.comm.start, summary.comm.end), moving), waiting)
        before: InferencePass | None = None
        for one in summary.passes:
            edges = np.array([one.device_start]), np.array([one.device_end])
            spent = (int(part.within(*edges)[0]) for part in (waiting, moving, other))
            scheduling = -1 if before is None else max(one.host_start - before.host_end, 0)
            rows[one.kind].append((summary.rank, one, (one.idle_before, scheduling, *spent)))
            before = one
    found = []
    for kind in KINDS:
        if own := rows.get(kind):
            columns = np.array([times for _, _, times in own], dtype=np.int64).T
            found.append(Passes(kind, tuple(r for r, _, _ in own), tuple(p for _, p, _ in own), *columns))
    return tuple(found)


_COUNTS = 0.01  # of the largest all-to-all: what is smaller tells how many tokens come, and carries none
_COMPUTE = WORK.index("compute")


class ExpertTimes(Struct, frozen=True):
    """What a rank's experts of one layer get and do in a step, means over its steps; times in ns. `received` is in
    bytes, of the dispatch in forward and of the gradients in backward; `compute` is the rank's computation between a
    dispatch and its combine."""

    rank: int
    layer: int
    received: float
    compute: float


class Experts(Struct, frozen=True):
    """The experts that a group of ranks shares. Shares of `imbalance` are the most that a rank receives over the mean.
    `imbalance` is by step; `dispatch_ns` and `combine_ns` are transfer a step, all members there, and `gbs` is bytes
    that the average rank sends to others over that time, for each of the two."""

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
    """The experts of each group whose all-to-alls come in pairs, dispatch and combine, in every step. Where a step has
    the pairs of a forward and a backward pass (an even number), the second half is that of the same layers from the
    last to the first."""
    by_rank = {summary.rank: summary for summary in ranks}
    of_group: dict[tuple[int, ...], list[Collective]] = defaultdict(list)
    for collective, role in zip(matching.collectives, roles.of_collective, strict=True):
        if role == "expert" and kind_of(collective.op) == "all_to_all" and _received(collective, by_rank) is not None:
            of_group[collective.group].append(collective)
    found = [_experts(group, own, by_rank) for group, own in sorted(of_group.items())]
    return tuple(own for own in found if own is not None)


def _by_step(
    own: Sequence[Collective], first: RankSummary, ranks: Mapping[int, RankSummary]
) -> dict[int, list[Collective]]:
    """Those that move much, by the step of the group's first rank, in their order."""
    size = {id(collective): sum(_received(collective, ranks) or ()) for collective in own}
    least = _COUNTS * max(size.values())
    position = {id(collective): dict(collective.members)[first.rank] for collective in own}
    steps: dict[int, list[Collective]] = defaultdict(list)
    for collective in sorted(own, key=lambda one: int(first.comm.start[position[id(one)]])):
        step = first.step_number(position[id(collective)])
        if step is not None and size[id(collective)] >= least:
            steps[step].append(collective)
    return steps


def _experts(group: tuple[int, ...], own: Sequence[Collective], ranks: Mapping[int, RankSummary]) -> Experts | None:
    steps = _by_step(own, ranks[group[0]], ranks)
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
        imbalance.append((step, float(share.max() / share.mean()) if np.count_nonzero(share) else 1.0))
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
    if not (spent := sum(c.transfer_ns for c in side)):
        return None
    moved = sum(float(np.mean(_received(c, ranks) or (0,))) * (1 - 1 / len(c.group)) for c in side)
    return moved / spent
