"""TO-V005 and TO-V006: what the profiler cost the steps, and whether the ranks' clocks fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, Severity, severity_of
from traceops.core.rule import Verdict, described
from traceops.core.units import stored, us_text
from traceops.measure.recording import SLOWED, first_steps_profiled, some_profiled_as_short
from traceops.rules import validity_claims
from traceops.rules.shared import MOST_OUT_OF_STEP_PCT, WAITS_PCT, ends_fit, on_cpu, on_one_host, out_of_step_pct

if TYPE_CHECKING:
    from traceops.across.plain_step import PlainStep, ProfilerCost
    from traceops.across.undisturbed import Undisturbed
    from traceops.rules.inputs import Inputs

PROFILER_COST = described("validity", "TO-V005")
UNALIGNED_CLOCKS = described("validity", "TO-V006")
_APART = 0.01  # of the step: what differs less is one number
_BEYOND_NOISE = 2.0  # times what is left of aligned ends (p95): ranks that take turns on a GPU end far apart too


def judge_profiler(inputs: Inputs) -> Verdict:
    """TO-V005: the observer's own cost, in its windows and behind them."""
    cost = inputs.profiler_cost
    ratio, least = cost.slowdown, cost.least
    severity = None if ratio is None or least is None else severity_of(least, *validity_claims.BOUNDS.slowdown)
    later = _later(inputs.undisturbed, inputs.plain)
    if severity is None and later is not None:
        claim = validity_claims.LongerAfter(later=later)
        return PROFILER_COST.verdict(PROFILER_COST.finding("info", "medium", claim, _evidence_of(later)))
    if why := _unknown_cost(inputs, cost):
        return PROFILER_COST.not_evaluated(why)
    assert ratio is not None
    if severity is None:
        return PROFILER_COST.clear(reason("validity", "as_long", ratio=ratio))
    return PROFILER_COST.verdict(_slowed(inputs, cost, ratio, later, severity))


def _unknown_cost(inputs: Inputs, cost: ProfilerCost) -> str:
    """Why nothing tells what the profiler cost; empty where it is known."""
    if cost.slowdown is None and first_steps_profiled(inputs.manifest):
        return reason("validity", "first_steps")
    if cost.slowdown is None and some_profiled_as_short(inputs.manifest):
        return reason("validity", "some_as_short")
    if cost.by_chance:
        return reason("validity", "by_chance", ratio=cost.ratio, pct=cost.as_long_pct)
    if cost.by_cores:
        return reason("validity", "by_cores", ratio=cost.ratio, pct=cost.core_pct)
    return reason("validity", "not_timed") if cost.slowdown is None else ""


def _slowed(
    inputs: Inputs, cost: ProfilerCost, ratio: float, later: validity_claims.After | None, severity: Severity
) -> Finding:
    undisturbed, plain = inputs.undisturbed, inputs.plain
    profiled, before = inputs.manifest["profiled_step_ms"], inputs.manifest["unprofiled_step_ms"]
    evidence = [
        Evidence(Fact.PROFILED_BY_UNPROFILED, stored(ratio), "×", validity_claims.BOUNDS.slowdown[0]),
        Evidence(Fact.UNPROFILED_STEP, stored(before), "ms"),
        Evidence(Fact.PROFILED_STEP, stored(profiled), "ms"),
    ]
    claim = validity_claims.ProfilerSlowed(
        ratio=ratio, profiled=profiled, plain=before, light=undisturbed is not None, later=later
    )
    if plain is not None and abs(before / plain.ms - 1) >= _APART:
        claim = replace(claim, typical=plain.ms)
    if undisturbed is not None and undisturbed.scaled:
        claim = replace(claim, light_ms=undisturbed.light_ms, stretched=undisturbed.stretched)
    if cost.core_pct >= WAITS_PCT:
        claim, waits = replace(claim, core_pct=cost.core_pct), round(cost.core_pct, 1)
        evidence.append(Evidence(Fact.WAITS_FOR_A_CORE, waits, "% of recorded steps", WAITS_PCT))
    evidence += [] if later is None else _evidence_of(later)
    return PROFILER_COST.finding(severity if undisturbed is None else "info", "high", claim, evidence)


def _later(undisturbed: Undisturbed | None, plain: PlainStep | None) -> validity_claims.After | None:
    """That steps after the windows take longer than those before; None where they do not."""
    if plain is None or plain.behind_ms is None or plain.longer is None or not plain.longer.much:
        return None
    if undisturbed is not None and undisturbed.behind_ms is None:
        return None  # the device itself is slower there
    return validity_claims.After(pct=100 * (plain.behind_ms / plain.ms - 1), after=plain.behind_ms, before=plain.ms)


def _evidence_of(later: validity_claims.After) -> list[Evidence]:
    return [
        Evidence(Fact.STEP_BEHIND_BY_BEFORE, stored(later.after / later.before), "×", SLOWED),
        Evidence(Fact.STEP_BEHIND_THE_WINDOWS, stored(later.after), "ms"),
        Evidence(Fact.STEP_BEFORE_THE_WINDOWS, stored(later.before), "ms"),
    ]


def judge_clocks(run: CrossRank, *, known: bool = False) -> Verdict:
    """TO-V006: whether the ranks' clocks could be brought together. known: run.json tells which traces are of a run."""
    clocks = run.clocks
    if len(run.ranks) < 2:
        return UNALIGNED_CLOCKS.not_evaluated(reason("validity", "one_rank"))
    if clocks.residual_p95_ns is None:
        return UNALIGNED_CLOCKS.not_evaluated(reason("validity", "no_anchor"))
    p50, p95 = clocks.residual_p50_ns or 0.0, clocks.residual_p95_ns
    spread_pct = out_of_step_pct(run)
    spread = {"anchors": clocks.anchors, "median": us_text(p50 / 1e3), "p95": us_text(p95 / 1e3)}
    if spread_pct <= MOST_OUT_OF_STEP_PCT and not clocks.unaligned:
        if not known and (on_two := _apart_on_one_host(run)) is not None:
            return UNALIGNED_CLOCKS.verdict(on_two)
        return UNALIGNED_CLOCKS.clear(reason("validity", "aligned", **spread))
    if not clocks.unaligned and ends_fit(run):
        window = run.unit == "window"
        return UNALIGNED_CLOCKS.clear(reason("validity", "far_less", **spread, pct=spread_pct, window=window))
    ranks = tuple(clocks.unaligned)
    shared, without_gpu = on_one_host(run), on_cpu(run)
    crowded = shared and without_gpu and not ranks
    window, middle, jumped = run.unit == "window", us_text(p50 / 1e3), not shared
    apart = validity_claims.EndsApart(
        window=window, anchors=clocks.anchors, median=middle, pct=spread_pct, cores=without_gpu, jumped=jumped
    )
    claim = validity_claims.TooFewShared(ranks=ranks) if ranks else apart
    bound = round(p50 / 1e3 * MOST_OUT_OF_STEP_PCT / spread_pct, 1) if spread_pct else None
    evidence = [
        Evidence(Fact.SPREAD_OF_ALIGNED_ENDS_MEDIAN, round(p50 / 1e3, 1), "µs", bound),
        Evidence(Fact.SPREAD_OF_ALIGNED_ENDS_P95, round(p95 / 1e3, 1), "µs"),
        Evidence(Fact.ANCHORS, clocks.anchors, "collectives"),
    ]
    severity: Severity = "info" if ranks or crowded else "warning"
    cause = "shared_cores" if crowded else "one_host" if shared else None
    found = UNALIGNED_CLOCKS.finding(severity, "high", claim, evidence, ranks=ranks, cause=cause)
    return UNALIGNED_CLOCKS.verdict(found)


def _apart_on_one_host(run: CrossRank) -> Finding | None:
    """Ranks whose traces name one host, and whose clocks cannot be one: of two runs at once collectives fit as well."""
    if on_cpu(run) or not on_one_host(run):
        return None
    offsets = {times.summary.rank: run.clocks.fits[times.summary.rank].offset_ns for times in run.ranks}
    first, last = min(offsets, key=lambda rank: offsets[rank]), max(offsets, key=lambda rank: offsets[rank])
    apart_ns = offsets[last] - offsets[first]
    least = max(MOST_OUT_OF_STEP_PCT / 100 * run.step_ms * 1e6, _BEYOND_NOISE * (run.clocks.residual_p95_ns or 0.0))
    if apart_ns <= least:
        return None
    evidence = [
        Evidence(Fact.CLOCKS_APART, round(apart_ns / 1e3, 1), "µs", round(least / 1e3, 1)),
        Evidence(Fact.SPREAD_OF_ALIGNED_ENDS_P95, round((run.clocks.residual_p95_ns or 0.0) / 1e3, 1), "µs"),
    ]
    claim = validity_claims.OneHostApart(rank=last, other=first, apart=apart_ns / 1e6)
    return UNALIGNED_CLOCKS.finding("info", "medium", claim, evidence, ranks=[first, last], cause="one_host")
