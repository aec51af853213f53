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
from traceops.rules.idle import BLOCKED_ON_DEVICE, HOST_BOUND, INPUT_BOUND, OUTSIDE_TORCH
from traceops.rules.idle_copies import EXPOSED_COPIES
from traceops.rules.overlap import EXPOSED
from traceops.rules.pipeline import LARGE_BUBBLE
from traceops.rules.stragglers import PERSISTENTLY_LATE

LEAST_PCT = 0.5  # of the step: less is not listed

# Which rules judge the time in a bucket; one that was evaluated will do. Waiting in a pipeline is its bubble, elsewhere
# it is for stragglers. Of copies, those between host and device are judged, and no others. Compute is left out: no rule
# judges how well a kernel uses the device. Where a trace names a GPU
# and holds nothing of it, compute is open: it is the time of operators that may only have launched the work.
JUDGED_BY: dict[str, tuple[Rule, ...]] = {
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
assert set(JUDGED_BY) == set(BUCKETS) - {"compute"}


class UnjudgedBucket(Struct, frozen=True):
    """A bucket's share of one rank's typical step that no rule judged; `rule` would, were it evaluated."""

    bucket: str
    rank: int
    pct: float
    why: Literal["unmatched", "no_launch", "not_recorded", "no_device", "not_evaluated", "no_rule"]
    rule: str | None


def unjudged_time(run: CrossRank, checks: Sequence[Check], *, on_cpu: bool) -> tuple[UnjudgedBucket, ...]:
    """The unjudged buckets, most first, of the rank that has most such time; empty without a step. on_cpu: the run says
    that it used no GPU."""
    evaluated = {check.rule for check in checks if check.status != "not_evaluated"}
    open_buckets = [name for name, rules in JUDGED_BY.items() if evaluated.isdisjoint(rule.id for rule in rules)]
    others = "memory" not in open_buckets
    by_rank = {
        times.summary.rank: _shares(times, open_buckets, on_cpu=on_cpu)
        | ({"memory": _other_copies_pct(times)} if others else {})
        for times in run.ranks
        if not times.summary.kernels_lost  # TO-V008 says so; what its host does is no idle time of a GPU
    }
    worst = max(by_rank, key=lambda rank: (sum(by_rank[rank].values()), -rank), default=None)
    if worst is None:
        return ()
    times_of = {times.summary.rank: times for times in run.ranks}
    found = [
        UnjudgedBucket(name, worst, stored(pct), "no_rule", None)
        if name == "memory" and others
        else _bucket(name, times_of[worst], pct)
        for name, pct in by_rank[worst].items()
        if pct >= LEAST_PCT
    ]
    return tuple(sorted(found, key=lambda one: -one.pct))


def _shares(times: RankTimes, open_buckets: Sequence[str], *, on_cpu: bool) -> dict[str, float]:
    """Percent of a rank's time in buckets that no rule was judged on."""
    unseen = () if on_cpu or not _device_unseen(times.summary) else ("compute",)
    return {name: times.share_pct(name) or 0.0 for name in (*open_buckets, *unseen)}


def _other_copies_pct(times: RankTimes) -> float:
    """Percent of its time in which only copies run that are not between host and device."""
    total = int(times.duration.sum())
    own = sum(int(kind.alone_ns.sum()) for kind in times.summary.copies.kinds)
    return 100.0 * max(int(times.buckets["memory"].sum()) - own, 0) / total if total > 0 else 0.0


def _device_unseen(summary: RankSummary) -> bool:
    """Whether the trace names a GPU, of which it holds neither kernels nor calls: whether it was used is not known."""
    return summary.meta.device is not None and not summary.on_gpu and not summary.kernels_lost


def _bucket(name: str, times: RankTimes, pct: float) -> UnjudgedBucket:
    rank = times.summary.rank
    if name == "compute":
        return UnjudgedBucket(name, rank, stored(pct), "no_device", None)
    rules = JUDGED_BY[name]
    if name == "comm_unmatched":
        return UnjudgedBucket(name, rank, stored(pct), "unmatched", None)
    if name == "idle_unknown":
        ledger = times.summary.ledger
        early = 2 * ledger.unrecorded > int(ledger.buckets[name].sum())
        return UnjudgedBucket(name, rank, stored(pct), "not_recorded" if early else "no_launch", None)
    if not rules:
        return UnjudgedBucket(name, rank, stored(pct), "no_rule", None)
    rule = rules[0 if times.summary.on_gpu else -1]
    return UnjudgedBucket(name, rank, stored(pct), "not_evaluated", rule.id)
