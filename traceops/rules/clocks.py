"""TO-V006: whether the ranks' clocks, and so their collectives, fit together."""

from __future__ import annotations

from traceops.across.cross_rank import CrossRank
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, Severity
from traceops.core.rank_text import who_first
from traceops.core.rule import Verdict, described
from traceops.core.units import ms_text, us_text
from traceops.rules.shared import MOST_OUT_OF_STEP_PCT, ends_fit, on_cpu, on_one_host, out_of_step_pct

UNALIGNED_CLOCKS = described("validity", "TO-V006")

_BEYOND_NOISE = 2.0  # times what is left of aligned ends (p95): ranks that take turns on a GPU end far apart too


def judge_clocks(run: CrossRank, *, known: bool = False) -> Verdict:
    """TO-V006: whether the ranks' clocks could be brought together. known: run.json tells which traces are of a run."""
    clocks = run.clocks
    if len(run.ranks) < 2:
        return UNALIGNED_CLOCKS.not_evaluated("there is only one rank")
    if clocks.residual_p95_ns is None:
        return UNALIGNED_CLOCKS.not_evaluated(
            "no matched collective synchronises the ranks, so clocks are left as they are"
        )
    p50, p95 = clocks.residual_p50_ns or 0.0, clocks.residual_p95_ns
    spread_pct = out_of_step_pct(run)
    told = f"ends of {clocks.anchors} collectives lie within {us_text(p50 / 1e3)} (median; p95 {us_text(p95 / 1e3)})"
    if spread_pct <= MOST_OUT_OF_STEP_PCT and not clocks.unaligned:
        if not known and (apart := _apart_on_one_host(run)) is not None:
            return UNALIGNED_CLOCKS.verdict(apart)
        return UNALIGNED_CLOCKS.clear(f"aligned {told}")
    if not clocks.unaligned and ends_fit(run):
        return UNALIGNED_CLOCKS.clear(f"{told}, {spread_pct:.0f} % of {run.step_words.a}; ranks wait far longer")
    ranks = clocks.unaligned
    shared = on_one_host(run)
    without_gpu = on_cpu(run)
    crowded = shared and without_gpu and not ranks
    causes = ["these ranks had no core when a collective ended"] if without_gpu else []
    causes += [] if shared else ["a clock jumped"]
    why = ", ".join((*causes, "the traces are not of one run"))
    message = (
        f"{who_first(ranks)} {'shares' if len(ranks) == 1 else 'share'} too few collectives with the others to align "
        f"{'its clock' if len(ranks) == 1 else 'their clocks'}."
        if ranks
        else f"After alignment the ends of {clocks.anchors} collectives lie within {us_text(p50 / 1e3)} (median), "
        f"{spread_pct:.0f} % of {run.step_words.a}. Either {why}, or collectives are paired wrongly. Do not trust what "
        "compares these ranks."
    )
    evidence = [
        Evidence(
            Fact.SPREAD_OF_ALIGNED_ENDS_MEDIAN,
            round(p50 / 1e3, 1),
            "µs",
            round(p50 / 1e3 * MOST_OUT_OF_STEP_PCT / spread_pct, 1) if spread_pct else None,
        ),
        Evidence(Fact.SPREAD_OF_ALIGNED_ENDS_P95, round(p95 / 1e3, 1), "µs"),
        Evidence(Fact.ANCHORS, clocks.anchors, "collectives"),
    ]
    severity: Severity = "info" if ranks or crowded else "warning"
    cause = "shared_cores" if crowded else "one_host" if shared else None
    return UNALIGNED_CLOCKS.verdict(
        UNALIGNED_CLOCKS.finding(severity, "high", message, evidence, ranks=ranks, cause=cause)
    )


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
    message = (
        f"By their traces all ranks are of one host, which has one clock, and the collectives of rank {last} "
        f"end {ms_text(apart_ns / 1e6)} ms before those of rank {first}. Either the traces are of several runs "
        "that went on at once, or several hosts have one name."
    )
    evidence = [
        Evidence(Fact.CLOCKS_APART, round(apart_ns / 1e3, 1), "µs", round(least / 1e3, 1)),
        Evidence(Fact.SPREAD_OF_ALIGNED_ENDS_P95, round((run.clocks.residual_p95_ns or 0.0) / 1e3, 1), "µs"),
    ]
    return UNALIGNED_CLOCKS.finding("info", "medium", message, evidence, ranks=[first, last], cause="one_host")
