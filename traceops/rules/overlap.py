"""TO-O001 and TO-O003: communication that nothing hides, or that starts too late; and the family's judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from traceops.across.communication import call_times
from traceops.across.cross_rank import CrossRank
from traceops.across.links import busbw_gbs, collective_bytes
from traceops.across.match import Collective
from traceops.across.roles import of_gradients
from traceops.across.run_use import recorded_waits
from traceops.across.undisturbed import Undisturbed
from traceops.core.arrays import median
from traceops.core.claims import Claim, reason, restated
from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Evidence, Severity, severity_of
from traceops.core.rule import Bounds, Verdict, described
from traceops.core.units import stored
from traceops.core.words import WINDOW
from traceops.measure.ledger import COMM_BUCKETS
from traceops.measure.phases import NO_BACKWARD
from traceops.rules import overlap_gain, shared
from traceops.rules.inputs import Inputs, why_incomplete

EXPOSED = described("overlap", "TO-O001")
SMALL_COLLECTIVES = described("overlap", "TO-O002")
LATE_START = described("overlap", "TO-O003")
RULES = (EXPOSED, SMALL_COLLECTIVES, LATE_START)

_SMALL_BYTES = 4_000_000
_FAR_BELOW = 0.25  # of what the link gives or else the group's best: then latency sets the time
_HIDDEN_PCT = 2.0  # of the step: transfer worth a remark though other work hides it


class OverlapBounds(Bounds, frozen=True):
    """Percent of the step."""

    words = "overlap"
    exposed_pct: tuple[float, float, float] = (10.0, 20.0, 40.0)
    small_pct: tuple[float, float, float] = (5.0, 10.0, 25.0)
    late_pct: tuple[float, float, float] = (3.0, 10.0, 25.0)


BOUNDS = OverlapBounds()

# TO-O002: collectives that are too small for their link, or more than their bytes need.


def judge_small(run: CrossRank, undisturbed: Undisturbed | None = None, host_ms: float | None = None) -> Verdict:
    """TO-O002: many collectives whose time latency sets, as far as their transfer is exposed."""
    if not run.matching.collectives:
        return SMALL_COLLECTIVES.not_evaluated(reason("overlap", "none_matched"))
    if not (sized := [c for c in run.matching.collectives if collective_bytes(c)]):
        return SMALL_COLLECTIVES.not_evaluated(reason("overlap", "sizes_unknown"))
    if (basis := overlap_gain.basis_of(run, undisturbed, host_ms)) is None:
        return SMALL_COLLECTIVES.not_evaluated(reason("overlap", "no_step"))
    small, steps = _of_typical_steps(run, _small_ones(run, sized))
    members: dict[int, list[int]] = defaultdict(list)
    for collective in small:
        for rank, _ in collective.members:
            members[rank].append(collective.transfer_ns)
    if not members:
        clear = SMALL_COLLECTIVES.clear(reason("overlap", "none_small", mb=_SMALL_BYTES / 1e6))
        return _judge_calls(run, basis) or clear
    most, words, step = max(members.values(), key=sum), run.step_words, basis.step_ms
    count, total_ms = len(most) / steps, sum(most) / 1e6 / steps
    cost = min(total_ms, basis.exposed_ms)
    gain = basis.gain(run, cost)
    share, of_step = (100.0 * ms / step if step else 0.0 for ms in (cost, total_ms))
    severity = _small_severity(share, of_step, gain, step) if count >= overlap_gain.MANY else None
    if severity is None:
        numbers = {"share": f"{share:.1f}", "bound": BOUNDS.small_pct[0], "window": words is WINDOW}
        why = reason("overlap", "small_cost_little", count=f"{count:.0f}", many=overlap_gain.MANY, **numbers)
        return _judge_calls(run, basis) or SMALL_COLLECTIVES.clear(why)
    size = median([collective_bytes(one) or 0 for one in small])
    claim = overlap_gain.ManySmall(
        window=words is WINDOW,
        count=count,
        median=size,
        takes=total_ms,
        exposed=cost,
        pct=share,
        recorded=basis.recorded,
        free=overlap_gain.free_transfer(gain),
    )
    evidence = [
        Evidence(Fact.SMALL_COLLECTIVES, round(count, 1), words.per, overlap_gain.MANY),
        Evidence(Fact.TRANSFER_OF_THEM, stored(total_ms), words.unit("ms")),
        Evidence(Fact.MEDIAN_SIZE, int(size), "bytes", _SMALL_BYTES),
        Evidence(Fact.EXPOSED_PCT, round(share, 1), "%", BOUNDS.small_pct[0]),
        *overlap_gain.gain_evidence(gain, words),
        *basis.evidence(words),
    ]
    ranks, impact = sorted(members), stored(gain.ms)
    found = SMALL_COLLECTIVES.finding(severity, "high", claim, evidence, ranks=ranks, impact_ms=impact)
    return SMALL_COLLECTIVES.verdict(found)


def _small_severity(share: float, of_step: float, gain: overlap_gain.Gain, step: float) -> Severity | None:
    """By the exposed share of the step; transfer that other work hides is worth a remark. All in percent but step."""
    if (severity := severity_of(share, *BOUNDS.small_pct)) is not None:
        severity = overlap_gain.graded(severity, gain, step, BOUNDS.small_pct)
    return severity or ("info" if of_step >= _HIDDEN_PCT else None)


def _small_ones(run: CrossRank, sized: Sequence[Collective]) -> list[Collective]:
    """Those whose time latency sets, against the link of their group or else its best."""
    best: dict[tuple[int, ...], float] = defaultdict(float)
    for collective in sized:
        best[collective.group] = max(best[collective.group], busbw_gbs(collective) or 0.0)
    for group in best:
        link = run.reference(group)
        best[group] = max(best[group], link.busbw_gbs if link else 0.0)
    small = []
    for collective in sized:
        size, gbs, of_link = collective_bytes(collective) or 0, busbw_gbs(collective), best[collective.group]
        if size < _SMALL_BYTES and (gbs is None or of_link <= 0 or gbs < _FAR_BELOW * of_link or size < 64_000):
            small.append(collective)
    return small


def _judge_calls(run: CrossRank, basis: overlap_gain.Basis) -> Verdict | None:
    """TO-O002 of few or larger calls: only where the run's own show that calls cost more than their bytes."""
    if (times := call_times(run)) is None or basis.step_ms <= 0:
        return None
    calls = overlap_gain.Calls(times, basis.exposed_ms)
    share = 100.0 * calls.saved_ms / basis.step_ms
    if (severity := severity_of(share, *BOUNDS.small_pct)) is None or calls.saved_ms <= 0:
        return None
    gain, words = basis.gain(run, calls.saved_ms), run.step_words
    severity = overlap_gain.graded(severity, gain, basis.step_ms, BOUNDS.small_pct)
    evidence = [
        *calls.evidence(words),
        Evidence(Fact.EXPOSED_PCT, round(share, 1), "%", BOUNDS.small_pct[0]),
        *overlap_gain.gain_evidence(gain, words),
        *basis.evidence(words),
    ]
    claim, ranks = calls.claim(words, basis.recorded), sorted(times.summary.rank for times in run.ranks)
    found = SMALL_COLLECTIVES.finding(severity, "high", claim, evidence, ranks=ranks, impact_ms=stored(gain.ms))
    return SMALL_COLLECTIVES.verdict(found)


def _of_typical_steps(run: CrossRank, small: Sequence[Collective]) -> tuple[list[Collective], int]:
    """Those in steps like the others, and how many such steps there are: an evaluation has calls of its own."""
    typical = {times.summary.rank: times.typical for times in run.ranks}
    if len(typical) == 0 or not all(own.any() for own in typical.values()):
        return list(small), max(len(run.ranks[0].duration), 1)
    step_of = {times.summary.rank: times.summary.comm.step for times in run.ranks}
    kept = []
    for one in small:
        rank, position = one.members[0]
        step = int(step_of[rank][position])
        if not 0 <= step < len(typical[rank]) or typical[rank][step]:
            kept.append(one)
    return kept, int(run.ranks[0].typical.sum())


_UNMATCHED_BOUND = 0.2  # share of exposed communication beyond which nothing is claimed
_LATE_SHARE = 0.9  # of the gradients' transfer after the end of backward


def judge(inputs: Inputs) -> list[Verdict]:
    """Communication that costs the step time."""
    if why := why_incomplete(inputs.run.ranks):
        return [rule.not_evaluated(why) for rule in RULES]
    run, light = inputs.run, inputs.undisturbed
    waited, host_ms = waited_pct(inputs), None if inputs.whole is None else inputs.whole.host_ms
    return [
        without_waiting(judge_exposed(run, light, host_ms), Fact.BUCKET_PCT, BOUNDS.exposed_pct, waited),
        without_waiting(judge_small(run, light, host_ms), Fact.EXPOSED_PCT, BOUNDS.small_pct, waited),
        without_waiting(judge_late_start(run, light, host_ms), Fact.GRADIENTS_PCT, BOUNDS.late_pct, waited),
    ]


def judge_exposed(run: CrossRank, undisturbed: Undisturbed | None = None, host_ms: float | None = None) -> Verdict:
    """TO-O001 over the median rank: transfer is the group's, so a single rank's share proves little."""
    if not any(len(times.summary.comm.start) for times in run.ranks):
        return EXPOSED.not_evaluated(reason("overlap", "no_communication"))
    if not run.split:
        why = "; ".join(run.matching.unmatched) or reason("overlap", "none_matched")
        return EXPOSED.not_evaluated(reason("overlap", "not_split", why=why))
    exposed = sum(int(times.buckets[bucket][times.typical].sum()) for times in run.ranks for bucket in COMM_BUCKETS)
    unmatched = sum(int(times.buckets["comm_unmatched"][times.typical].sum()) for times in run.ranks)
    if unmatched > _UNMATCHED_BOUND * exposed:
        return EXPOSED.not_evaluated(reason("overlap", "much_unmatched", pct=f"{100 * unmatched / exposed:.0f}"))
    if shared.out_of_step_pct(run) > shared.MOST_OUT_OF_STEP_PCT:
        return EXPOSED.not_evaluated(reason("overlap", "out_of_step"))
    if (basis := overlap_gain.basis_of(run, undisturbed, host_ms)) is None:
        return EXPOSED.not_evaluated(reason("overlap", "no_step"))
    shares, middle, impact = basis.shares, basis.pct, basis.exposed_ms
    if (severity := severity_of(middle, *BOUNDS.exposed_pct)) is None:
        numbers = {"share": f"{middle:.1f}", "bound": BOUNDS.exposed_pct[0], "window": run.unit == "window"}
        return EXPOSED.clear(reason("overlap", "little_exposed", **numbers))
    gain = basis.gain(run, impact)
    severity = overlap_gain.graded(severity, gain, basis.step_ms, BOUNDS.exposed_pct)
    worst = max(shares, key=lambda rank: shares[rank])
    overlap = [t.summary.breakdown.overlap_pct for t in run.ranks if t.summary.breakdown.overlap_pct is not None]
    evidence = [
        Evidence(Fact.BUCKET, stored(impact), run.step_words.unit("ms"), subject="comm_transfer"),
        Evidence(Fact.BUCKET_PCT, round(middle, 1), "%", BOUNDS.exposed_pct[0], subject="comm_transfer"),
        Evidence(Fact.BUCKET_PCT_MOST, round(shares[worst], 1), "%", rank=worst, subject="comm_transfer"),
        *overlap_gain.gain_evidence(gain, run.step_words),
        *basis.evidence(run.step_words),
    ]
    if overlap:
        evidence.append(Evidence(Fact.OVERLAP_PCT, round(median(overlap), 1), "%"))
    by_role = shared.transfer_by_role(run)
    evidence += shared.role_evidence(by_role, run.step_words)
    claim = overlap_gain.Exposed(
        window=run.step_words is WINDOW,
        exposed=impact,
        pct=middle,
        step=basis.step_ms,
        unsized=overlap_gain.of_unknown_size(run),
        passes=overlap_gain.passes_that_reduce(run),
        by_role=by_role,
        recorded=basis.recorded,
        free=overlap_gain.free_transfer(gain),
    )
    ranks, impact, role = sorted(shares), stored(gain.ms), shared.main_role(by_role)
    return EXPOSED.verdict(EXPOSED.finding(severity, "high", claim, evidence, ranks=ranks, impact_ms=impact, role=role))


def judge_late_start(run: CrossRank, undisturbed: Undisturbed | None = None, host_ms: float | None = None) -> Verdict:
    """TO-O003: gradients are transferred after backward's computation is over, in every step that has both."""
    waits = run.waits
    shares: dict[int, list[float]] = defaultdict(list)
    counts, sizes = [], []
    for times in run.ranks:
        summary = times.summary
        start, turn, end = waits[summary.rank]
        reduces = of_gradients(summary, run.roles.of_event[summary.rank] if run.roles.several else ())
        at = np.searchsorted(summary.comm.start, start)
        for number, over in enumerate(summary.backward.device_end.tolist()):
            if over == NO_BACKWARD:
                continue
            own = (summary.comm.step[at] == number) & reduces[at]
            if (transfer := int((end - turn)[own].sum())) > 0:
                after = int(np.maximum(end[own] - np.maximum(turn[own], over), 0).sum())
                shares[summary.rank].append(after / transfer)
                counts.append(int(own.sum()))
                sizes.append(transfer)
    if not shares:
        return LATE_START.not_evaluated(reason("overlap", "no_gradients"))
    if shared.out_of_step_pct(run) > shared.MOST_OUT_OF_STEP_PCT:
        return LATE_START.not_evaluated(reason("overlap", "out_of_step"))
    # Ranks that wait for a late one transfer after their own backward; what counts is the late one's.
    late = min(median(own) for own in shares.values())
    if (basis := overlap_gain.basis_of(run, undisturbed, host_ms)) is None:
        return LATE_START.not_evaluated(reason("overlap", "no_step"))
    step, exposed = basis.step_ms, basis.exposed_ms
    cost = min(exposed, median(sizes) / 1e6)
    share = 100.0 * cost / step if step else 0.0
    severity, words = severity_of(share, *BOUNDS.late_pct), run.step_words
    if late < _LATE_SHARE or severity is None:
        numbers = {"share": f"{share:.1f}", "bound": BOUNDS.late_pct[0], "window": words is WINDOW}
        why = reason("overlap", "in_backward", late=f"{100 * late:.0f}", least=100 * _LATE_SHARE, **numbers)
        return LATE_START.clear(why)
    hides = median([times.mean_ms("compute") for times in run.ranks])
    gain = basis.gain(run, min(cost, hides))
    severity = overlap_gain.graded(severity, gain, step, BOUNDS.late_pct)
    claim = overlap_gain.StartsLate(
        window=words is WINDOW,
        exposed=cost,
        pct=share,
        step=step,
        late_pct=100 * late,
        collectives=median(counts),
        saved=gain.ms,
        saved_in_time=gain.best_ms,
        recorded=basis.recorded,
    )
    evidence = [
        Evidence(Fact.TRANSFER_AFTER_BACKWARD, round(100 * late, 1), "%", 100 * _LATE_SHARE),
        Evidence(Fact.GRADIENT_COLLECTIVES, median(counts), words.per),
        Evidence(Fact.BUCKET_PCT, round(100 * exposed / step, 1), "%", subject="comm_transfer"),
        Evidence(Fact.GRADIENTS_PCT, round(share, 1), "%", BOUNDS.late_pct[0]),
        *overlap_gain.gain_evidence(gain, words),
        *basis.evidence(words),
    ]
    ranks = [times.summary.rank for times in run.ranks]
    found = LATE_START.finding(severity, "high", claim, evidence, ranks=ranks, impact_ms=stored(gain.ms))
    return LATE_START.verdict(found)


def waited_pct(inputs: Inputs) -> float:
    """Percent of the recorded steps in which the median rank wants a core; 0 where GPUs exchange by themselves."""
    run = inputs.run
    if not shared.on_cpu(run) and not run.through_host:
        return 0.0
    waits = recorded_waits(inputs.observed)
    beside = [waits[rank].beside_pct if rank in waits else 0.0 for rank in (t.summary.rank for t in run.ranks)]
    return median(beside) if beside else 0.0


def without_waiting(verdict: Verdict, share_pct: Fact, bounds: Sequence[float], waited: float) -> Verdict:
    """The verdict, as severe as what is left of the transfer where all of the waiting for a core lies in it. share_pct:
    the metric of the finding's evidence that is held to the bounds."""
    findings = []
    for found in verdict.findings:
        share = found.number(share_pct)
        left = severity_of((share or 0.0) - waited, *bounds) or "info"
        if (
            waited >= shared.WAITS_PCT
            and share is not None
            and SEVERITIES.index(left) < SEVERITIES.index(found.severity)
        ):
            core = Evidence(Fact.WAITS_FOR_A_CORE, round(waited, 1), "% of recorded steps", shared.WAITS_PCT)
            found = restated(found, _CLAIMS[str(found.kind)], core_pct=waited)
            found = replace(found, severity=left, evidence=(*found.evidence, core))
        findings.append(found)
    return replace(verdict, findings=tuple(findings))


_CLAIMS: Mapping[str, type[Claim]] = {
    kind.kind: kind
    for kind in (overlap_gain.Exposed, overlap_gain.ManySmall, overlap_gain.ManyCalls, overlap_gain.StartsLate)
}
