"""When a late rank is named: the run can be compared, the rank stands apart, and the others are seen to wait."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceops.across.cross_rank import CrossRank, Replay
from traceops.across.host_difference import grown
from traceops.across.replay.graph import WORK, Steps
from traceops.across.replay.programs import late_places
from traceops.across.run_use import CoreWaits, beyond_peers
from traceops.across.stragglers import LATE_STEP, Straggler
from traceops.across.work import far_beyond, own_time
from traceops.core.arrays import median
from traceops.core.claims import reason
from traceops.core.rule import Bounds
from traceops.rules.inputs import why_incomplete
from traceops.rules.shared import IMPACT_BOUNDS, ends_fit, on_cpu

# Bounds that TO-S001 to TO-S003 share: a single late rank is judged as a group of them is.


class LateBounds(Bounds, frozen=True):
    """Percent of the step, and chances, as words/late.ini says; two ranks of three steps have at least 1 in 10."""

    words = "late"

    impact_pct: tuple[float, float] = IMPACT_BOUNDS
    burst_pct: tuple[float, float] = (10.0, 25.0)
    chance: float = 0.12
    sure: float = 0.05


BOUNDS = LateBounds()
BURST_PCT, CHANCE, SURE = BOUNDS.burst_pct, BOUNDS.chance, BOUNDS.sure
VISIBLE = 0.25  # of the saving: what the others must be seen to wait
PROFILED = 1.2  # profiled ÷ unprofiled step from which a slow host may be the profiler's doing
FELT = 0.25  # of what a rank costs in its worst step: the others lose time in such a step too

_MOST_ERROR = 0.15  # of a step, mean over steps: of a replay that is off by more nothing is concluded
_ERRORS = 2.0  # times the replay's mean error: by so much a saving must be beyond its bound
_LEAD = 2.0  # times as much waiting as any other can have caused, where some is charged to nobody
_MOST = 0.5  # of all waiting: what a rank must cause on CPUs that takes longer for no single cause
_TIMES = 2.0  # as long as on its peers: a region that a rank's host is late in, and not for being slower by nature
_REGION_SHARE = 1 / 3  # of what its cure saves: what that region must take longer
_LEFT = 0.2  # of what its cure saves: with less left beside its waits for cores, these are the finding
_MOST_OF_WAITING = 0.75  # what a rank that is late in some steps must cause on CPUs, which others use too


class ComparedRun(CrossRank, frozen=True, kw_only=True):
    """A run whose ranks can be compared step by step: with a replay that is near to what was measured."""

    replay: Replay


def compared(run: CrossRank) -> ComparedRun | None:
    """The run, where its ranks can be compared; None where they cannot."""
    if run.replay is None or run.replay.what_if.mean_error > _MOST_ERROR or not ends_fit(run):
        return None
    return ComparedRun(**{name: getattr(run, name) for name in run.__struct_fields__})


def nothing_to_compare(run: CrossRank) -> str:
    """Why ranks cannot be compared, or only roughly."""
    if len(run.ranks) < 2:
        return reason("late", "one_rank")
    if why := why_incomplete(run.ranks):
        return why
    if not run.split:
        return reason("late", "no_collective_matched")
    if not ends_fit(run):
        return reason("late", "out_of_step")
    if run.replay is not None:
        return reason("late", "replay_off", pct=f"{run.replay.what_if.error_pct:.0f}")
    return reason("late", "no_common_step")


def uncertain(run: ComparedRun) -> str:
    """Why no rank may be cleared and only the plainest be named; empty where everything is explained."""
    if not run.replay.charged.holds:
        return reason("late", "uncharged", pct=f"{run.replay.charged.uncharged_pct:.0f}")
    return "" if run.replay.what_if.holds else nothing_to_compare(run)


def beyond_doubt(run: ComparedRun, straggler: Straggler, saved: float) -> bool:
    """Whether a rank would be named whoever caused the rest of the waiting, and however far the replay is off. saved:
    part of the step."""
    if saved < IMPACT_BOUNDS[0] / 100 + _ERRORS * run.replay.what_if.mean_error:
        return False
    if run.replay.charged.holds:
        return True
    others = max(
        run.replay.lateness.share(rank) or 0.0 for rank in run.replay.lateness.caused if rank != straggler.rank
    )
    return run.replay.charged.least_lead(straggler.share, others) >= _LEAD


def late_in_most(straggler: Straggler, run: ComparedRun) -> bool:
    """Whether it is late in most of the typical steps; what is long for another reason is no evidence of it."""
    typical = set(run.replay.lateness.steps) - set(run.unlike) or set(run.replay.lateness.steps)
    return len(typical & set(straggler.late_steps)) > len(typical) / 2


def seen_waiting(run: ComparedRun) -> bool:
    """Whether the ranks that are not late wait for those that are, as far as their cure would save."""
    if run.replay.stragglers.joint_ns is None:
        return False
    return _wait_for_late(run, run.replay.stragglers.step_ns - run.replay.stragglers.joint_ns)


def seen_in_its_steps(run: ComparedRun, straggler: Straggler) -> bool:
    """The same for the steps in which a rank costs most, and those after: a wait may come a step later."""
    if (joint := run.replay.stragglers.joint_ns) is None:
        return False
    felt = straggler.saved >= FELT * max(float(straggler.saved.max()), 1.0)
    near = felt | np.concatenate(([False], felt[:-1]))
    return _wait_for_late(run, (run.replay.stragglers.step_ns - joint) * felt, near)


def late_by_turns(run: ComparedRun, straggler: Straggler) -> bool:
    """Whether ranks without a GPU are late now one and now another, as those are that do not always get a core."""
    return on_cpu(run) and straggler.share < _MOST_OF_WAITING


def slowed_by_profiler(run: ComparedRun, straggler: Straggler) -> bool:
    """Whether a rank's host is late only since it has used up what it was ahead when the window began."""
    return straggler.cause == "host" and straggler.rank in run.hosts_slower


def in_one_place(run: ComparedRun, straggler: Straggler, saved: float) -> bool:
    """The same of one place of the step, between two collectives: a host that is slower in everything is so in all.
    Without a GPU only, as `far_from_all`. saved: by its cure, ns a step."""
    if not on_cpu(run) or (places := late_places(run.replay.graph, straggler.rank)) is None:
        return False
    own, theirs = places.most
    return own >= _TIMES * theirs and own - theirs >= _REGION_SHARE * saved


def far_from_all(run: ComparedRun, straggler: Straggler) -> bool:
    """Whether it takes so much longer than any of its peers that neither recording nor a host by nature explains it.
    Without a GPU only: behind one, hosts that are as slow do not show while their ranks wait."""
    return on_cpu(run) and far_beyond(run.replay.graph, straggler.rank, times=_TIMES, but=run.unlike)


def plainly_slow(run: ComparedRun, straggler: Straggler, saved: float) -> bool:
    """Whether neither recording, which all ranks do alike, nor a host that is a little slower in everything explains
    its lateness: it is in one region or place, or far from all. saved: by its cure, ns a step."""
    in_one_region = any(
        one.peers_ms > 0  # names of compiled graphs differ from rank to rank
        and one.ms >= _TIMES * one.peers_ms
        and one.ms - one.peers_ms >= _REGION_SHARE * saved / 1e6
        for one in grown(run, straggler.rank, "host")
    )
    return in_one_region or in_one_place(run, straggler, saved) or far_from_all(run, straggler)


def operators_pct(run: ComparedRun, straggler: Straggler) -> float | None:
    """How much of what a rank without a GPU takes longer than its median peer is in operators, where that is most."""
    found = {other.rank for other in run.replay.stragglers.found}
    peers = [peer for peer in run.replay.graph.peers(straggler.rank) if peer not in found]
    if not peers or straggler.rank not in run.replay.graph.on_cpu:
        return None
    usual = median([own_time(run.replay.graph, peer) for peer in peers], axis=0)
    more = np.maximum(own_time(run.replay.graph, straggler.rank) - usual, 0.0)
    share = float(more[WORK.index("compute")]) / max(float(more.sum()), 1.0)
    return 100 * share if share >= _MOST else None


def without_a_known_core(run: ComparedRun, straggler: Straggler, waits: CoreWaits) -> bool:
    """Whether nothing tells how long a rank without a GPU waited for cores, and that may be all that it is late for."""
    unseen = on_cpu(run) and straggler.cause == "unknown" and straggler.rank not in waits.of_rank
    return unseen and not far_from_all(run, straggler)


def for_no_cause(run: ComparedRun, straggler: Straggler) -> bool:
    """Whether a rank without a GPU is not waited for most, and no single cause explains that it takes longer."""
    no_cause = on_cpu(run) and straggler.cause == "unknown"
    return no_cause and (run.replay.lateness.share(straggler.rank) or 0.0) <= _MOST


def in_want_of_a_core(run: ComparedRun, straggler: Straggler, waits: CoreWaits) -> Steps:
    """What a rank without a GPU waits for a core in each step beyond its peers, ns: none of it is its own lateness."""
    if not on_cpu(run):
        return np.zeros(len(run.replay.lateness.steps))
    late = {other.rank for other in run.replay.stragglers.found} | {straggler.rank}
    peers = [times.summary.rank for times in run.ranks if times.summary.rank not in late]
    return beyond_peers(waits, straggler.rank, peers, run.replay.lateness.steps)


def late_by_itself(run: ComparedRun, straggler: Straggler, own: Steps, *, most: bool) -> bool:
    """Whether a rank would be late with cores enough. own: what its cure saves in each step without waits for cores.
    most: whether it is late in most steps."""
    step = run.replay.stragglers.step_ns
    if float(own.mean()) < _LEFT * float(straggler.saved.mean()):
        return False
    if not most:
        return float((own / step).max()) >= BURST_PCT[0] / 100
    late = [number in straggler.late_steps for number in run.replay.lateness.steps]
    still = own[late] >= LATE_STEP * median(step)
    bound = IMPACT_BOUNDS[0] / 100 * float(step.mean())
    return bool(still.mean() > 0.5) and float(own.mean()) >= bound


def lost_again(straggler: Straggler) -> bool:
    """Whether most of what the cure saves in some steps is lost in others: work moves from one to the next."""
    return float(straggler.saved.sum()) < FELT * float(straggler.saved.clip(min=0.0).sum())


def cured_beside(run: ComparedRun, straggler: Straggler) -> list[int]:
    """The other late ranks, cured with this one; none where no cause of theirs is known that could be cured."""
    others = [other for other in run.replay.stragglers.found if other.rank != straggler.rank]
    if all(late_in_most(other, run) and for_no_cause(run, other) for other in others):
        return []
    return [other.rank for other in others]


def _wait_for_late(run: ComparedRun, saved: Steps, among: NDArray[np.bool_] | None = None) -> bool:
    """Whether in these steps (None: all) the others wait for the late ranks a good part of what is `saved`, ns."""
    late = {straggler.rank for straggler in run.replay.stragglers.found}
    steps = run.replay.lateness.steps
    chosen = np.ones(len(steps), dtype=bool) if among is None else among
    waiting = sum(float(run.replay.lateness.caused[rank].sum(axis=0)[chosen].sum()) for rank in late)
    # Waiting that other work hides delays the transfers behind it all the same.
    named = {number for number, wanted in zip(steps, chosen, strict=True) if wanted}
    by_rank = {times.summary.rank: times.summary for times in run.ranks}
    behind = [
        c
        for c in run.matching.collectives
        if c.last_rank in late and (among is None or by_rank[c.members[0][0]].step_number(c.members[0][1]) in named)
    ]
    hidden = sum(sum(c.wait_ns) for c in behind)
    others = max(len(run.ranks) - len(late), 1)
    # On a mesh a rank meets few of the others: those that wait for them in turn are not its own.
    met = max(len({rank for c in behind for rank in c.group} - late), 1)
    return max(waiting / others, hidden / min(others, met)) >= VISIBLE * float(saved.sum())
