"""What is said of a late rank: its finding, and why none is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from msgspec import UNSET

from traceops.across.cross_rank import CrossRank
from traceops.across.loader_pace import slowest_other
from traceops.across.replay.graph import Steps
from traceops.across.replay.what_if import WORK_SHARED
from traceops.across.stack_difference import with_cause
from traceops.across.stragglers import Straggler
from traceops.across.undisturbed import Undisturbed
from traceops.core.cause_words import CAUSES as CAUSE_WORDS
from traceops.core.cause_words import COMPUTES_LONGER, OPERATORS_LONGER
from traceops.core.findings import SEVERITIES, Confidence, Finding, Severity, severity_of
from traceops.core.rank_text import who as ranks_named
from traceops.core.rule import Rule
from traceops.core.units import stored
from traceops.rules.host_turns import told_of_turns
from traceops.rules.role_text import in_role, late_in
from traceops.rules.straggler_bounds import CHANCE, IMPACT_BOUNDS, PROFILED, SURE, VISIBLE
from traceops.rules.straggler_conditions import cured_beside, plainly_slow, slowed_by_profiler, uncertain
from traceops.rules.straggler_evidence import (
    evidence_of,
    mean_over,
    of_operators,
    saved_by_sharing,
    waiting_ms,
    work_evidence,
)
from traceops.rules.straggler_undisturbed import waited_for, without_profiler

_PACE: Mapping[object, str] = {"extra_kernels": "Without them", "more_calls": "Without these launches"}
_HOST_BOUND = 0.1  # of the step with the stragglers cured: what it would lose if no host were late
_PACED = 0.95  # of a step: a loader that takes so much of it is what bounds it
_WAITING_PCT = 10.0  # of the step: waiting for one rank that is worth a remark though its cure saves little


def finding_of(
    rule: Rule,
    severity: Severity,
    run: CrossRank,
    straggler: Straggler,
    slowdown: float | None,
    undisturbed: Undisturbed | None,
    late: Sequence[int] = (),
    *,
    sometimes: bool = False,
) -> Finding:
    """A finding of `rule` about a rank that is late in most steps, or only `sometimes`.

    slowdown: profiled ÷ unprofiled step, None where not known. undisturbed: the step without the profiler, where it is
    known. late: who is cured beside it, itself among them, where these are not the stragglers that were found.
    """
    assert run.stragglers is not None and run.lateness is not None
    straggler = replace(straggler, cause=with_cause(run, straggler, sometimes=sometimes))
    mean = mean_over(run, sometimes=sometimes)
    step, saved = mean(run.stragglers.step_ns), mean(straggler.saved)
    compared = run.work.get(straggler.rank)
    longer = UNSET if compared is None else compared.kind
    if straggler.cause == "host" and not any(times.summary.on_gpu for times in run.ranks):
        longer = "on_cpu"
    shared = saved_by_sharing(run, mean) if longer == "more_work" else None
    if shared is not None and not sometimes:
        severity = _no_more(severity, severity_of(100 * shared / step, IMPACT_BOUNDS[0], *IMPACT_BOUNDS))
    confidence: Confidence = "high" if straggler.chance <= SURE and straggler.cause != "unknown" else "medium"
    note = ""
    if straggler.cause in ("host", "unknown"):
        confidence, severity, note = _of_host(run, straggler, (confidence, severity), slowdown, undisturbed, sometimes)
    # Of a rank that is late in some steps only, numbers are means over all of them.
    average = " on average" if sometimes else ""
    when = f" in {steps_text(straggler.late_steps)}" if sometimes else ""
    words = CAUSE_WORDS[straggler.cause] if longer is UNSET else COMPUTES_LONGER[longer]
    operators, in_operators = of_operators(run, straggler) if longer == "on_cpu" else ("", ())
    words = OPERATORS_LONGER if in_operators else words
    message = f"Rank {straggler.rank} is late{when}: {words.clause}. {_waits(run, straggler, sometimes)} "
    cured = late or cured_beside(run, straggler)
    beside = sorted(rank for rank in cured if rank != straggler.rank)
    pace = _PACE.get(longer, "At its peers' pace")
    said = run.step_words
    more, up_to = (" or more", "up to ") if run.cures_are_least else ("", "")
    pct = f"{100 * saved / step:.0f}"
    if shared is not None:
        ends = _shared_ends(run, mean)
        pct = _shared_pct(run, ends, step, shared)
        then = f"{_shared_text(ends, step - shared)}{more} instead of {step / 1e6:.2f} ms{average}"
        message += f"With the work shared evenly {said.the} would take {then}"
    elif beside:
        told = f"{saved / 1e6:.2f} of {step / 1e6:.2f} ms {said.per}{average}"
        message += f"With {ranks_named(beside)} cured too, curing this rank saves {up_to}{told}"
    else:
        then = f"{(step - saved) / 1e6:.2f}{more} instead of {step / 1e6:.2f} ms{average}"
        message += f"{pace} {said.the} would take {then}"
    if run.hosts_unknown and not note:
        note = (
            " Hosts take longer in these steps than before them, and how fast they are without the profiler is not "
            "known."
            if run.hosts_slower
            else " How far ahead hosts were when the window began is not known."
        )
    if doubt := uncertain(run):
        confidence = "medium" if confidence == "high" else confidence
        note += f" This is approximate: {doubt}."
    message += f" ({up_to}{pct} % less).{operators}{note}"
    return rule.finding(
        severity,
        confidence,
        message,
        evidence_of(run, straggler, step, saved, sometimes=sometimes)
        + work_evidence(compared, straggler.rank, step, shared, said)
        + list(in_operators),
        ranks=[straggler.rank],
        steps=straggler.late_steps,
        impact_ms=stored((saved if shared is None else shared) / 1e6),
        cause=straggler.cause,
        computes_longer=longer,
        role=late_in(run, straggler.rank),
    )


def _no_more(severity: Severity, most: Severity | None) -> Severity:
    """The milder of the two; None: a remark."""
    return min(severity, most or "info", key=SEVERITIES.index)


def _of_host(
    run: CrossRank,
    straggler: Straggler,
    otherwise: tuple[Confidence, Severity],
    slowdown: float | None,
    undisturbed: Undisturbed | None,
    sometimes: bool,
) -> tuple[Confidence, Severity, str]:
    """Of a rank whose host may be the cause: what the profiler and shared cores leave of it, and a sentence on that."""
    assert run.stragglers is not None
    confidence, severity = otherwise
    if sometimes and not any(times.summary.on_gpu for times in run.ranks):
        note = (
            " Ranks that share a host's cores are late by turns: more steps tell whether it is this rank or the "
            "machine."
        )
        return "low", "info", note
    if slowed_by_profiler(run, straggler) and undisturbed is None:
        note = (
            " But it had run ahead when the window began and used that up in these steps: the profiler slows its "
            "host, and without it this rank may not be late."
        )
        return "low", "info", note
    if not sometimes and (turns := told_of_turns(undisturbed, IMPACT_BOUNDS[0])):
        return "low", "info", turns
    unknown = slowdown is None or (slowdown > PROFILED and undisturbed is None)
    if unknown and (seen := _by_one_region(run, straggler, slowdown)) is not None:
        return "medium", seen, ""
    if slowdown is None and run.stragglers.host_share >= _HOST_BOUND:
        note = (
            " But hosts bound the whole run: under the profiler, whose cost these traces do not tell, one of "
            "them is the slowest by nature (see TO-I001)."
        )
        return "medium", "info", note
    if slowdown is None:
        return "medium", severity, ""
    if slowdown <= PROFILED and (sometimes or undisturbed is None or waited_for(straggler, undisturbed)):
        return confidence, severity, ""
    if undisturbed is not None:
        return without_profiler(straggler, severity, undisturbed)
    note = (
        f" The profiler made the steps {slowdown:.2f} times as long, most of it host time: without it this "
        "rank may not be late."
    )
    return "low", "info", note


def _by_one_region(run: CrossRank, straggler: Straggler, slowdown: float | None) -> Severity | None:
    """Of a host late in one region, or far beyond its peers: what is left if recording stretched that like all else."""
    assert run.stragglers is not None
    mean = mean_over(run)
    step, saved = mean(run.stragglers.step_ns), mean(straggler.saved)
    if not plainly_slow(run, straggler, saved):
        return None
    severity = severity_of(100 * saved / (slowdown or 1.0) / step, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)
    return "warning" if severity == "info" else severity


def only_waited_for(
    rule: Rule, run: CrossRank, leader: Straggler, slowdown: float | None, undisturbed: Undisturbed | None
) -> list[Finding]:
    """A remark on whom all wait for, where its cure would save little because the others are hardly faster."""
    assert run.stragglers is not None
    mean = mean_over(run)
    step, saved = mean(run.stragglers.step_ns), max(mean(leader.alone), 0.0)
    waiting = waiting_ms(run, leader) * 1e6
    if waiting < _WAITING_PCT / 100 * step or leader.chance > CHANCE:
        return []
    if saved >= IMPACT_BOUNDS[0] / 100 * step:
        return []  # it would save a lot, and was left out for another reason
    by_turns = undisturbed is not None and undisturbed.turns(IMPACT_BOUNDS[0]) is not None
    if leader.cause in ("host", "unknown") and by_turns:
        return []  # in other steps another one comes last, as TO-I001 says
    recorded = "" if undisturbed is None else " as recorded"
    message = (
        f"Rank {leader.rank} comes last and the others wait {waiting / 1e6:.2f} ms {run.step_words.per} for it "
        f"({CAUSE_WORDS[leader.cause].clause}), but its cure alone saves only {saved / 1e6:.2f} of {step / 1e6:.2f} ms"
        f"{recorded}{_for_other_loaders(run, leader, step - saved)}."
    )
    confidence: Confidence = "low" if leader.cause == "host" and (slowdown or 0) > PROFILED else "medium"
    if undisturbed is not None:
        message += without_profiler(leader, "info", undisturbed)[2]
    return [
        rule.finding(
            "info",
            confidence,
            message,
            evidence_of(run, leader, step, saved),
            ranks=[leader.rank],
            steps=leader.late_steps,
            impact_ms=stored(saved / 1e6),
            cause=leader.cause,
            role=late_in(run, leader.rank),
        )
    ]


def _for_other_loaders(run: CrossRank, leader: Straggler, left: float) -> str:
    """Why a cured rank's step stays as long, where that is another's loader. left: of the step, ns."""
    slowest = slowest_other(run.loading_ms, [leader.rank])
    if leader.cause != "input" or slowest is None or slowest[1] * 1e6 < _PACED * left:
        return ""
    return f": the workers of rank {slowest[0]}'s loader are hardly faster"


def _waits(run: CrossRank, straggler: Straggler, sometimes: bool) -> str:
    """Who waits for it, and how long."""
    waiting = waiting_ms(run, straggler, sometimes=sometimes)
    average = " on average" if sometimes else ""
    where = in_role(run, late_in(run, straggler.rank), ", first of all in {} communication")
    if waiting < 0.01:
        return "Nobody is seen to wait for it alone, because others are as late or later."
    assert run.stragglers is not None
    others = len(run.ranks) - 1
    if (
        waiting < VISIBLE * mean_over(run, sometimes=sometimes)(straggler.saved) / 1e6
        and len(run.stragglers.found) == 1
    ):
        behind = [c for c in run.matching.collectives if c.last_rank == straggler.rank]
        met = len({rank for c in behind for rank in c.group}) - 1
        if not 0 < met < others:
            return "It delays transfers, which the others partly hide behind their own work."
        steps = max(len(run.stragglers.step_ns), 1)
        mean = sum(sum(c.wait_ns) for c in behind) / met / steps / 1e6
        return f"The {met} ranks that it meets wait {mean:.2f} ms {run.step_words.per} for it{average}{where}."
    wait = "The other rank waits" if others == 1 else f"The other {others} ranks wait"
    return f"{wait} {waiting:.2f} ms {run.step_words.per} for it{average}{where}."


def _shared_ends(run: CrossRank, mean: Callable[[Steps], float]) -> tuple[float, float] | None:
    """The least and the most that the same steps would take with the work shared evenly, ns; None: one number."""
    ends = None if run.what_if is None else run.what_if.range_steps(WORK_SHARED)
    return None if ends is None else (mean(ends[0]), mean(ends[1]))


def _shared_text(ends: tuple[float, float] | None, ns: float) -> str:
    """'18.95', or '18.70 to 19.21': by how efficiently kernels of that size run."""
    if ends is None:
        return f"{ns / 1e6:.2f}"
    return f"{ends[0] / 1e6:.2f} to {ends[1] / 1e6:.2f}"


def _shared_pct(run: CrossRank, ends: tuple[float, float] | None, step: float, shared: float) -> str:
    """'30', or '30 to 33' where the step's length is a range too. What is 'up to' has no lower end."""
    pcts = [shared] if ends is None else [step - max(ends), step - min(ends)]
    shown = list(dict.fromkeys(f"{100 * max(saved, 0.0) / step:.0f}" for saved in pcts))
    return shown[-1] if run.cures_are_least else " to ".join(shown)


def steps_text(steps: Sequence[int]) -> str:
    listed = ", ".join(map(str, steps[:8])) + (" …" if len(steps) > 8 else "")
    return f"step{'s' if len(steps) != 1 else ''} {listed}"


def clear_text(run: CrossRank) -> str:
    assert run.stragglers is not None
    leader = run.stragglers.leader
    if leader is None:
        return "no rank makes the others wait"
    mean = mean_over(run)
    step, saved = mean(run.stragglers.step_ns), max(mean(leader.alone), 0.0)
    waiting = waiting_ms(run, leader)
    return (
        f"the others wait most for rank {leader.rank}, {waiting:.2f} ms {run.step_words.per}; at its peers' pace "
        f"{saved / 1e6:.2f} of {step / 1e6:.2f} ms would be saved (bound {IMPACT_BOUNDS[0]:g} %)"
    )
