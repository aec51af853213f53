"""TO-O002: collectives that are too small for their link, or more than their bytes need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from traceops.across.cross_rank import CrossRank
from traceops.across.links import busbw_gbs, collective_bytes
from traceops.across.match import Collective
from traceops.across.undisturbed import Undisturbed
from traceops.core.findings import Evidence, severity_of
from traceops.core.rule import Rule, Verdict
from traceops.core.units import percent_text, size_text, stored
from traceops.rules.overlap_basis import Basis, basis_of
from traceops.rules.overlap_calls import calls_of
from traceops.rules.overlap_gain import gain_evidence, gain_of, gain_text, graded
from traceops.rules.overlap_told import MANY

SMALL_COLLECTIVES = Rule(
    id="TO-O002",
    title="Many small collectives",
    fires=(
        "At least 20 collectives a step below 4 MB that reach less than a quarter of what their link gives (where "
        "that is not known, of their group's best). Info where their transfer takes 2 % of the step, hidden or "
        "not, or their exposed transfer 5 %; warning from 10 %, error from 25 %. Fewer of them, or larger "
        "ones, count where the run's own calls show it: by sizes and times, at least half of the time of those that "
        "reduce gradients is what each takes whatever its size, and half as many as large as the largest one would "
        "carry the same bytes. Then the bounds are held to what these are sure to save. What the step would save, the "
        "step without the profiler, and waiting for cores, count as in TO-O001."
    ),
    advice=(
        "Send fewer and larger messages: DDP's bucket_cap_mb (25 is the default), one flat buffer or "
        "all_reduce_coalesced instead of a call a parameter, larger FSDP units."
    ),
)

SMALL_PCT = "exposed"  # held to bounds
_SMALL_BYTES = 4_000_000
_FAR_BELOW = 0.25  # of what the link gives or else the group's best: then latency sets the time
_HIDDEN_PCT = 2.0  # of the step: transfer worth a remark though other work hides it
SMALL_BOUNDS = (5.0, 10.0, 25.0)  # percent of the step: info, warning, error


def judge_small(run: CrossRank, undisturbed: Undisturbed | None = None, host_ms: float | None = None) -> Verdict:
    """TO-O002: many collectives whose time latency sets, as far as their transfer is exposed."""
    matched = run.matching.collectives
    if not matched:
        return SMALL_COLLECTIVES.not_evaluated("no collective could be matched")
    sized = [c for c in matched if collective_bytes(c)]
    if not sized:
        return SMALL_COLLECTIVES.not_evaluated("the traces do not say how large their collectives are")
    best: dict[tuple[int, ...], float] = defaultdict(float)
    for collective in sized:
        best[collective.group] = max(best[collective.group], busbw_gbs(collective) or 0.0)
    for group in best:
        link = run.reference(group)
        best[group] = max(best[group], link.busbw_gbs if link else 0.0)
    small = [c for c in sized if _is_small(c, best[c.group])]
    small, steps = _of_typical_steps(run, small)
    members: dict[int, list[int]] = defaultdict(list)
    for collective in small:
        for rank, _ in collective.members:
            members[rank].append(collective.transfer_ns)
    if not members:
        return _judge_calls(run, basis_of(run, undisturbed, host_ms)) or SMALL_COLLECTIVES.clear(
            f"no collective is below {_SMALL_BYTES / 1e6:g} MB and slow for its size"
        )
    rank = max(members, key=lambda r: sum(members[r]))
    words = run.step_words
    count, total_ms = len(members[rank]) / steps, sum(members[rank]) / 1e6 / steps
    basis = basis_of(run, undisturbed, host_ms)
    step, exposed = (run.step_ms, 0.0) if basis is None else (basis.step_ms, basis.exposed_ms)
    cost = min(total_ms, exposed)
    gain = gain_of(
        run, cost, in_time=basis is not None and basis.in_time, left_ms=None if basis is None else basis.left_ms
    )
    share = 100.0 * cost / step if step else 0.0
    severity = severity_of(share, *SMALL_BOUNDS) if count >= MANY else None
    if severity is not None:
        severity = graded(severity, gain, step, SMALL_BOUNDS)
    if severity is None and count >= MANY and step and 100.0 * total_ms >= _HIDDEN_PCT * step:
        severity = "info"
    if severity is None:
        return _judge_calls(run, basis) or SMALL_COLLECTIVES.clear(
            f"{count:.0f} small collectives {words.per} cost {share:.1f} % of it "
            f"(bounds {MANY} and {SMALL_BOUNDS[0]:g} %)"
        )
    sizes = [collective_bytes(c) or 0 for c in small]
    message = (
        f"{count:.0f} collectives {words.per}, {size_text(float(np.median(sizes)))} in the median, take "
        f"{total_ms:.2f} ms in which latency rather than bandwidth sets the time; {cost:.2f} ms of {words.each} "
        f"({percent_text(share)}) is exposed.{'' if basis is None else basis.note}{gain_text(gain, words)}"
    )
    evidence = [
        Evidence("small collectives", round(count, 1), words.per, MANY),
        Evidence("their transfer", stored(total_ms), words.unit("ms")),
        Evidence("median size", int(np.median(sizes)), "bytes", _SMALL_BYTES),
        Evidence(SMALL_PCT, round(share, 1), "%", SMALL_BOUNDS[0]),
        *gain_evidence(gain, words),
        *(() if basis is None else basis.evidence(words)),
    ]
    return SMALL_COLLECTIVES.verdict(
        SMALL_COLLECTIVES.finding(severity, "high", message, evidence, ranks=sorted(members), impact_ms=stored(gain.ms))
    )


def _judge_calls(run: CrossRank, basis: Basis | None) -> Verdict | None:
    """TO-O002 of few or larger calls: only where the run's own show that calls cost more than their bytes."""
    calls = None if basis is None else calls_of(run, basis.exposed_ms)
    if calls is None or basis is None or calls.saved_ms <= 0 or basis.step_ms <= 0:
        return None
    share = 100.0 * calls.saved_ms / basis.step_ms
    severity = severity_of(share, *SMALL_BOUNDS)
    if severity is None:
        return None
    gain = gain_of(run, calls.saved_ms, in_time=basis.in_time, left_ms=basis.left_ms)
    severity = graded(severity, gain, basis.step_ms, SMALL_BOUNDS)
    words = run.step_words
    return SMALL_COLLECTIVES.verdict(
        SMALL_COLLECTIVES.finding(
            severity,
            "high",
            calls.said(words) + basis.note,
            [
                *calls.evidence(words),
                Evidence(SMALL_PCT, round(share, 1), "%", SMALL_BOUNDS[0]),
                *gain_evidence(gain, words),
                *basis.evidence(words),
            ],
            ranks=sorted(times.summary.rank for times in run.ranks),
            impact_ms=stored(gain.ms),
        )
    )


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


def _is_small(collective: Collective, best_gbs: float) -> bool:
    size, gbs = collective_bytes(collective) or 0, busbw_gbs(collective)
    return size < _SMALL_BYTES and (gbs is None or best_gbs <= 0 or gbs < _FAR_BELOW * best_gbs or size < 64_000)
