"""Turns many ranks that are slower alike into TO-S003."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from traceops.across.cross_rank import CrossRank
from traceops.across.machine_use import CoreWaits, beyond_peers
from traceops.across.slow_group import LEAST_RANKS, SlowGroup, SlowGroups
from traceops.across.stragglers import LATE_STEP
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, severity_of
from traceops.core.rank_text import ranks_text
from traceops.core.rule import Verdict, described
from traceops.core.shared_place import shared_place
from traceops.core.step_words import WINDOW
from traceops.core.units import stored
from traceops.rules.straggler_claims import Doubt, Slower
from traceops.rules.straggler_conditions import CHANCE, IMPACT_BOUNDS, PROFILED, SURE, VISIBLE
from traceops.rules.straggler_findings import grown_evidence

_MOST_OF_WAITING = 0.75  # that must be for the group
_UNEVEN = 1.5  # times the least of them: from there on one number does not tell what they take longer
SLOW_GROUP = described("late", "TO-S003")


def judge(
    run: CrossRank, slowdown: float | None, uncertain: str, waits: CoreWaits | None = None, named: Collection[int] = ()
) -> Verdict:
    """TO-S003, a finding for each cause. uncertain: why no rank may be cleared, '' where none.

    waits: what the ranks waited for a core in the recorded steps. named: whom TO-S001 would name above info.
    """
    if uncertain:
        return SLOW_GROUP.verdict(not_evaluated=uncertain)
    slow = run.slow_groups
    if slow is None:
        return SLOW_GROUP.verdict(clear="no four or more ranks stand apart from the others of their program")
    assert run.stragglers is not None and run.what_if is not None
    step, joint = (run.what_if.mean_ns(ns) for ns in (run.stragglers.step_ns, slow.saved))
    all_of_them = _who(slow.ranks)
    if slow.waited < VISIBLE * joint or slow.share < _MOST_OF_WAITING:
        return SLOW_GROUP.verdict(clear=f"{all_of_them} are slower, but hardly anybody is seen to wait for them")
    found, unsure, spared = list[Finding](), list[str](), list[str]()
    for group in slow.groups:
        saved = run.what_if.mean_ns(group.saved)
        wanted = _in_want_of_cores(run, group, waits or CoreWaits())
        little = severity_of(100 * saved / step, IMPACT_BOUNDS[0], *IMPACT_BOUNDS) is None
        if little and not _has_more_work(group, slow.waited / step):
            spared.append(
                f"{_who(group.ranks)} are slower than the others; at their pace {saved / 1e6:.2f} of "
                f"{step / 1e6:.2f} ms would be saved (bound {IMPACT_BOUNDS[0]:g} %)"
            )
        elif group.chance > CHANCE or 2 * len(group.late) <= len(group.longer):
            count = len(group.longer)
            few = run.step_words.choose(f"{count} step{'s' if count > 1 else ''}", "one window")
            unsure.append(f"{_who(group.ranks)} look slower, but {few} cannot rule out chance")
        elif (wanted > 0).any() and not _late_by_itself(run, group, wanted):
            unsure.append(
                f"{_who(group.ranks)} take longer in the recorded steps, but they wait for cores there, which is the "
                "machine's doing"
            )
        else:
            plain = len(set(named) & set(group.ranks)) >= LEAST_RANKS
            doubt = None if plain else _doubt(run, group, slowdown, waits)
            found.append(_finding(run, slow, group, step, saved, doubt))
    return SLOW_GROUP.verdict(*found, not_evaluated="" if found else "; ".join(unsure), clear="; ".join(spared))


def _has_more_work(group: SlowGroup, waited: float) -> bool:
    """Whether the others wait for it long enough, a part of the step, though even shares of its work save little."""
    more = group.compared is not None and group.compared.kind == "more_work"
    return more and 100 * waited >= IMPACT_BOUNDS[0]


def _in_want_of_cores(run: CrossRank, group: SlowGroup, waits: CoreWaits) -> NDArray[np.float64]:
    """What the group's median rank, without a GPU, waits for a core in each step beyond the others, ns."""
    assert run.lateness is not None
    steps = run.lateness.steps
    if any(times.summary.on_gpu for times in run.ranks):
        return np.zeros(len(steps))
    each = [beyond_peers(waits, rank, group.peers, steps) for rank in group.ranks]
    wanted: NDArray[np.float64] = np.median(each, axis=0)
    return wanted


def _late_by_itself(run: CrossRank, group: SlowGroup, wanted: NDArray[np.float64]) -> bool:
    """Whether a group would be slower with cores enough, in most steps and by so much that it matters."""
    assert run.stragglers is not None
    step = run.stragglers.step_ns
    own = group.saved - wanted
    still = group.longer - wanted >= LATE_STEP * float(np.median(step))
    return bool(still.mean() > 0.5) and float(own.mean()) >= IMPACT_BOUNDS[0] / 100 * float(step.mean())


def _doubt(run: CrossRank, group: SlowGroup, slowdown: float | None, waits: CoreWaits | None) -> Doubt | None:
    """Why a group is a remark only, where it is one."""
    told = {run.hosts.get(rank) for rank in (waits.of_rank if waits else ())}
    unknown = any(run.hosts.get(rank) not in told for rank in group.ranks)
    if group.middle in (run.graph.on_cpu if run.graph else ()) and unknown:
        return Doubt(kind="group_cores")
    if group.cause in ("host", "unknown") and (slowdown is None or slowdown > PROFILED):
        return Doubt(kind="group_profiled")
    return None


def _who(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} ranks ({ranks_text(ranks, 4, counted=False)})"


def _worst(group: SlowGroup, each: Sequence[float]) -> int | None:
    """The rank that is far slower than all others of its group, where there is one."""
    *_, second, most = sorted(each)
    return group.ranks[each.index(most)] if most >= _UNEVEN * second else None


def _finding(
    run: CrossRank, slow: SlowGroups, group: SlowGroup, step: float, saved: float, doubt: Doubt | None
) -> Finding:
    severity = severity_of(100 * saved / step, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)
    severity = "warning" if severity == "info" else severity or "info"
    confidence: Confidence = "high" if group.chance <= SURE and group.cause != "unknown" else "medium"
    kind = UNSET if group.compared is None else group.compared.kind
    if group.cause == "host" and group.middle in (run.graph.on_cpu if run.graph else ()):
        kind = "on_cpu"
    if doubt is not None:
        severity, confidence = "info", "low"
    place = shared_place(group.ranks, run.hosts)
    mean = (lambda ns: float(ns.mean())) if run.what_if is None else run.what_if.mean_ns
    longer, each = mean(group.longer), [mean(ns) for ns in group.each]
    worst = _worst(group, each)
    shared = kind == "more_work" and not group.beside
    words, then = run.step_words, None if group.beside else (step - saved) / 1e6
    alike = max(each) < _UNEVEN * min(each)
    claim = Slower(
        window=words is WINDOW,
        ranks=group.ranks,
        count=len(group.ranks),
        of=len(run.ranks),
        place=place,
        does=kind if isinstance(kind, str) else group.cause,
        longer=longer / 1e6 if alike else None,
        longer_least=None if alike else min(each) / 1e6,
        longer_most=None if alike else max(each) / 1e6,
        worst=None if alike else worst,
        waiting=slow.waited / 1e6,
        way="shared" if shared else "pace",
        step=step / 1e6,
        then=None if run.cures_are_least else then,
        then_or_more=then if run.cures_are_least else None,
        saved=saved / 1e6,
        pct=100 * saved / step,
        beside=tuple(group.beside),
        doubt=doubt,
    )
    kept = Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY if shared else Fact.SAVED_AT_THEIR_PACE
    kept = Fact.SAVED_WITH_THE_OTHERS_TOO if group.beside else kept
    evidence = [
        Evidence(kept, stored(saved / 1e6), words.unit("ms"), stored(step / 1e6 * IMPACT_BOUNDS[0] / 100)),
        Evidence(Fact.OF_STEP, round(100 * saved / step, 1), "%", IMPACT_BOUNDS[0], subject=words.the),
        Evidence(Fact.LONGER_THAN_THE_OTHERS, stored(longer / 1e6), words.unit("ms"), rank=group.middle),
        *(
            []
            if worst is None
            else [Evidence(Fact.WORST_OF_THEM, stored(max(each) / 1e6), words.unit("ms"), rank=worst)]
        ),
        Evidence(Fact.THE_OTHERS_WAIT, stored(slow.waited / 1e6), words.unit("ms") + " and rank"),
        Evidence(Fact.SHARE_OF_ALL_WAITING, round(100 * slow.share, 1), "%", 100 * _MOST_OF_WAITING),
        Evidence(Fact.LATE_STEPS, f"{len(group.late)} of {len(group.longer)}"),
        Evidence(Fact.CHANCE, round(group.chance, 4), "probability", CHANCE),
        *([Evidence(Fact.IN_COMMON, place)] if place else []),
        *grown_evidence(run, group.middle, group.cause, group.peers),
    ]
    return SLOW_GROUP.finding(
        severity,
        confidence,
        claim,
        evidence,
        ranks=group.ranks,
        steps=group.late,
        impact_ms=stored(saved / 1e6),
        cause=group.cause,
        computes_longer=kind,
    )
