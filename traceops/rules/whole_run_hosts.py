"""TO-W003: the line on which the host of one rank spends longer than those of its peers, while they wait for it."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.across.host_difference import Longer, longer_on_one
from traceops.across.loading import slowest_other
from traceops.across.rank_times import RankTimes
from traceops.across.run_use import unfair_waits
from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, severity_of
from traceops.core.rule import Verdict, described
from traceops.core.units import stored
from traceops.rules.inputs import Inputs
from traceops.rules.shared import core_wait_ms, line_of, on_cpu, waited_for_ms
from traceops.rules.stragglers import held_by_cores
from traceops.rules.whole_run_claims import BOUNDS, HostLonger

HOST_LONGER = described("whole_run", "TO-W003")
RULES = (HOST_LONGER,)
_MOST_LOOKED = 3
_MOST_OF_IT = 0.8  # of what a rank takes longer: a cost of less is named beside it
_AS_LONG = 0.5  # of what a rank takes longer: the others wait for it in the recorded steps too
_BY_CORES = 0.5  # of what a rank takes longer: its waiting for a core explains it
_NO_WAIT = 0.25  # of what a rank takes longer: another that waits less is the one that all wait for


def judge(inputs: Inputs) -> list[Verdict]:
    """Lines on which one host is longer."""
    if (run := inputs.whole) is None:
        return [HOST_LONGER.not_evaluated(reason("whole_run", "not_observed"))]
    if len(run.ranks) < 2:
        return [HOST_LONGER.not_evaluated(reason("whole_run", "one_rank"))]
    if any(not own for own in run.host.values()):
        return [HOST_LONGER.not_evaluated(reason("whole_run", "few_looks"))]
    found: dict[int, Longer] = {}  # the first of each rank
    # Why hosts that are longer are not so by themselves
    reasons: dict[str, Any] = {"pct": BOUNDS.longer_pct[0]}
    held = held_by_cores(inputs.run, unfair_waits(inputs.observed, inputs.machine))
    for one in seen_longer(inputs)[:_MOST_LOOKED]:
        waited = max(core_wait_ms(inputs, one.rank), held[one.rank].waited_ms if one.rank in held else 0.0)
        if (left := _with_loaders(one, inputs)) is None:
            slowest = slowest_other(inputs.run.loading_ms, [one.rank])
            if "waiting" not in reasons and slowest is not None:
                reasons |= {"waiting": one.rank, "slowest": slowest[0], "loading": slowest[1]}
        elif waited >= _BY_CORES * one.more_ms:
            reasons = {"rank": left.rank, "place": left.place.said} | reasons
        else:
            found.setdefault(one.rank, _as_replayed(left, inputs))
    findings = []
    for one in found.values():
        costs = one.costs_ms
        severity = severity_of(100 * costs / run.typical_ms, *BOUNDS.longer_pct) or "info"  # of what its cure saves
        confidence: Confidence = "high" if one.looks >= 20 else "medium"
        cause, claim = "input" if one.does == "input" else "host", claim_for(one)
        findings.append(
            HOST_LONGER.finding(
                severity, confidence, claim, evidence(one), ranks=[one.rank], impact_ms=stored(costs), cause=cause
            )
        )
    return [HOST_LONGER.verdict(*findings, clear="" if found else reason("whole_run", "alike", **reasons))]


def seen_longer(inputs: Inputs, late: Collection[int] = ()) -> list[Longer]:
    """Where one host is longer, as far as the devices say so too. A host that is ahead of its GPU waits in whatever
    call finds the queue full, so on GPUs time on a line is no work: there a rank is named only where its own device is
    idle for its host, and no more is claimed than that; and never a rank that the recorded steps show waiting for
    others. late: ranks that the others are known to wait for."""
    assert inputs.whole is not None
    found = longer_on_one(inputs.whole, late)
    ranks = {times.summary.rank: times for times in inputs.run.ranks}
    if on_cpu(inputs.run):
        return [one for one in found if one.rank in late or not _behind_another(one, inputs.run)]
    if not inputs.run.split:
        return []
    kept = []
    for one in found:
        if (beyond := _beyond_peers(one.rank, ranks)) is None:
            continue
        idle, waits = beyond
        claimed = min(one.more_ms, idle)
        if (waits < 0 or one.rank in late) and claimed >= BOUNDS.longer_pct[0] / 100 * inputs.whole.typical_ms:
            kept.append(replace(one, claimed_ms=claimed))
    return kept


def _beyond_peers(rank: int, ranks: Mapping[int, RankTimes]) -> tuple[float, float] | None:
    """How much longer a device is idle for its host, and waits, than on the median other rank; ms of a step."""
    own, peers = ranks.get(rank), [times for other, times in ranks.items() if other != rank]
    if own is None or not peers or any(times.summary.damage for times in (own, *peers)):
        return None
    idle = _idle_ms(own) - statistics.median(_idle_ms(times) for times in peers)
    return idle, own.mean_ms("comm_wait") - statistics.median(times.mean_ms("comm_wait") for times in peers)


def _behind_another(one: Longer, run: CrossRank) -> bool:
    """Whether in the recorded steps this rank itself waits as long as that for a rank that waits for nobody. Then a
    step takes what that rank takes, whatever this one does."""
    if not run.split:
        return False
    waits = {times.summary.rank: times.mean_ms("comm_wait") for times in run.ranks}
    own = waits.pop(one.rank, 0.0)
    return bool(waits) and own >= one.more_ms and min(waits.values()) < _NO_WAIT * one.more_ms


def _with_loaders(one: Longer, inputs: Inputs) -> Longer | None:
    """What is left to claim beside the loaders of its peers, which bound the step too; None where that is too little. A
    rank that is a batch behind waits for its loader, and the others wait for it, though theirs are as slow."""
    assert inputs.whole is not None
    slowest = slowest_other(inputs.run.loading_ms, [one.rank])
    if one.does != "input" or slowest is None:
        return one
    room = inputs.whole.typical_ms - slowest[1]
    claimed = min(one.costs_ms, room)
    return replace(one, claimed_ms=claimed) if claimed >= BOUNDS.longer_pct[0] / 100 * inputs.whole.typical_ms else None


def _as_replayed(one: Longer, inputs: Inputs) -> Longer:
    """No more than the replay saves with this rank at its peers' pace, where recorded steps show them wait as long.
    Where a light window tells what the others wait without the profiler, it is no more than that: as recorded, their
    own hosts are slow too."""
    run = inputs.run
    waits = None if inputs.undisturbed is None else waited_for_ms(inputs.undisturbed, one.rank)
    if waits is not None:
        return replace(one, claimed_ms=min(one.costs_ms, waits))
    late = run.replay.stragglers.leader if run.replay is not None else None
    if late is None or late.rank != one.rank or run.replay is None or not run.replay.what_if.holds:
        return one
    # What the median other rank waits longer than this one in the recorded steps, ms per step
    others = {times.summary.rank: times.mean_ms("comm_wait") for times in run.ranks}
    own = others.pop(one.rank, 0.0)
    if not others or statistics.median(others.values()) - own < _AS_LONG * one.more_ms:
        return one
    saved = max(run.replay.what_if.mean_ns(late.alone), 0.0) / 1e6
    return replace(one, claimed_ms=min(one.costs_ms, saved))


def _idle_ms(times: RankTimes) -> float:
    """The device's, for its host."""
    return sum(times.mean_ms(bucket) for bucket in ("idle_host", "idle_input", "idle_sync"))


def claim_for(one: Longer) -> HostLonger:
    """That this host is longer; `most` where its fix saves clearly less than the difference."""
    less = one.claimed_ms is not None and one.claimed_ms < _MOST_OF_IT * one.more_ms
    return HostLonger(
        rank=one.rank,
        ms=one.ms,
        place=one.place.said,
        others=None if one.peers_ms < 0.005 * one.ms else one.peers_ms,
        most=one.claimed_ms if less else None,
    )


def evidence(one: Longer) -> list[Evidence]:
    """What stands behind it."""
    ms, peers = stored(one.ms), stored(one.peers_ms)
    return [
        Evidence(Fact.HOST_IN, ms, "ms/step", rank=one.rank, peers=peers, subject=one.place.said),
        Evidence(Fact.LOOKS, one.looks, "looks", rank=one.rank),
        *line_of(one.place, one.rank),
    ]
