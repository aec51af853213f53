"""The findings of late ranks: their claims, with the numbers behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from traceops.across.host_difference import grown, with_cause
from traceops.across.lateness import CAUSES, least_share
from traceops.across.loading import slowest_other
from traceops.across.replay.graph import Steps
from traceops.across.replay.what_if import HOST_IN_TIME, WORK_SHARED, rank_change
from traceops.across.run_use import CoreWaits
from traceops.across.stragglers import Straggler
from traceops.across.undisturbed import Undisturbed
from traceops.across.work import MORE, WorkCompared
from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, ComputesLonger, Confidence, Evidence, Finding, Severity, severity_of
from traceops.core.rule import Rule
from traceops.core.units import stored
from traceops.core.words import WINDOW, StepWords
from traceops.rules.shared import IMPACT_BOUNDS, late_in, on_cpu, role_name, waited_for_ms
from traceops.rules.stragglers_claims import ComesLast, Doubt, Late
from traceops.rules.stragglers_conditions import (
    CHANCE,
    FELT,
    PROFILED,
    SURE,
    VISIBLE,
    ComparedRun,
    cured_beside,
    in_want_of_a_core,
    operators_pct,
    plainly_slow,
    slowed_by_profiler,
    uncertain,
)


def waited_for(straggler: Straggler, undisturbed: Undisturbed) -> bool:
    """Whether the others wait for it without the profiler as well, or nothing shows it."""
    late, waits = undisturbed.of(straggler.rank), waited_for_ms(undisturbed, straggler.rank)
    if late is None or waits is None:
        return True
    bound = IMPACT_BOUNDS[0] / 100 * undisturbed.step_ms
    return _unmatched_ms(undisturbed, straggler.rank) >= bound or late.wait_ms < waits >= bound


def _unmatched_ms(undisturbed: Undisturbed, rank: int) -> float:
    """Communication of the other ranks of which nothing shows whether they wait, mean over them."""
    return float(np.mean([one.unmatched_ms for one in undisturbed.ranks if one.rank != rank]))


def without_profiler(
    straggler: Straggler, severity: Severity, undisturbed: Undisturbed
) -> tuple[Confidence, Severity, Doubt | None]:
    """What remains of a late host without the profiler: what the others wait in the light window, at most."""
    late, waits = undisturbed.of(straggler.rank), waited_for_ms(undisturbed, straggler.rank)
    if late is None or waits is None:
        return "low", "info", None
    plain, unknown = undisturbed.step_ms, _unmatched_ms(undisturbed, straggler.rank)
    if 100 * unknown / plain >= IMPACT_BOUNDS[0]:
        return "low", "info", Doubt(kind="unmatched", plain=plain, unmatched=unknown)
    light = Doubt(kind="light", plain=plain, waiting=waits)
    if late.wait_ms >= waits or 100 * waits / plain < IMPACT_BOUNDS[0]:
        return "low", "info", light
    least = float(np.mean([one.least_wait_ms for one in undisturbed.ranks if one.rank != straggler.rank]))
    if (seen := severity_of(100 * least / plain, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)) is None:
        return "low", "info", Doubt(kind="light_cost", plain=plain, waiting=waits, cost=undisturbed.light_ms - plain)
    return "medium", "warning" if seen != "error" else severity, light


# The numbers behind a late rank's finding.


def mean_over(run: ComparedRun, *, sometimes: bool = False) -> Callable[[Steps], float]:
    """What takes the mean of times of steps, ns: over typical steps, but of a rank late `sometimes` over all."""
    if sometimes:
        return lambda steps: float(steps.mean())
    return run.replay.what_if.mean_ns


def waiting_ms(run: ComparedRun, straggler: Straggler, *, sometimes: bool = False) -> float:
    """Waiting for this rank, ms per step, mean over the other ranks and the steps that `mean_over` takes."""
    caused = run.replay.lateness.caused[straggler.rank].sum(axis=0)
    if not sometimes:
        caused = caused[run.replay.what_if.chosen]
    return float(caused.mean()) / 1e6 / max(len(run.ranks) - 1, 1)


def evidence_of(
    run: ComparedRun, straggler: Straggler, step: float, saved: float, *, sometimes: bool = False, shared: bool = False
) -> list[Evidence]:
    """What a late rank costs, ms: `step` and `saved` are means in ns, as `mean_over` takes them. shared: the saving is
    that of evenly shared work, which has evidence of its own: a finding has one."""
    rank, words = straggler.rank, run.step_words
    least, waiting = least_share(len(run.ranks)), waiting_ms(run, straggler, sometimes=sometimes)
    found = [
        Evidence(Fact.WAITING_FOR_IT, stored(waiting), words.unit("ms") + " and rank", rank=rank),
        Evidence(Fact.LATE_STEPS, f"{len(straggler.late_steps)} of {len(straggler.saved)}", rank=rank),
        Evidence(Fact.CHANCE, round(straggler.chance, 4), "probability", CHANCE, rank),
    ]
    if total := sum(straggler.caused.values()):
        split = " / ".join(f"{100 * straggler.caused[cause] / total:.0f}" for cause in CAUSES)
        share = Evidence(Fact.SHARE_OF_ALL_WAITING, round(100 * straggler.share, 1), "%", round(100 * least, 1), rank)
        found[1:1] = [share, Evidence(Fact.CAUSE_SPLIT, split, "%", rank=rank)]
    if not shared:
        found[:0] = [
            Evidence(Fact.SAVED_AT_PEERS_PACE, stored(saved / 1e6), words.unit("ms"), stored(step / 1e6 * 0.1), rank),
            Evidence(Fact.OF_STEP, round(100 * saved / step, 1), "%", IMPACT_BOUNDS[0], rank, subject=words.the),
        ]
    felt = straggler.saved >= FELT * max(float(straggler.saved.max()), 1.0)
    if felt.any() and not felt.all():  # the others lose time in some steps only: how much there
        for fact, ns in ((Fact.LATE_STEP, run.replay.stragglers.step_ns), (Fact.SAVED_IN_A_LATE_STEP, straggler.saved)):
            found.append(Evidence(fact, stored(float(ns[felt].mean()) / 1e6), "ms", rank=rank))
    return [*found, *grown_evidence(run, rank, straggler.cause)]


def work_evidence(
    compared: WorkCompared | None, rank: int, step: float, shared: float | None, words: StepWords
) -> list[Evidence]:
    """What tells a slower device from more work. shared: what even shares of the work save a step, ns."""
    found = []
    if compared is not None and compared.kind == "more_work":
        found.append(Evidence(Fact.WORK_OF_ITS_PEERS, round(compared.work, 2), "times", MORE, rank))
    elif compared is not None and compared.kind == "extra_kernels":
        found.append(Evidence(Fact.KERNELS_THAT_NO_PEER_RUNS, stored(compared.alone_ms), words.unit("ms"), rank=rank))
    elif compared is not None and compared.kind == "slower" and compared.speed is not None:
        found.append(Evidence(Fact.TIME_FOR_SAME_KERNELS, round(compared.speed, 2), "times", rank=rank))
    if shared is not None:
        saved, pct = stored(shared / 1e6), round(100 * shared / step, 1)
        found.append(Evidence(Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY, saved, words.unit("ms"), rank=rank))
        found.append(Evidence(Fact.OF_STEP_SHARED_EVENLY, pct, "%", rank=rank, subject=words.the))
    return found


def grown_evidence(run: ComparedRun, rank: int, cause: str, peers: Sequence[int] = ()) -> list[Evidence]:
    """What of `cause` takes longer on a rank than on `peers` (by default all of its program), ms per step."""
    ms = partial(Evidence, Fact.GREW, unit=run.step_words.unit("ms"), rank=rank)
    return [
        ms(stored(one.ms), peers=stored(one.peers_ms), grown=one.name, subject=one.name)
        for one in grown(run, rank, cause, peers)
    ]


def of_operators(run: ComparedRun, straggler: Straggler) -> tuple[Evidence, ...]:
    """That a rank without a GPU takes longer in its operators, as a number; none of others."""
    pct = operators_pct(run, straggler)
    return () if pct is None else (Evidence(Fact.IN_OPERATORS, round(pct, 1), "%", rank=straggler.rank),)


_HOST_BOUND = 0.1  # of the step with the stragglers cured: what it would lose if no host were late
_PACED = 0.95  # of a step: a loader that takes so much of it is what bounds it
_WAITING_PCT = 10.0  # of the step: waiting for one rank that is worth a remark though its cure saves little
_BY_CORES = 0.5  # of what the others wait for a rank: its waiting for a core explains it


def finding_of(
    rule: Rule,
    severity: Severity,
    run: ComparedRun,
    straggler: Straggler,
    slowdown: float | None,
    undisturbed: Undisturbed | None,
    late: Sequence[int] = (),
    *,
    sometimes: bool = False,
) -> Finding:
    """A finding of `rule` about a rank that is late in most steps, or only `sometimes`. slowdown: profiled ÷ unprofiled
    step, None where not known. undisturbed: the step without the profiler, where it is known. late: who is cured beside
    it, itself among them, where these are not the stragglers that were found."""
    straggler = replace(straggler, cause=with_cause(run, straggler, sometimes=sometimes))
    mean, rank = mean_over(run, sometimes=sometimes), straggler.rank
    step, saved = mean(run.replay.stragglers.step_ns), mean(straggler.saved)
    compared = run.replay.work.get(rank)
    longer = UNSET if compared is None else compared.kind
    if straggler.cause == "host" and on_cpu(run):
        longer = "on_cpu"
    shared = _saved_by_sharing(run, mean) if longer == "more_work" else None
    gain = saved if shared is None else shared
    if shared is not None and not sometimes:
        by_sharing = severity_of(100 * shared / step, IMPACT_BOUNDS[0], *IMPACT_BOUNDS) or "info"
        severity = min(severity, by_sharing, key=SEVERITIES.index)
    confidence: Confidence = "high" if straggler.chance <= SURE and straggler.cause != "unknown" else "medium"
    doubt: Doubt | None = None
    if straggler.cause in ("host", "unknown"):
        confidence, severity, doubt = _of_host(run, straggler, (confidence, severity), slowdown, undisturbed, sometimes)
    if doubt is None and run.hosts_unknown:  # what the hosts do without the profiler may change who is late
        doubt = Doubt(kind="hosts_slower" if run.hosts_slower else "hosts_lead")
    approximate = uncertain(run)
    claim = _claim(run, straggler, longer, step, gain, late, shared=shared is not None, sometimes=sometimes)
    claim = replace(_with_waiting(claim, run, straggler, sometimes), doubt=doubt, approximate=approximate)
    in_operators = of_operators(run, straggler) if longer == "on_cpu" else ()
    if in_operators:
        claim = replace(claim, does="operators", in_operators=True)
    return rule.finding(
        severity,
        "medium" if approximate and confidence == "high" else confidence,
        claim,
        evidence_of(run, straggler, step, saved, sometimes=sometimes, shared=shared is not None)
        + work_evidence(compared, rank, step, shared, run.step_words)
        + list(in_operators),
        ranks=[rank],
        steps=straggler.late_steps,
        impact_ms=stored(gain / 1e6),
        cause=straggler.cause,
        computes_longer=longer,
        role=late_in(run, rank),
    )


def _saved_by_sharing(run: ComparedRun, mean: Callable[[Steps], float]) -> float | None:
    """What even shares of the work save a step, ns; None where the replay shows no gain."""
    saved = run.replay.what_if.saved_steps(WORK_SHARED)
    return None if saved is None or mean(saved) <= 0 else mean(saved)


def _claim(
    run: ComparedRun,
    straggler: Straggler,
    longer: ComputesLonger | UnsetType,
    step: float,
    gain: float,
    late: Sequence[int],
    *,
    shared: bool,
    sometimes: bool,
) -> Late:
    """What is claimed of a late rank: the step, and what it takes with this rank cured: one number, between two, or one
    at least. step, gain: means, ns; shared: the gain is that of evenly shared work. late: as `finding_of` takes it."""
    rank, then = straggler.rank, (step - gain) / 1e6
    claim = Late(
        window=run.step_words is WINDOW,
        rank=rank,
        does=straggler.cause if longer is UNSET else longer,
        steps=straggler.late_steps if sometimes else (),
        others=len(run.ranks) - 1,
        role=role_name(run, late_in(run, rank)),
        way="shared" if shared else longer if longer in ("extra_kernels", "more_calls") else "pace",
        step=step / 1e6,
        saved=gain / 1e6,
        pct=100 * max(gain, 0.0) / step,
    )
    ends = run.replay.what_if.range_steps(WORK_SHARED) if shared else None
    if ends is not None:
        least, most = (mean_over(run, sometimes=sometimes)(end) for end in ends)
        pct, pct_least = (100 * max(step - end, 0.0) / step for end in (least, most))
        claim = replace(claim, then_least=least / 1e6, then_most=most / 1e6, pct=pct, pct_least=pct_least)
        then = least / 1e6
    beside = [] if shared else [other for other in late or cured_beside(run, straggler) if other != rank]
    if beside:
        return replace(claim, beside=tuple(sorted(beside)))
    if run.cures_are_least:
        return replace(claim, then_or_more=then, then_least=None, then_most=None)
    return claim if ends is not None else replace(claim, then=then)


def _of_host(
    run: ComparedRun,
    straggler: Straggler,
    otherwise: tuple[Confidence, Severity],
    slowdown: float | None,
    undisturbed: Undisturbed | None,
    sometimes: bool,
) -> tuple[Confidence, Severity, Doubt | None]:
    """Of a rank whose host may be the cause: what the profiler and shared cores leave of it, and why."""
    confidence, severity = otherwise
    if sometimes and on_cpu(run):
        return "low", "info", Doubt(kind="shared_cores")
    if slowed_by_profiler(run, straggler) and undisturbed is None:
        return "low", "info", Doubt(kind="ran_ahead")
    turns = None if sometimes or undisturbed is None else undisturbed.turns(IMPACT_BOUNDS[0])
    if turns is not None:
        other, then = turns.other, turns.other_steps
        return "low", "info", Doubt(kind="turns", rank=turns.rank, steps=turns.steps, other=other, other_steps=then)
    if (slowdown is None or (slowdown > PROFILED and undisturbed is None)) and (
        seen := _by_one_region(run, straggler, slowdown)
    ) is not None:
        return "medium", seen, None
    if slowdown is None:
        bound = run.replay.stragglers.host_share >= _HOST_BOUND
        return ("medium", "info", Doubt(kind="hosts_bound")) if bound else ("medium", severity, None)
    if slowdown <= PROFILED and (sometimes or undisturbed is None or waited_for(straggler, undisturbed)):
        return confidence, severity, None
    if undisturbed is not None:
        return without_profiler(straggler, severity, undisturbed)
    return "low", "info", Doubt(kind="profiled", slowdown=slowdown)


def _by_one_region(run: ComparedRun, straggler: Straggler, slowdown: float | None) -> Severity | None:
    """Of a host late in one region, or far beyond its peers: what is left if recording stretched that like all else."""
    mean = mean_over(run)
    step, saved = mean(run.replay.stragglers.step_ns), mean(straggler.saved)
    if not plainly_slow(run, straggler, saved):
        return None
    severity = severity_of(100 * saved / (slowdown or 1.0) / step, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)
    return "warning" if severity == "info" else severity


def only_waited_for(
    rule: Rule, run: ComparedRun, waits: CoreWaits, slowdown: float | None, undisturbed: Undisturbed | None
) -> list[Finding]:
    """A remark on whom all wait for, where its cure would save little because the others are hardly faster. waits: for
    cores, which may be all that the rank is late for."""
    if (leader := run.replay.stragglers.leader) is None or leader.share <= 0.5:
        return []
    mean, waiting = run.replay.what_if.mean_ns, waiting_ms(run, leader) * 1e6
    step, saved = mean(run.replay.stragglers.step_ns), max(mean(leader.alone), 0.0)
    if mean(in_want_of_a_core(run, leader, waits)) >= _BY_CORES * waiting:
        return []
    if waiting < _WAITING_PCT / 100 * step or leader.chance > CHANCE:
        return []
    if saved >= IMPACT_BOUNDS[0] / 100 * step:
        return []  # it would save a lot, and was left out for another reason
    by_turns = undisturbed is not None and undisturbed.turns(IMPACT_BOUNDS[0]) is not None
    if leader.cause in ("host", "unknown") and by_turns:
        return []  # in other steps another one comes last, as TO-I001 says
    claim = ComesLast(
        window=run.step_words is WINDOW,
        rank=leader.rank,
        does=leader.cause,
        waiting=waiting / 1e6,
        saved=saved / 1e6,
        step=step / 1e6,
        at_best=_saved_at_best(run, leader.rank),
        recorded=undisturbed is not None,
        doubt=None if undisturbed is None else without_profiler(leader, "info", undisturbed)[2],
    )
    other = slowest_other(run.loading_ms, [leader.rank])
    if leader.cause == "input" and other is not None and other[1] * 1e6 >= _PACED * (step - saved):
        claim = replace(claim, loader=other[0])
    return [
        rule.finding(
            "info",
            "low" if leader.cause == "host" and (slowdown or 0) > PROFILED else "medium",
            claim,
            evidence_of(run, leader, step, saved),
            ranks=[leader.rank],
            steps=leader.late_steps,
            impact_ms=stored(saved / 1e6),
            cause=leader.cause,
            role=late_in(run, leader.rank),
        )
    ]


def _saved_at_best(run: ComparedRun, rank: int) -> float | None:
    """What fixing a rank saves where no host is late with or without the fix, ms; None where hosts do not decide it."""
    ends = run.replay.what_if.range_ns(rank_change([rank]), [rank])
    by_hosts = run.replay.what_if.saved_ns(HOST_IN_TIME)
    if ends is None or by_hosts is None:
        return None
    return (run.replay.what_if.mean_ns(run.replay.what_if.replayed_ns) - by_hosts - ends[0]) / 1e6


def _with_waiting(claim: Late, run: ComparedRun, straggler: Straggler, sometimes: bool) -> Late:
    """With who waits for the rank, and how long."""
    waiting = waiting_ms(run, straggler, sometimes=sometimes)
    saved_ms = mean_over(run, sometimes=sometimes)(straggler.saved) / 1e6
    if waiting < 0.01:
        return replace(claim, nobody_waits=True)
    if waiting < VISIBLE * saved_ms and len(run.replay.stragglers.found) == 1:
        behind = [c for c in run.matching.collectives if c.last_rank == straggler.rank]
        met = len({rank for c in behind for rank in c.group}) - 1
        if not 0 < met < claim.others:
            return replace(claim, hidden=True)
        steps = max(len(run.replay.stragglers.step_ns), 1)
        return replace(claim, met=met, met_waiting=sum(sum(c.wait_ns) for c in behind) / met / steps / 1e6)
    return replace(claim, waiting_on_average=waiting) if sometimes else replace(claim, waiting=waiting)


def steps_text(steps: Sequence[int]) -> str:
    listed = ", ".join(map(str, steps[:8])) + (" …" if len(steps) > 8 else "")
    return f"step{'s' if len(steps) != 1 else ''} {listed}"


def clear_text(run: ComparedRun) -> str:
    if (leader := run.replay.stragglers.leader) is None:
        return reason("late", "nobody")
    mean = mean_over(run)
    step, saved = mean(run.replay.stragglers.step_ns), max(mean(leader.alone), 0.0)
    waiting = waiting_ms(run, leader)
    return reason(
        "late",
        "little_saved",
        rank=leader.rank,
        waiting=f"{waiting:.2f}",
        saved=f"{saved / 1e6:.2f}",
        step=f"{step / 1e6:.2f}",
        bound=IMPACT_BOUNDS[0],
        window=run.step_words is WINDOW,
    )
