"""Ranks that are late because they wait for a core: cores of their own are the cure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from traceops.across.core_waits import CoreWaits
from traceops.across.cross_rank import CrossRank
from traceops.across.lateness import least_share
from traceops.across.stragglers import Straggler
from traceops.rules.straggler_bounds import CHANCE, IMPACT_BOUNDS
from traceops.rules.straggler_conditions import (
    beyond_doubt,
    comparable,
    cured_beside,
    in_want_of_a_core,
    late_by_itself,
    late_in_most,
    seen_waiting,
    uncertain,
)
from traceops.rules.straggler_evidence import mean_over


@dataclass(frozen=True)
class HeldByCores:
    """A rank whose waits for cores explain that it is late. Times in ms, mean over the recorded steps.

    waited_ms: for a core, beyond its peers. saved_ms: at most, with cores as its peers have them. step_ms: measured.
    """

    rank: int
    waited_ms: float
    saved_ms: float
    step_ms: float


def held_by_cores(run: CrossRank, waits: CoreWaits) -> dict[int, HeldByCores]:
    """Ranks for which the others wait in most steps, and would not if those got a core when they want one, by rank."""
    if not comparable(run):
        return {}
    assert run.stragglers is not None
    if run.stragglers.alone is not None or not seen_waiting(run):
        return {}
    held = (_held(run, straggler, waits) for straggler in run.stragglers.found)
    return {one.rank: one for one in held if one is not None}


def _held(run: CrossRank, straggler: Straggler, waits: CoreWaits) -> HeldByCores | None:
    assert run.stragglers is not None
    if not cured_beside(run, straggler):
        straggler = replace(straggler, saved=straggler.alone)
    mean = mean_over(run)
    step, saved = mean(run.stragglers.step_ns), mean(straggler.saved)
    wanted = in_want_of_a_core(run, straggler, waits)
    own = straggler.saved - wanted
    stands_out = (
        straggler.share >= least_share(len(run.ranks))
        and straggler.apart
        and straggler.chance <= CHANCE
        and late_in_most(straggler, run)
        and saved >= step * IMPACT_BOUNDS[0] / 100
        and (not uncertain(run) or beyond_doubt(run, straggler, saved / step))
    )
    if not stands_out or not (wanted > 0).any() or late_by_itself(run, straggler, own, most=True):
        return None
    by_cores = mean(wanted.clip(max=straggler.saved.clip(min=0.0)))
    return HeldByCores(straggler.rank, mean(wanted) / 1e6, by_cores / 1e6, step / 1e6)
