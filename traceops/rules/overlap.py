"""TO-O001 and TO-O003: communication that nothing hides, or that starts too late; and the family's judge."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.across.gradients import of_gradients
from traceops.across.match import waits_by_rank
from traceops.across.undisturbed import Undisturbed
from traceops.core.findings import Evidence, severity_of
from traceops.core.rule import Rule, Verdict
from traceops.core.units import stored
from traceops.core.words import ROLES
from traceops.measure.backward import NO_BACKWARD
from traceops.measure.ledger import COMM_BUCKETS
from traceops.rules.clocks import MOST_OUT_OF_STEP_PCT, OUT_OF_STEP, out_of_step_pct
from traceops.rules.incomplete import why_incomplete
from traceops.rules.inputs import Inputs
from traceops.rules.overlap_basis import basis_of
from traceops.rules.overlap_calls import of_one_size
from traceops.rules.overlap_gain import gain_evidence, gain_of, gain_text, graded, step_left
from traceops.rules.overlap_small import SMALL_BOUNDS, SMALL_COLLECTIVES, SMALL_PCT, judge_small
from traceops.rules.overlap_told import in_each_pass, of_unknown_size
from traceops.rules.role_text import main_role, role_evidence, transfer_by_role
from traceops.rules.transfer_cores import waited_pct, without_waiting

EXPOSED = Rule(
    id="TO-O001",
    title="Communication is exposed",
    fires=(
        "Time a step spends in transfer (waiting for late ranks not counted) that nothing hides, median over "
        "ranks: info from 10 % of the step, warning from 20 %, error from 40 %. A warning or an error only where the "
        "step would be shorter by as much without any transfer, with hosts in time, and by 3 % with hosts as they are. "
        "Where a light window tells of the step without the profiler, shares "
        "are of that step, and hosts count as in time if no device is idle for 3 % of "
        "it, in as much of it as they were seen to need. On CPUs and over gloo, what "
        "the median rank waits for a core in the recorded steps is taken off before the bounds: the ranks' cores do "
        "the transfer."
    ),
    advice=(
        "Let communication run beside backward: DDP's bucket_cap_mb (smaller where it starts late, larger where many "
        "small collectives are sent), prefetching in FSDP, gradient accumulation with no_sync(), lower precision for "
        "communication; and check with the bus bandwidth below whether the link itself is slow."
    ),
)

LATE_START = Rule(
    id="TO-O003",
    title="Communication starts only after backward ended",
    fires=(
        "90 % or more of the transfer of all-reduces and reduce-scatters of more than 64 bytes lies behind "
        "backward's last kernel, on every rank: info where it takes 3 % of the step exposed, warning from "
        "10 %, error from 25 %. Those of layers (tensor, context, expert, pipeline parallel) beside others, and those "
        "launched behind the optimizer's step, do not count. A warning or an error only where the step would be "
        "shorter by as much, with the compute that there is to hide it behind. The step without the profiler, and "
        "waiting for cores, count as in TO-O001."
    ),
    advice=(
        "Let gradients leave while backward still computes: smaller buckets (DDP's bucket_cap_mb; one bucket "
        "as large as the model can only leave at the end), hooks on parameters, or FSDP units per block."
    ),
)
RULES = (EXPOSED, SMALL_COLLECTIVES, LATE_START)

_EXPOSED_PCT, _GRADIENTS_PCT = "comm_transfer_pct", "of it gradients"  # held to bounds
_EXPOSED_BOUNDS = (10.0, 20.0, 40.0)  # percent of the step: info, warning, error
_UNMATCHED_BOUND = 0.2  # share of exposed communication beyond which nothing is claimed
_LATE_SHARE = 0.9  # of the gradients' transfer after the end of backward
_LATE_BOUNDS = (3.0, 10.0, 25.0)


def judge(inputs: Inputs) -> list[Verdict]:
    """Communication that costs the step time."""
    if why := why_incomplete(inputs.run.ranks):
        return [rule.not_evaluated(why) for rule in RULES]
    waited, host_ms = waited_pct(inputs), None if inputs.whole is None else inputs.whole.host_ms
    return [
        without_waiting(judge_exposed(inputs.run, inputs.undisturbed, host_ms), _EXPOSED_PCT, _EXPOSED_BOUNDS, waited),
        without_waiting(judge_small(inputs.run, inputs.undisturbed, host_ms), SMALL_PCT, SMALL_BOUNDS, waited),
        without_waiting(
            judge_late_start(inputs.run, inputs.undisturbed, host_ms), _GRADIENTS_PCT, _LATE_BOUNDS, waited
        ),
    ]


def judge_exposed(run: CrossRank, undisturbed: Undisturbed | None = None, host_ms: float | None = None) -> Verdict:
    """TO-O001 over the median rank: transfer is the group's, so a single rank's share proves little."""
    if not any(len(times.summary.comm.start) for times in run.ranks):
        return EXPOSED.not_evaluated("the traces hold no communication")
    if not run.split:
        reasons = "; ".join(run.matching.unmatched) or "no collective could be matched"
        return EXPOSED.not_evaluated(f"waiting and transfer cannot be told apart: {reasons}")
    exposed = sum(int(times.buckets[bucket][times.typical].sum()) for times in run.ranks for bucket in COMM_BUCKETS)
    unmatched = sum(int(times.buckets["comm_unmatched"][times.typical].sum()) for times in run.ranks)
    if unmatched > _UNMATCHED_BOUND * exposed:
        return EXPOSED.not_evaluated(
            f"{100 * unmatched / exposed:.0f} % of the exposed communication could not be matched "
            "across ranks, so waiting and transfer cannot be told apart"
        )
    if out_of_step_pct(run) > MOST_OUT_OF_STEP_PCT:
        return EXPOSED.not_evaluated(OUT_OF_STEP)
    basis = basis_of(run, undisturbed, host_ms)
    if basis is None:
        return EXPOSED.not_evaluated("the traces hold no complete step")
    shares, median, impact = basis.shares, basis.pct, basis.exposed_ms
    severity = severity_of(median, *_EXPOSED_BOUNDS)
    if severity is None:
        return EXPOSED.clear(
            f"{median:.1f} % of {run.step_words.the} is exposed transfer (bound {_EXPOSED_BOUNDS[0]:g} %)"
        )
    gain = gain_of(run, impact, in_time=basis.in_time, left_ms=basis.left_ms)
    severity = graded(severity, gain, basis.step_ms, _EXPOSED_BOUNDS)
    worst = max(shares, key=lambda rank: shares[rank])
    overlap = [t.summary.breakdown.overlap_pct for t in run.ranks if t.summary.breakdown.overlap_pct is not None]
    evidence = [
        Evidence("comm_transfer", stored(impact), run.step_words.unit("ms")),
        Evidence(_EXPOSED_PCT, round(median, 1), "%", _EXPOSED_BOUNDS[0]),
        Evidence("comm_transfer_pct (most)", round(shares[worst], 1), "%", rank=worst),
        *gain_evidence(gain, run.step_words),
        *basis.evidence(run.step_words),
    ]
    if overlap:
        evidence.append(Evidence("overlap_pct", round(float(np.median(overlap)), 1), "%"))
    message = (
        f"{impact:.2f} ms of {run.step_words.each} ({median:.0f} %) is transfer between ranks that no computation "
        f"hides; waiting for late ranks is not counted.{basis.note}{of_unknown_size(run) or of_one_size(run)}"
        f"{in_each_pass(run)}"
    )
    by_role = transfer_by_role(run)
    if by_role:
        of_it = "Of it" if basis.recorded_ms is None else "As recorded, of it"
        message += f" {of_it} {', '.join(f'{ROLES[role]} {ms:.2f} ms' for role, ms in by_role.items())}."
        evidence += role_evidence(by_role, run.step_words)
    return EXPOSED.verdict(
        EXPOSED.finding(
            severity,
            "high",
            message + gain_text(gain, run.step_words),
            evidence,
            ranks=sorted(shares),
            impact_ms=stored(gain.ms),
            role=main_role(by_role),
        )
    )


def judge_late_start(run: CrossRank, undisturbed: Undisturbed | None = None, host_ms: float | None = None) -> Verdict:
    """TO-O003: gradients are transferred after backward's computation is over, in every step that has both."""
    waits = waits_by_rank(run.matching, [times.summary for times in run.ranks])
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
            transfer = int((end - turn)[own].sum())
            if transfer > 0:
                after = int(np.maximum(end[own] - np.maximum(turn[own], over), 0).sum())
                shares[summary.rank].append(after / transfer)
                counts.append(int(own.sum()))
                sizes.append(transfer)
    if not shares:
        return LATE_START.not_evaluated("no step holds both a backward pass and matched gradient collectives")
    if out_of_step_pct(run) > MOST_OUT_OF_STEP_PCT:
        return LATE_START.not_evaluated(OUT_OF_STEP)
    # Ranks that wait for a late one transfer after their own backward; what counts is the late one's.
    late = min(float(np.median(own)) for own in shares.values())
    basis = basis_of(run, undisturbed, host_ms)
    if basis is None:
        return LATE_START.not_evaluated("the traces hold no complete step")
    step, exposed = basis.step_ms, basis.exposed_ms
    cost = min(exposed, float(np.median(sizes)) / 1e6)
    share = 100.0 * cost / step if step else 0.0
    severity, words = severity_of(share, *_LATE_BOUNDS), run.step_words
    if late < _LATE_SHARE or severity is None:
        return LATE_START.clear(
            f"{100 * late:.0f} % of the gradients' transfer comes after backward (bound "
            f"{100 * _LATE_SHARE:g} %), exposed it takes {share:.1f} % of {words.the} (bound {_LATE_BOUNDS[0]:g} %)"
        )
    hides = float(np.median([times.mean_ms("compute") for times in run.ranks]))
    gain = gain_of(run, min(cost, hides), in_time=basis.in_time, left_ms=basis.left_ms)
    severity = graded(severity, gain, step, _LATE_BOUNDS)
    message = (
        f"{100 * late:.0f} % of the gradients' transfer ({float(np.median(counts)):.0f} "
        f"collective{'s' if np.median(counts) > 1 else ''} {words.per}) comes after backward's last kernel, so "
        f"nothing hides it: {cost:.2f} ms of {basis.of_step(words)} ({share:.0f} %). Hidden beside backward, "
        f"{words.the} would take {step_left(gain, step)} at best.{basis.note}"
    )
    evidence = [
        Evidence("transfer after backward", round(100 * late, 1), "%", 100 * _LATE_SHARE),
        Evidence("gradient collectives", float(np.median(counts)), words.per),
        Evidence("comm_transfer_pct", round(100 * exposed / step, 1), "%"),
        Evidence(_GRADIENTS_PCT, round(share, 1), "%", _LATE_BOUNDS[0]),
        *gain_evidence(gain, words),
        *basis.evidence(words),
    ]
    return LATE_START.verdict(
        LATE_START.finding(
            severity,
            "high",
            message,
            evidence,
            ranks=[times.summary.rank for times in run.ranks],
            impact_ms=stored(gain.ms),
        )
    )
