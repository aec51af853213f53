"""How much of a step no rule judged: a clean bill holds for the rest only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.across.rank_times import RankTimes
from traceops.core.findings import Check
from traceops.core.rule import Rule
from traceops.core.units import stored
from traceops.measure.ledger import BUCKETS
from traceops.measure.summary import RankSummary
from traceops.rules.compute import SPEED
from traceops.rules.idle import BLOCKED_ON_DEVICE, HOST_BOUND, INPUT_BOUND, OUTSIDE_TORCH
from traceops.rules.idle_copies import EXPOSED_COPIES
from traceops.rules.overlap import EXPOSED
from traceops.rules.pipeline import LARGE_BUBBLE, UNEVEN_STAGES
from traceops.rules.stragglers import PERSISTENTLY_LATE

LEAST_PCT = 0.5  # of the step: less is not listed

# Which rules judge the time in a bucket; one that was evaluated will do. Waiting in a pipeline is its bubble, elsewhere
# it is for stragglers. Of copies, those between host and device are judged, no others. Compute is open where nothing
# rates its kernels and no ranks or stages are compared, and where a trace names a GPU and holds nothing of it: then it
# is the time of operators that may only have launched the work.
JUDGED_BY: dict[str, tuple[Rule, ...]] = {
    "compute": (SPEED, PERSISTENTLY_LATE, UNEVEN_STAGES),
    "comm_transfer": (EXPOSED,),
    "comm_wait": (PERSISTENTLY_LATE, LARGE_BUBBLE),
    "comm_unmatched": (),
    "memory": (EXPOSED_COPIES,),
    "idle_input": (INPUT_BOUND,),
    "idle_sync": (BLOCKED_ON_DEVICE,),
    "idle_host": (HOST_BOUND, OUTSIDE_TORCH),
    "idle_dependency": (),
    "idle_unknown": (),
    "idle_gap": (),
}
assert set(JUDGED_BY) == set(BUCKETS)


_Why = Literal["unmatched", "no_launch", "not_recorded", "no_device", "unrated", "not_evaluated", "no_rule"]


class UnjudgedBucket(Struct, frozen=True):
    """A bucket's share of one rank's typical step that no rule judged; `rule` would, were it evaluated."""

    bucket: str
    rank: int
    pct: float
    why: _Why
    rule: str | None


def unjudged_time(run: CrossRank, checks: Sequence[Check], *, on_cpu: bool) -> tuple[UnjudgedBucket, ...]:
    """The unjudged buckets, most first, of the rank that has most such time; empty without a step. on_cpu: the run says
    that it used no GPU."""
    evaluated = _evaluated(run, checks)
    open_buckets = [name for name, rules in JUDGED_BY.items() if evaluated.isdisjoint(rule.id for rule in rules)]
    by_rank = {
        times.summary.rank: _unjudged_pct(times, open_buckets, on_cpu=on_cpu)
        for times in run.ranks
        if not times.summary.kernels_lost  # TO-V008 says so; what its host does is no idle time of a GPU
    }
    worst = max(by_rank, key=lambda rank: (sum(by_rank[rank].values()), -rank), default=None)
    if worst is None:
        return ()
    summary, found = next(times.summary for times in run.ranks if times.summary.rank == worst), []
    special: dict[str, _Why] = {
        "compute": "no_device" if _may_have_launched(summary, on_cpu=on_cpu) else "unrated",
        "comm_unmatched": "unmatched",
        "idle_unknown": "no_launch",
    }
    for name, pct in by_rank[worst].items():
        if pct < LEAST_PCT:
            continue
        rules = JUDGED_BY.get(name, ()) if name in open_buckets else ()
        why = special.get(name, "not_evaluated" if rules else "no_rule")
        if name == "idle_unknown":
            early = 2 * summary.ledger.unrecorded > int(summary.ledger.buckets[name].sum())
            why = "not_recorded" if early else why
        alone = (name, summary.on_gpu, len(run.ranks)) == ("idle_host", False, 1)  # TO-I005's
        rule = next((one.id for one in rules[-alone:]), None)
        found.append(UnjudgedBucket(name, worst, stored(pct), why, rule))
    return tuple(sorted(found, key=lambda one: -one.pct))


def _evaluated(run: CrossRank, checks: Sequence[Check]) -> set[str]:
    """The rules that judged something: that of stages does not where there are none."""
    stages = UNEVEN_STAGES.id
    return {one.rule for one in checks if one.status != "not_evaluated" and (one.rule != stages or run.bubbles)}


def _may_have_launched(summary: RankSummary, *, on_cpu: bool) -> bool:
    """Whether the trace shows a GPU, of which it holds neither kernels nor calls: whether it was used is not known."""
    shown = summary.meta.device is not None or summary.unrecorded_gpu
    return not on_cpu and shown and not (summary.on_gpu or summary.gpu_calls or summary.kernels_lost)


def _unjudged_pct(times: RankTimes, open_buckets: Sequence[str], *, on_cpu: bool) -> dict[str, float]:
    """Percent of a rank's time in buckets that no rule was judged on. Of evaluated copies that in which only others run
    than those between host and device."""
    found = {name: times.share_pct(name) or 0.0 for name in open_buckets}
    summary, total = times.summary, int(times.duration.sum())
    if _may_have_launched(summary, on_cpu=on_cpu):
        found["compute"] = times.share_pct("compute") or 0.0
    if "memory" not in open_buckets:
        own = sum(int(kind.alone_ns.sum()) for kind in summary.copies.kinds)
        found["memory"] = 100.0 * max(int(times.buckets["memory"].sum()) - own, 0) / total if total > 0 else 0.0
    return found
