"""TO-S003: many ranks that are slower than the others alike, so that none alone is to blame: a group for each cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import UNSET, Struct

from traceops.across.groups import Ranks
from traceops.across.lateness import Lateness, by_cause
from traceops.across.replay.cure import as_peers, median_rank
from traceops.across.replay.graph import WORK, StepGraph, Steps
from traceops.across.replay.simulate import simulate
from traceops.across.replay.what_if import Replays, shared_work
from traceops.across.stragglers import LATE_STEP, Straggler, chance, straggler
from traceops.across.work import WorkCompared, compare_work, own_steps, own_time
from traceops.core.arrays import median
from traceops.measure.summary import RankSummary

LEAST_RANKS = 4  # fewer are stragglers each
_GAP = 2.0  # times what the other ranks' slowest is beyond their median: how far the group is beyond that slowest
_COVERS = 0.80  # of what they take longer: what a cause must explain to be named


class SlowGroup(Struct, frozen=True):
    """Ranks of one program whose own time lies apart from that of all others, `peers`. Times in ns. `middle` is the one
    with the median own time. `longer` is what it takes longer than the peers' median in each step, `each` the same of
    every rank of the group, `saved` what each step gains if all of the group are cured: as their median peer, or, where
    they have more to do (`compared`), with the work shared evenly. `beside` are the other late ranks, cured already.
    `late` are the steps in which the group is slower. See Straggler for `chance`."""

    ranks: tuple[int, ...]
    peers: tuple[int, ...]
    middle: int
    longer: Steps
    each: tuple[Steps, ...]
    saved: Steps
    cause: str
    compared: WorkCompared | None
    late: tuple[int, ...]
    chance: float
    beside: tuple[int, ...] = ()


class SlowGroups(Struct, frozen=True):
    """The ranks of one program that are slower than the rest of it, by what they are slower for. `groups` have four
    ranks or more, most saved first. `single` are fewer, late for another reason than any group. `saved` is what each
    step gains, ns, with all of them cured. `waited` is what a peer waits, ns a step; `share` the part of all waiting
    that is for one of them."""

    groups: tuple[SlowGroup, ...]
    single: tuple[Straggler, ...]
    saved: Steps
    waited: float
    share: float

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them."""
        grouped = [rank for group in self.groups for rank in group.ranks]
        return tuple(sorted([*grouped, *(one.rank for one in self.single)]))


def measure_slow_groups(
    replays: Replays, lateness: Lateness, summaries: Sequence[RankSummary], far: Sequence[int]
) -> SlowGroups | None:
    """The slower ranks of the program whose cure saves most, at most half of it; None where all are like each other.
    far: stragglers far beyond all others (TO-S001), told each by itself and cured here already."""
    graph = replays.graph
    step = float(replays.base.step_ns().mean())
    found = []
    for role in sorted(set(graph.roles.values())):
        own = {rank: own_steps(graph, rank) for rank in role if rank not in far}
        if (apart := apart_ranks(own, LATE_STEP * step)) is not None:
            found.append(_measured(replays, lateness, summaries, *apart, far))
    return max(found, key=lambda groups: float(groups.saved.mean()), default=None)


def far_ranks(found: Sequence[Straggler]) -> tuple[int, ...]:
    """Stragglers far beyond all others that are too few to be a group."""
    apart = [one for one in found if one.apart]
    alike = Counter(one.cause for one in apart)
    return tuple(sorted(one.rank for one in apart if alike[one.cause] < LEAST_RANKS))


def apart_ranks(own: dict[int, Steps], least: float) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(the slower ranks, the others), where their own time falls into two with a gap of at least `least` between. The
    gap is twice as wide as the way from the others' median to their slowest, and the first such one above the median:
    what is slower still may be so for another reason. None without one."""
    if len(own) < 2 * LEAST_RANKS:
        return None
    ordered = sorted(own, key=lambda rank: (float(own[rank].mean()), rank))
    means = np.array([float(own[rank].mean()) for rank in ordered])
    half = -(-len(ordered) // 2)  # the group is at most half of them
    for at in range(half, len(ordered) - LEAST_RANKS + 1):
        slowest, usual = float(means[at - 1]), median(means[:at])
        if means[at] - slowest >= max(least, _GAP * (slowest - usual)):
            return tuple(sorted(ordered[at:])), tuple(sorted(ordered[:at]))
    return None


def _measured(
    replays: Replays,
    lateness: Lateness,
    summaries: Sequence[RankSummary],
    slow: Ranks,
    peers: Ranks,
    far: Sequence[int],
) -> SlowGroups:
    graph = replays.graph
    parts = _parts(graph, slow, peers)
    single = [rank for part in parts if len(part) < LEAST_RANKS for rank in part]
    late = sorted({*slow, *far})
    known = {summary.rank: summary for summary in summaries}
    groups = [
        _group(replays, known, part, peers, [rank for rank in late if rank not in part])
        for part in parts
        if len(part) >= LEAST_RANKS
    ]
    groups.sort(key=lambda group: (-float(group.saved.mean()), group.ranks))
    before, after = replays.cured(far), replays.cured(late)
    saved = replays.base.step_ns() * 0
    if before is not None and after is not None:
        saved = before.step_ns() - after.step_ns()
    if len(groups) == 1 and not single:
        saved = groups[0].saved
    charged = sum(float(lateness.caused[rank].sum()) for rank in late)
    return SlowGroups(
        groups=tuple(groups),
        single=tuple(straggler(replays, lateness, rank, late) for rank in single),
        saved=saved,
        waited=float(median([float(lateness.waited[rank].mean()) for rank in peers])),
        share=charged / lateness.total_ns if lateness.total_ns else 0.0,
    )


def _parts(graph: StepGraph, slow: Sequence[int], peers: Sequence[int]) -> list[tuple[int, ...]]:
    """The slower ranks by what each spends its longer time in. Fewer than a group's stay apart only where that is
    beyond doubt; all are one where no group would be left."""
    usual = median([own_time(graph, rank) for rank in peers], axis=0)
    of_cause = defaultdict[str, list[int]](list)
    plain = dict[int, bool]()
    for rank in slow:
        more = by_cause(zip(WORK, (own_time(graph, rank) - usual).tolist(), strict=True))
        best = max(more, key=lambda cause: more[cause])
        of_cause["host" if best == "gpu_compute" and rank in graph.on_cpu else best].append(rank)
        plain[rank] = best != "unknown" and more[best] >= _COVERS * sum(more.values())
    if not (groups := [ranks for ranks in of_cause.values() if len(ranks) >= LEAST_RANKS]):
        return [tuple(slow)]
    most = max(groups, key=len)
    for ranks in [ranks for ranks in of_cause.values() if len(ranks) < LEAST_RANKS]:
        most += [rank for rank in ranks if not plain[rank]]
        ranks[:] = [rank for rank in ranks if plain[rank]]
    return [tuple(sorted(ranks)) for ranks in of_cause.values() if ranks]


def _group(
    replays: Replays, summaries: dict[int, RankSummary], group: Ranks, peers: Ranks, beside: Sequence[int]
) -> SlowGroup:
    graph, typical = replays.graph, replays.typical
    middle, peer = median_rank(graph, group), median_rank(graph, peers)
    theirs = np.array([own_steps(graph, rank) for rank in peers])
    longer = median([own_steps(graph, rank) for rank in group], axis=0) - median(theirs, axis=0)
    cause = _cause(graph, group, peers, float(longer.sum()))
    compared = None
    if cause == "gpu_compute":
        compared = compare_work(summaries[middle], [summaries[rank] for rank in peers])
    late_ranks = [*beside, *group]
    others = as_peers(graph, dict.fromkeys(beside, peer), late_ranks, typical)
    change = as_peers(graph, dict.fromkeys(late_ranks, peer), late_ranks, typical)
    if compared is not None and compared.kind == "more_work" and not beside:
        change = shared_work(graph, group, typical)
    if cause == "gpu_compute" and group[0] in graph.on_cpu:
        cause, compared = "host", None
    base = simulate(graph, others if beside else None).step_ns()
    late = longer >= LATE_STEP * simulate(graph).step_ns()
    return SlowGroup(
        ranks=group,
        peers=peers,
        middle=middle,
        longer=longer,
        each=tuple(own_steps(graph, rank) - median(theirs, axis=0) for rank in group),
        saved=base - simulate(graph, change).step_ns(),
        cause=cause,
        compared=compared if compared is not None and compared.kind is not UNSET else None,
        late=tuple(number for number, slow in zip(graph.steps, late, strict=True) if slow),
        chance=chance(own_steps(graph, middle)[typical], theirs[:, typical]),
        beside=tuple(beside),
    )


def _cause(graph: StepGraph, group: Sequence[int], peers: Sequence[int], longer: float) -> str:
    """What most of the time that the group takes longer goes to."""
    own, others = (median([own_time(graph, rank) for rank in ranks], axis=0) for ranks in (group, peers))
    more = by_cause(zip(WORK, (own - others).tolist(), strict=True))
    best = max(more, key=lambda cause: more[cause])
    return best if more[best] >= _COVERS * longer else "unknown"
