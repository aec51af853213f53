"""TO-S001 and TO-S002: ranks that make the others wait, why, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traceops.across.lateness import CAUSES, LEAST_SHARE, Lateness, by_cause, least_share
from traceops.across.replay.graph import WORK, StepGraph, Steps
from traceops.across.replay.programs import late_places
from traceops.across.replay.simulate import simulate
from traceops.across.replay.what_if import HOST, LOADING, Replays
from traceops.across.work import far_beyond, host_ns, loads_longer, own_steps, own_time
from traceops.core.arrays import Floats, Mask, median
from traceops.measure.inventory import KernelStats
from traceops.measure.summary import RankSummary

MOST_COMPARED = 128  # peers in the permutation test
_SHUFFLES = 2000
_SEED = 20200


def chance(own: Steps, others: Floats) -> float:
    """Probability that some rank looks as late as this one if (rank, step) cells were dealt at random. A permutation
    test on the largest mean over a rank's steps; `others` has shape (ranks, steps). [Good 2005]"""
    if not len(others) or not own.sum():
        return 1.0
    thinned = others[:: len(others) // MOST_COMPARED + 1]
    cells = np.concatenate((own[None, :], thinned))
    observed = float(own.mean())
    random = np.random.default_rng(_SEED)
    flat = np.tile(cells.ravel(), (_SHUFFLES, 1))
    dealt = random.permuted(flat, axis=1).reshape(_SHUFFLES, *cells.shape)
    hits = int((dealt.mean(axis=2).max(axis=1) >= observed * (1 - 1e-9)).sum())
    return (hits + 1) / (_SHUFFLES + 1)


_COVERS = 0.80  # of the lateness: what a cause must explain to be named


def cause_of(
    replays: Replays, lateness: Lateness, rank: int, peers: Sequence[int], rest: Sequence[int], saved: Steps
) -> str:
    """The cause that covers most of the charge, if it covers enough of it; else what a replay shows. A rank may be late
    for another reason. Those that wait for it let their hosts run ahead. Then that rank alone shows idle time for its
    host, though its host is no slower than theirs. Such time does not count against the cause."""
    graph = replays.graph
    charged = dict(zip(CAUSES, lateness.caused[rank].sum(axis=1).tolist(), strict=True))
    if not peers and (places := late_places(graph, rank)) is not None:
        # Who is late elsewhere hides what the others wait for it.
        charged = by_cause((work, max(more, 0.0)) for work, more in places.more.items())
        if rank in graph.on_cpu:
            charged["host"] += charged["gpu_compute"]
            charged["gpu_compute"] = 0.0
    total = sum(charged.values())
    if not loads_longer(graph, rank, peers, 0.5 * charged["input"] / max(len(peers), 1)):
        # It loads as long as they do; what they wait for it elsewhere only hides theirs.
        charged["host"] += charged.pop("input")
    best = max(charged, key=lambda cause: charged[cause])
    if best in ("input", "gpu_compute", "copy") and total > 0:
        own, others = host_ns(graph, rank), [ns for peer in peers if (ns := host_ns(graph, peer)) is not None]
        if own is not None and others and own - median(others) < 0.2 * total / max(len(peers), 1):
            total -= charged["host"]
    if best != "unknown" and charged[best] >= _COVERS * total > 0 and (lateness.share(rank) or 0) >= LEAST_SHARE:
        return best
    return _cause_by_replay(replays, rank, peers, rest, float(saved.mean()))


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
    more = own_time(graph, rank)[compute] - median([own_time(graph, peer)[compute] for peer in peers])
    if more / max(len(graph.steps), 1) < _COVERS * saved:
        return "unknown"
    return "host" if rank in graph.on_cpu else "gpu_compute"


MOST_CANDIDATES = 16
_MATTERS = 0.02  # of the step: what a rank must save beside the others to be counted among them
LATE_STEP = 0.05  # of the step: what a rank must cost in a step to be late in it
_OF_WORST = 0.25  # of what it costs in its worst step: the least that a late step costs
_PLAINLY = 0.25  # of the step: what costs so much is a late step, however much the worst one costs
_HIDDEN = 0.1  # of the step: what the cure of a rank must add that is late only behind others
_MOST_HIDDEN = 2  # ranks whose cure alone adds nothing, because they hide each other


class Straggler(Struct, frozen=True, dict=True):
    """A rank that others wait for. Times in ns. `saved` is what each step gains if this rank runs as its peers do and
    the other stragglers are cured already. `alone` is what it gains if only this rank is cured. `chance` is the
    probability that ranks whose steps were dealt at random would show one as late; steps that are long for another
    reason are no part of that. `caused` is by CAUSES, a step. `apart` says whether its own time in its late steps lies
    beyond what its peers differ by among themselves."""

    rank: int
    share: float
    caused: dict[str, float]
    cause: str
    saved: Steps
    alone: Steps
    late_steps: tuple[int, ...]
    own: Steps
    others: Floats
    apart: bool

    @cached_property
    def chance(self) -> float:
        """As `chance` has it of its own time and its peers', asked of few: it deals thousands of times."""
        return chance(self.own, self.others)


class Stragglers(Struct, frozen=True):
    """Those that matter, most saved first; `leader` caused most of the waiting, whether or not it costs anything.
    `joint_ns` are the step times with all of `found` cured, `fed_ns` those without loading too. `host_share` is the
    part of `joint_ns`, in typical steps, that would go if no host were ever late: where hosts bound the job anyway, one
    of them is always the slowest. `alone` is the rank that caused most of the waiting if no other runs its program, so
    that nothing can be compared."""

    found: tuple[Straggler, ...]
    leader: Straggler | None
    step_ns: Steps
    joint_ns: Steps | None
    host_share: float
    alone: int | None
    fed_ns: Steps | None = None

    @property
    def by_device(self) -> tuple[int, ...]:
        """The leader, where its device is why it is late."""
        return (self.leader.rank,) if self.leader and self.leader.cause in ("gpu_compute", "copy") else ()


def measure_stragglers(replays: Replays, lateness: Lateness) -> Stragglers:
    """Find the smallest set of ranks whose cure explains what curing all candidates saves."""
    graph, base = replays.graph, replays.base.step_ns()
    shares = {rank: lateness.share(rank) or 0.0 for rank in graph.ranks}
    most = max(shares, key=lambda rank: (shares[rank], -rank))
    alone = most if shares[most] >= LEAST_SHARE and not graph.has_peers(most) else None
    order = sorted((rank for rank in shares if graph.has_peers(rank)), key=lambda rank: (-shares[rank], rank))
    least = least_share(len(graph.ranks))
    leader = order[0] if order and shares[order[0]] >= least else None
    chosen = [
        rank for rank in order if shares[rank] >= LEAST_SHARE or (shares[rank] >= least and _stands_out(graph, rank))
    ][:MOST_CANDIDATES]
    while chosen and not _show_a_pace(replays, chosen):
        chosen.remove(_least_late(replays, chosen))
    chosen = _needed(replays, _with_hidden(replays, chosen)) if chosen else []
    with_all = _paced_steps(replays, chosen) if chosen else None
    found = [straggler(replays, lateness, rank, chosen) for rank in chosen]
    found.sort(key=lambda straggler: -float(straggler.saved.mean()))
    first = next((s for s in found if s.rank == leader), None)
    if leader is not None and first is None:
        first = straggler(replays, lateness, leader, [leader])
    host_share, fed = 0.0, None
    cured = replays.cure(chosen)
    if with_all is not None and cured is not None:
        in_time = simulate(graph, replace(cured, without=HOST)).step_ns()
        usual = replays.typical
        host_share = float((with_all - in_time)[usual].mean() / with_all[usual].mean())
        fed = simulate(graph, replace(cured, without=LOADING)).step_ns()
    return Stragglers(tuple(found), first, base, with_all, host_share, alone, fed)


def _stands_out(graph: StepGraph, rank: int) -> bool:
    """Whether a rank's own time lies beyond all that its peers differ by among themselves."""
    return _apart(own_steps(graph, rank), np.array([own_steps(graph, peer) for peer in graph.peers(rank)]))


def _steps(replays: Replays, cured: Sequence[int]) -> Steps | None:
    """The steps with these ranks cured, if loaders keep up: who is late is no less so where loaders are as slow."""
    replay = replays.cured(cured)
    return None if replay is None else replay.fed_ns()


def _paced_steps(replays: Replays, cured: Sequence[int]) -> Steps | None:
    """The steps that a cure leaves."""
    replay = replays.cured(cured)
    return None if replay is None else replay.step_ns()


def _with_hidden(replays: Replays, chosen: Sequence[int]) -> list[int]:
    """Adds ranks that are seen to be late only once the later ones are cured, even several that hide each other."""
    chosen, sure = list(chosen), len(chosen)
    least = _HIDDEN * float(replays.base.step_ns().mean())
    while len(chosen) < MOST_CANDIDATES and (replay := replays.cured(chosen)) is not None:
        waited = _waited_for(replays, chosen, replay.waited_for)
        blamed = {r: ns for r, ns in waited.items() if r not in chosen and replays.graph.has_peers(r)}
        worst = max(blamed, key=lambda r: blamed[r], default=None)
        if worst is None or blamed[worst] < _MATTERS * replays.base.step_ns().sum() * (len(replays.graph.ranks) - 1):
            break
        if (steps := _steps(replays, [*chosen, worst])) is None or len(chosen) - sure >= _MOST_HIDDEN:
            break
        chosen.append(worst)
        if (before := _steps(replays, chosen[:sure])) is not None and (before - steps).mean() >= least:
            sure = len(chosen)
    return chosen[:sure]


def _waited_for(replays: Replays, cured: Sequence[int], waited_for: Mapping[int, int]) -> dict[int, int]:
    """Whom the others wait for with these ranks cured: for a cured one, because its peer is late whose pace it has."""
    change, blamed = replays.cure(cured), dict(waited_for)
    for rank, peer in (change.program_of if change is not None else {}).items():
        if far_beyond(replays.graph, peer, cured):
            blamed[peer] += blamed.pop(rank)
    return blamed


def _show_a_pace(replays: Replays, chosen: Sequence[int]) -> bool:
    """Whether somebody shows how fast these ranks can be: peers, or they each other, late in places of their own."""
    if all(set(replays.graph.peers(rank)) - set(chosen) for rank in chosen):
        return True
    together = _steps(replays, chosen)
    without_least = [rank for rank in chosen if rank != _least_late(replays, chosen)]
    before = _steps(replays, without_least)
    if together is None or before is None:
        return False
    return float((before - together).mean()) >= _HIDDEN * float(replays.base.step_ns().mean())


def _least_late(replays: Replays, chosen: Sequence[int]) -> int:
    """Of ranks that cannot all be cured: who is late in most steps stays, before who causes most of the waiting."""
    base = replays.base.step_ns()
    saved = {rank: median(base - steps) for rank in chosen if (steps := _steps(replays, [rank])) is not None}
    if max(saved.values(), default=0.0) < LATE_STEP * median(base):
        return chosen[-1]
    return min(chosen, key=lambda rank: (saved.get(rank, 0.0), -chosen.index(rank)))


def _needed(replays: Replays, chosen: list[int]) -> list[int]:
    """Leaves out, least blamed first, ranks whose cure adds nothing to that of the others."""
    base, with_all = replays.base.step_ns(), _steps(replays, chosen)
    for rank in reversed(list(chosen)):
        rest = [other for other in chosen if other != rank]
        without = _steps(replays, rest)
        if with_all is not None and without is not None:
            gain = (without - with_all) / base.mean()
            if gain.mean() < _MATTERS and gain.max() < 2 * LATE_STEP:
                chosen, with_all = rest, without
    return chosen


def straggler(replays: Replays, lateness: Lateness, rank: int, chosen: Sequence[int]) -> Straggler:
    """One of `chosen`, measured against peers that are none of them."""
    graph, base = replays.graph, replays.base.step_ns()
    rest = [other for other in chosen if other != rank]
    saved = _saved(_steps(replays, rest), _steps(replays, chosen), base)
    paced = _saved(_paced_steps(replays, rest), _paced_steps(replays, chosen), base)
    only = _paced_steps(replays, [rank])
    peers = [peer for peer in graph.peers(rank) if peer not in chosen]
    own = own_steps(graph, rank, replays.without)
    others = np.array([own_steps(graph, peer, replays.without) for peer in peers])
    if not peers and (places := late_places(graph, rank)) is not None:
        own, others = places.own, places.peers
    in_late = _late(saved, base)
    if len(others) and not in_late.sum() > len(base) / 2:
        # The others may feel it a step later than it took place.
        in_late = _late(own - median(others, axis=0), base)
    late = [step for step, is_late in zip(lateness.steps, in_late, strict=True) if is_late]
    in_late = in_late if late else ~in_late
    share = lateness.share(rank) or 0.0
    if share < LEAST_SHARE and rest and (replay := replays.cured(rest)) is not None:
        waited_for = _waited_for(replays, rest, replay.waited_for)  # who was hidden shows without them
        share = waited_for[rank] / max(sum(waited_for.values()), 1)
    return Straggler(
        rank=rank,
        share=share,
        caused=dict(zip(CAUSES, (lateness.caused[rank].sum(axis=1) / len(base)).tolist(), strict=True)),
        cause=cause_of(replays, lateness, rank, peers, rest, saved),
        saved=paced,
        alone=base * 0 if only is None else base - only,
        late_steps=tuple(late),
        own=own[replays.typical],
        others=others[:, replays.typical] if len(others) else others,
        apart=len(others) > 0 and _apart(own[in_late], others[:, in_late]),
    )


def _saved(without: Steps | None, with_all: Steps | None, base: Steps) -> Steps:
    return base * 0 if with_all is None or without is None else without - with_all


def _late(more: Steps, base: Steps) -> Mask:
    """The steps in which a rank is late, by what it takes more or costs in each, ns."""
    step = median(base)
    least = max(LATE_STEP * step, min(_OF_WORST * float(more.max()), _PLAINLY * step))
    late: Mask = more >= least
    return late


def _apart(own: Steps, others: Floats) -> bool:
    """Whether a rank is no mere slowest of many: as far beyond the slowest peer as that is twice beyond the median. Of
    medians over the steps: that a peer evaluates or saves in one of them says nothing of how ranks differ."""
    usual = median(others, axis=1)
    slowest = float(usual.max())
    return median(own) >= slowest + 2 * (slowest - median(usual))


# A rank whose device is late, which nobody waits for because data loading takes as long on all.

_OF_DEVICE = ("gpu_compute", "copy")  # the profiler slows hosts, so that one of them always comes last


def late_behind_loading(replays: Replays, lateness: Lateness) -> Straggler | None:
    """Who would be waited for most with batches in time, if its device is the cause; times are of such steps."""
    base, in_time = replays.base.step_ns(), Replays(replays.graph, replays.typical, without=LOADING)
    if float((base - in_time.base.step_ns()).mean()) < _MATTERS * float(base.mean()):
        return None
    blamed = {rank: ns for rank, ns in in_time.base.waited_for.items() if in_time.graph.has_peers(rank)}
    worst = max(blamed, key=lambda rank: (blamed[rank], -rank), default=None)
    if worst is None:
        return None
    late = straggler(in_time, lateness, worst, [worst])
    return late if late.cause in _OF_DEVICE else None


_DIFFERS = 1.05  # times the blocks a launch of another rank: a kernel whose grid tells how much work it has
_AGREE = 0.10  # of the share of the work: how far the kernels' shares may lie apart
_MOST_AGREE = 0.8  # of their time
_CONSTANT = 1.1  # times the time of another rank's: a kernel of as many blocks that does not grow with the work
_MOST_CONSTANT = 0.15  # of the computation: more, and not all of it is shared


def _shares_of_work(
    known: Sequence[Mapping[str, KernelStats]], steps: Sequence[int]
) -> tuple[list[Floats], list[float], float]:
    """Each rank's share by kernels whose grid follows the work, what these take, and what others take on all alike."""
    shares, weights, constant = [], [], 0.0
    for name in set.intersection(*map(set, known)):
        of_rank = [own[name] for own in known]
        if len({k.count / n for k, n in zip(of_rank, steps, strict=True)}) > 1 or min(k.blocks for k in of_rank) <= 0:
            continue
        blocks = np.array([k.blocks / k.count for k in of_rank])
        us = np.array([k.total_us / n for k, n in zip(of_rank, steps, strict=True)])
        if blocks.max() >= _DIFFERS * blocks.min():
            shares.append(blocks / blocks.mean())
            weights.append(float(us.mean()))
        elif blocks.max() == blocks.min() and us.max() < _CONSTANT * us.min():
            constant += float(us.mean())
    return shares, weights, constant


def best_pace(ranks: Sequence[RankSummary], slowed_us: Sequence[float]) -> float:
    """Time of all ranks' work at the best pace of any of them, over what it takes; 1 where the kernels do not tell.
    Kernels whose grid follows the work (elementwise ones) tell each rank's share of it. Those of matrices, whose grid
    is as large as the device, run more or less efficiently by their sizes: time over share is a rank's pace. Only where
    nearly all computation follows the work, as with batches of other sizes. `slowed_us` is what each rank's kernels
    took a step only because communication beside them waited."""
    steps = [max(len(summary.step_numbers), 1) for summary in ranks]
    known = [{k.name: k for k in summary.kernels if k.kind == "compute" and k.count} for summary in ranks]
    if len(ranks) < 2 or not all(known):
        return 1.0
    shares, weights, constant = _shares_of_work(known, steps)
    whole = np.array([sum(k.total_us for k in own.values()) / n for own, n in zip(known, steps, strict=True)])
    whole -= np.array(slowed_us)
    if not shares or constant > _MOST_CONSTANT * whole.mean():
        return 1.0
    share = np.average(shares, axis=0, weights=weights)
    apart = np.abs(np.array(shares) - share).max(axis=1)
    if np.array(weights)[apart <= _AGREE].sum() < _MOST_AGREE * sum(weights):
        return 1.0
    best = constant + float(((whole - constant) / share).min())
    return min(best / float(whole.mean()), 1.0)
