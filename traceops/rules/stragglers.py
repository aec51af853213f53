"""TO-S001 to TO-S003: ranks that make the others wait, one by one and as groups that are slower alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.across.cross_rank import CrossRank
from traceops.across.lateness import least_share
from traceops.across.replay.graph import Steps
from traceops.across.replay.what_if import NO_LOADING
from traceops.across.run_use import CoreWaits, beyond_peers, unfair_waits
from traceops.across.slow_group import LEAST_RANKS, SlowGroup, SlowGroups, far_ranks
from traceops.across.stragglers import LATE_STEP, Straggler
from traceops.across.undisturbed import Undisturbed
from traceops.core.arrays import median
from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, Severity, severity_of
from traceops.core.rank_text import ranks_text
from traceops.core.rule import Rule, Verdict, described
from traceops.core.units import stored
from traceops.core.words import WINDOW
from traceops.measure.steps import spells
from traceops.rules.inputs import Inputs
from traceops.rules.shared import IMPACT_BOUNDS
from traceops.rules.stragglers_claims import Doubt, LateBehindLoading, Slower, shared_place
from traceops.rules.stragglers_conditions import (
    BURST_PCT,
    CHANCE,
    PROFILED,
    SURE,
    VISIBLE,
    ComparedRun,
    beyond_doubt,
    compared,
    cured_beside,
    for_no_cause,
    in_want_of_a_core,
    late_by_itself,
    late_by_turns,
    late_in_most,
    lost_again,
    nothing_to_compare,
    seen_in_its_steps,
    seen_waiting,
    slowed_by_profiler,
    uncertain,
    without_a_known_core,
)
from traceops.rules.stragglers_findings import (
    clear_text,
    finding_of,
    grown_evidence,
    mean_over,
    only_waited_for,
    steps_text,
    waiting_ms,
)

_MOST_OF_WAITING = 0.75  # that must be for the group
_UNEVEN = 1.5  # times the least of them: from there on one number does not tell what they take longer
SLOW_GROUP = described("late", "TO-S003")


def judge_group(
    run: ComparedRun,
    slowdown: float | None,
    uncertain: str,
    waits: CoreWaits | None = None,
    named: Collection[int] = (),
) -> Verdict:
    """TO-S003, a finding for each cause. uncertain: why no rank may be cleared, '' where none. waits: what the ranks
    waited for a core in the recorded steps. named: whom TO-S001 would name above info."""
    if uncertain:
        return SLOW_GROUP.verdict(not_evaluated=uncertain)
    if (slow := run.replay.slow_groups) is None:
        return SLOW_GROUP.verdict(clear=reason("late", "no_group"))
    step, joint = (run.replay.what_if.mean_ns(ns) for ns in (run.replay.stragglers.step_ns, slow.saved))
    if slow.waited < VISIBLE * joint or slow.share < _MOST_OF_WAITING:
        return SLOW_GROUP.verdict(clear=reason("late", "group_unseen", who=_who(slow.ranks)))
    found, unsure, spared = list[Finding](), list[str](), list[str]()
    for group in slow.groups:
        saved = run.replay.what_if.mean_ns(group.saved)
        wanted = _in_want_of_cores(run, group, waits or CoreWaits())
        little = severity_of(100 * saved / step, IMPACT_BOUNDS[0], *IMPACT_BOUNDS) is None
        if little and not _has_more_work(group, slow.waited / step):
            numbers = {"saved": f"{saved / 1e6:.2f}", "step": f"{step / 1e6:.2f}", "bound": IMPACT_BOUNDS[0]}
            spared.append(reason("late", "group_saves_little", who=_who(group.ranks), **numbers))
        elif group.chance > CHANCE or 2 * len(group.late) <= len(group.longer):
            unsure.append(reason("late", "group_chance", who=_who(group.ranks), few=_few(run, len(group.longer))))
        elif (wanted > 0).any() and not _late_by_itself(run, group, wanted):
            unsure.append(reason("late", "group_wants_cores", who=_who(group.ranks)))
        else:
            plain = len(set(named) & set(group.ranks)) >= LEAST_RANKS
            doubt = None if plain else _doubt(run, group, slowdown, waits)
            found.append(_finding(run, slow, group, step, saved, doubt))
    return SLOW_GROUP.verdict(*found, not_evaluated="" if found else "; ".join(unsure), clear="; ".join(spared))


def _has_more_work(group: SlowGroup, waited: float) -> bool:
    """Whether the others wait for it long enough, a part of the step, though even shares of its work save little."""
    more = group.compared is not None and group.compared.kind == "more_work"
    return more and 100 * waited >= IMPACT_BOUNDS[0]


def _in_want_of_cores(run: ComparedRun, group: SlowGroup, waits: CoreWaits) -> NDArray[np.float64]:
    """What the group's median rank, without a GPU, waits for a core in each step beyond the others, ns."""
    steps = run.replay.lateness.steps
    if any(times.summary.on_gpu for times in run.ranks):
        return np.zeros(len(steps))
    each = [beyond_peers(waits, rank, group.peers, steps) for rank in group.ranks]
    wanted: NDArray[np.float64] = median(each, axis=0)
    return wanted


def _late_by_itself(run: ComparedRun, group: SlowGroup, wanted: NDArray[np.float64]) -> bool:
    """Whether a group would be slower with cores enough, in most steps and by so much that it matters."""
    step = run.replay.stragglers.step_ns
    own = group.saved - wanted
    still = group.longer - wanted >= LATE_STEP * median(step)
    return bool(still.mean() > 0.5) and float(own.mean()) >= IMPACT_BOUNDS[0] / 100 * float(step.mean())


def _doubt(run: ComparedRun, group: SlowGroup, slowdown: float | None, waits: CoreWaits | None) -> Doubt | None:
    """Why a group is a remark only, where it is one."""
    told = {run.hosts.get(rank) for rank in (waits.of_rank if waits else ())}
    unknown = any(run.hosts.get(rank) not in told for rank in group.ranks)
    if group.middle in run.replay.graph.on_cpu and unknown:
        return Doubt(kind="group_cores")
    if group.cause in ("host", "unknown") and (slowdown is None or slowdown > PROFILED):
        return Doubt(kind="group_profiled")
    return None


def _who(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} ranks ({ranks_text(ranks, 4, counted=False)})"


def _finding(
    run: ComparedRun, slow: SlowGroups, group: SlowGroup, step: float, saved: float, doubt: Doubt | None
) -> Finding:
    severity, confidence = _graded(group, 100 * saved / step, doubt)
    kind = UNSET if group.compared is None else group.compared.kind
    if group.cause == "host" and group.middle in run.replay.graph.on_cpu:
        kind = "on_cpu"
    place = shared_place(group.ranks, run.hosts)
    mean = run.replay.what_if.mean_ns
    longer, each = mean(group.longer), [mean(ns) for ns in group.each]
    # the rank that is far slower than all others of its group, if there is one
    *_, second, most = sorted(each)
    worst = group.ranks[each.index(most)] if most >= _UNEVEN * second else None
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
    saved_fact = Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY if shared else Fact.SAVED_AT_THEIR_PACE
    if group.beside:
        saved_fact = Fact.SAVED_WITH_THE_OTHERS_TOO
    evidence = [
        Evidence(saved_fact, stored(saved / 1e6), words.unit("ms"), stored(step / 1e6 * IMPACT_BOUNDS[0] / 100)),
        Evidence(Fact.OF_STEP, round(100 * saved / step, 1), "%", IMPACT_BOUNDS[0], subject=words.the),
        Evidence(Fact.LONGER_THAN_THE_OTHERS, stored(longer / 1e6), words.unit("ms"), rank=group.middle),
        Evidence(Fact.THE_OTHERS_WAIT, stored(slow.waited / 1e6), words.unit("ms") + " and rank"),
        Evidence(Fact.SHARE_OF_ALL_WAITING, round(100 * slow.share, 1), "%", 100 * _MOST_OF_WAITING),
        Evidence(Fact.LATE_STEPS, f"{len(group.late)} of {len(group.longer)}"),
        Evidence(Fact.CHANCE, round(group.chance, 4), "probability", CHANCE),
        *([Evidence(Fact.IN_COMMON, place)] if place else []),
        *grown_evidence(run, group.middle, group.cause, group.peers),
    ]
    if worst is not None:
        evidence.insert(3, Evidence(Fact.WORST_OF_THEM, stored(max(each) / 1e6), words.unit("ms"), rank=worst))
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


def _graded(group: SlowGroup, saved_pct: float, doubt: Doubt | None) -> tuple[Severity, Confidence]:
    if doubt is not None:
        return "info", "low"
    sure = group.chance <= SURE and group.cause != "unknown"
    return _persistent_severity(saved_pct) or "info", "high" if sure else "medium"


# Ranks that are late because they wait for a core: cores of their own are the cure.


class HeldByCores(Struct, frozen=True):
    """A rank whose waits for cores explain that it is late. Times in ms, mean over the recorded steps. waited_ms: for a
    core, beyond its peers. saved_ms: at most, with cores as its peers have them. step_ms: measured."""

    rank: int
    waited_ms: float
    saved_ms: float
    step_ms: float


def held_by_cores(whole: CrossRank, waits: CoreWaits) -> dict[int, HeldByCores]:
    """Ranks for which the others wait in most steps, and would not if those got a core when they want one, by rank."""
    if (run := compared(whole)) is None or run.replay.stragglers.alone is not None or not seen_waiting(run):
        return {}
    held = (_held(run, straggler, waits) for straggler in run.replay.stragglers.found)
    return {one.rank: one for one in held if one is not None}


def _held(run: ComparedRun, straggler: Straggler, waits: CoreWaits) -> HeldByCores | None:
    if not cured_beside(run, straggler):
        straggler = replace(straggler, saved=straggler.alone)
    mean = mean_over(run)
    step, saved = mean(run.replay.stragglers.step_ns), mean(straggler.saved)
    wanted = in_want_of_a_core(run, straggler, waits)
    own = straggler.saved - wanted
    stands_out = (
        straggler.share >= least_share(len(run.ranks))
        and straggler.apart
        and straggler.chance <= CHANCE
        and late_in_most(straggler, run)
        and saved >= step * IMPACT_BOUNDS[0] / 100
        and (not uncertain(run) or beyond_doubt(run, straggler, saved / step))
    )
    if not stands_out or not (wanted > 0).any() or late_by_itself(run, straggler, own, most=True):
        return None
    by_cores = mean(wanted.clip(max=straggler.saved.clip(min=0.0)))
    return HeldByCores(straggler.rank, mean(wanted) / 1e6, by_cores / 1e6, step / 1e6)


# TO-S001 as a remark: a rank whose device is late, which data loading hides as long as it bounds the step.


def behind_loading(rule: Rule, run: ComparedRun) -> list[Finding]:
    """Who would be waited for with batches in time; nobody where loading saves nothing, or where that is chance."""
    if (late := run.replay.late_behind_loading) is None:
        return []
    if (saved_by_loading := run.replay.what_if.saved_ns(NO_LOADING)) is None:
        return []
    mean, words = mean_over(run), run.step_words
    step, saved = mean(run.replay.what_if.replayed_ns), mean(late.saved)
    in_time = step - saved_by_loading
    if saved < IMPACT_BOUNDS[0] / 100 * in_time or late.chance > CHANCE or not late.apart:
        return []
    if not late_in_most(late, run):
        return []
    compared = run.replay.work.get(late.rank)
    longer = UNSET if compared is None else compared.kind
    claim = LateBehindLoading(
        window=words is WINDOW,
        rank=late.rank,
        does=late.cause if longer is UNSET else longer,
        step=step / 1e6,
        in_time=in_time / 1e6,
        then=(in_time - saved) / 1e6,
        least=run.cures_are_least,
    )
    evidence = [
        Evidence(Fact.SAVED_WITH_BATCHES_IN_TIME, stored(saved_by_loading / 1e6), words.unit("ms")),
        Evidence(Fact.SAVED_AT_PEERS_PACE_TOO, stored(saved / 1e6), words.unit("ms"), stored(in_time / 1e7), late.rank),
        Evidence(Fact.LATE_STEPS, f"{len(late.late_steps)} of {len(late.saved)}", rank=late.rank),
        Evidence(Fact.CHANCE, round(late.chance, 4), "probability", CHANCE, late.rank),
        *grown_evidence(run, late.rank, late.cause),
    ]
    return [
        rule.finding(
            "info",
            "medium",
            claim,
            evidence,
            ranks=[late.rank],
            steps=late.late_steps,
            cause=late.cause,
            computes_longer=longer,
        )
    ]


PERSISTENTLY_LATE = described("late", "TO-S001")
SOMETIMES_LATE = described("late", "TO-S002")
RULES = (PERSISTENTLY_LATE, SOMETIMES_LATE, SLOW_GROUP)
IDS = tuple(rule.id for rule in RULES)
_BY_CORES = 0.5  # of what the others wait for a rank: its waiting for a core explains it


def judge(inputs: Inputs) -> list[Verdict]:
    """Ranks that make the others wait, and groups of them."""
    return judge_late(inputs.run, inputs.slowdown, inputs.undisturbed, unfair_waits(inputs.observed, inputs.machine))


def judge_stragglers(
    whole: CrossRank,
    profiler_slowdown: float | None,
    undisturbed: Undisturbed | None = None,
    waits: CoreWaits | None = None,
) -> list[Verdict]:
    """TO-S001 and TO-S002 [docs/metrics.md, who causes the wait]. undisturbed: the step without the profiler, where it
    is known. waits: what the ranks waited for a core in the recorded steps."""
    if (run := compared(whole)) is None:
        why = nothing_to_compare(whole)
        return [PERSISTENTLY_LATE.not_evaluated(why), SOMETIMES_LATE.not_evaluated(why)]
    if run.replay.stragglers.alone is not None:
        staged = any(run.replay.stragglers.alone in bubble.pipeline.ranks for bubble in run.bubbles)
        why = reason("late", "stage" if staged else "alone", rank=run.replay.stragglers.alone)
        return [PERSISTENTLY_LATE.not_evaluated(why), SOMETIMES_LATE.not_evaluated(why)]
    waits = waits or CoreWaits()
    weighed = [_weighed(one) for one in _late_ranks(run, waits)]
    persistent, sometimes = _named(run, weighed, profiler_slowdown, undisturbed)
    rough = uncertain(run)
    too_few = next((one.too_few for one in reversed(weighed) if one.too_few), rough)
    alone = not rough and not persistent and not sometimes
    persistent += behind_loading(PERSISTENTLY_LATE, run) if alone else []
    in_some = _see("in_some_steps", sometimes)
    in_most = _see("in_most_steps", persistent)
    if alone and not persistent and (leader := _waited_for(run, waits)) is not None:
        persistent += only_waited_for(PERSISTENTLY_LATE, run, leader, profiler_slowdown, undisturbed)
    clear = "; ".join([clear_text(run), *filter(None, (one.left_out for one in weighed))])
    return [
        PERSISTENTLY_LATE.verdict(*persistent, not_evaluated="" if persistent else too_few, clear=in_some or clear),
        SOMETIMES_LATE.verdict(*sometimes, not_evaluated="" if sometimes else too_few, clear=in_most or clear),
    ]


def _named(
    run: ComparedRun, weighed: Sequence[_Weighed], slowdown: float | None, undisturbed: Undisturbed | None
) -> tuple[list[Finding], list[Finding]]:
    """Findings about ranks that are late in most steps, and in some."""
    persistent, sometimes = list[Finding](), list[Finding]()
    for one in weighed:
        if one.severity is not None and one.late.most:
            straggler = one.late.straggler
            persistent.append(finding_of(PERSISTENTLY_LATE, one.severity, run, straggler, slowdown, undisturbed))
        elif one.severity is not None:
            straggler = one.late.straggler
            sometimes.append(finding_of(SOMETIMES_LATE, one.severity, run, straggler, slowdown, None, sometimes=True))
    return persistent, sometimes


def _waited_for(run: ComparedRun, waits: CoreWaits) -> Straggler | None:
    """The rank that the others wait most for, where that is not for its waiting for a core."""
    if (leader := run.replay.stragglers.leader) is None or leader.share <= 0.5:
        return None
    wanted_ms = mean_over(run)(in_want_of_a_core(run, leader, waits)) / 1e6
    return leader if wanted_ms < _BY_CORES * waiting_ms(run, leader) else None


class _LateRank(Struct, frozen=True):
    """A straggler of a run, with what its cure saves of a step, ns; own: in each step, without waits for cores. most:
    whether it is late in most steps. seen: whether the others are seen to wait for the late ranks. held: whether it has
    a finding of TO-W002."""

    run: ComparedRun
    straggler: Straggler
    step: float
    saved: float
    own: Steps
    most: bool
    seen: bool
    waits: CoreWaits
    held: bool

    @property
    def costs(self) -> bool:
        """Whether it is late in most steps, and that costs enough."""
        return self.most and self.saved >= self.step * IMPACT_BOUNDS[0] / 100


class _Weighed(Struct, frozen=True):
    """What becomes of a late rank: a finding of this severity, or why it is left out, or why nothing is judged."""

    late: _LateRank
    severity: Severity | None = None
    left_out: str = ""
    too_few: str = ""


def _late_ranks(run: ComparedRun, waits: CoreWaits) -> Iterator[_LateRank]:
    """The stragglers; where the replay is only rough, those beyond doubt."""
    held, mean, rough = held_by_cores(run, waits), mean_over(run), uncertain(run)
    step, seen = mean(run.replay.stragglers.step_ns), seen_waiting(run)
    for straggler in run.replay.stragglers.found:
        if not cured_beside(run, straggler):
            straggler = replace(straggler, saved=straggler.alone)
        saved, most = mean(straggler.saved), late_in_most(straggler, run)
        own = straggler.saved - in_want_of_a_core(run, straggler, waits)
        if not rough or beyond_doubt(run, straggler, saved / step):
            yield _LateRank(run, straggler, step, saved, own, most, seen, waits, straggler.rank in held)


def _weighed(one: _LateRank) -> _Weighed:
    straggler, rank = one.straggler, one.straggler.rank
    if not one.seen or straggler.share < least_share(len(one.run.ranks)):
        return _Weighed(one, left_out=reason("late", "unseen", rank=rank))
    if not straggler.apart:
        why = reason("late", "not_apart", rank=rank)
        if not one.costs:
            return _Weighed(one, left_out=why)
        numbers = {"saved": f"{one.saved / 1e6:.2f}", "step": f"{one.step / 1e6:.2f}"}
        return _Weighed(one, too_few=reason("late", "not_apart_but", why=why, **numbers))
    return _late_in_most(one) if one.most else _late_in_some(one)


def _late_in_most(one: _LateRank) -> _Weighed:
    run, straggler, rank = one.run, one.straggler, one.straggler.rank
    if for_no_cause(run, straggler):
        return _Weighed(one, left_out=reason("late", "no_cause", rank=rank))
    if without_a_known_core(run, straggler, one.waits):
        return _Weighed(one, too_few=reason("late", "unknown_core", rank=rank))
    if one.costs and straggler.chance > CHANCE:
        return _Weighed(one, too_few=reason("late", "chance", rank=rank, few=_few(run, len(run.replay.lateness.steps))))
    return _for_cores(one) or _Weighed(one, _persistent_severity(100 * mean_over(run)(one.own) / one.step))


def _late_in_some(one: _LateRank) -> _Weighed:
    run, straggler = one.run, one.straggler
    if (for_cores := _for_cores(one)) is not None:
        return for_cores
    if not straggler.late_steps:
        return _Weighed(one, left_out=reason("late", "in_no_step", rank=straggler.rank))
    if not seen_in_its_steps(run, straggler):
        return _Weighed(one, left_out=_in_steps("unseen_there", straggler))
    if slowed_by_profiler(run, straggler):
        return _Weighed(one, left_out=_in_steps("ran_ahead", straggler))
    if late_by_turns(run, straggler):
        return _Weighed(one, too_few=_in_steps("by_turns", straggler))
    if lost_again(straggler):
        return _Weighed(one, left_out=_in_steps("lost_again", straggler))
    return _Weighed(one, _burst_severity(run, straggler))


def _for_cores(one: _LateRank) -> _Weighed | None:
    """That it would not be late with cores enough; None where it would."""
    if not (one.own < one.straggler.saved).any():
        return None
    if late_by_itself(one.run, one.straggler, one.own, most=one.most):
        return None
    key = "held_by_cores" if one.held else "wants_a_core"
    return _Weighed(one, too_few=reason("late", key, rank=one.straggler.rank))


def _in_steps(key: str, straggler: Straggler) -> str:
    """Why a rank that is late in some steps is not named."""
    return reason("late", key, rank=straggler.rank, steps=steps_text(straggler.late_steps))


def _few(run: ComparedRun, count: int) -> str:
    """How many steps there are to judge by, or that there is one window."""
    return run.step_words.choose(f"{count} step{'s' if count > 1 else ''}", "one window")


def _see(key: str, found: Sequence[Finding]) -> str:
    """Why the other of the two rules is clear where this one fired, which clears nobody; '' where it did not."""
    ranks = tuple(sorted({rank for one in found for rank in one.ranks}))
    return reason("late", key, ranks=ranks) if ranks else ""


def judge_late(
    whole: CrossRank, slowdown: float | None, undisturbed: Undisturbed | None = None, waits: CoreWaits | None = None
) -> list[Verdict]:
    """TO-S001 and TO-S002, and TO-S003 for ranks that are late alike. Arguments as there."""
    single = judge_stragglers(whole, slowdown, undisturbed, waits)
    if (run := compared(whole)) is None:
        return [*single, SLOW_GROUP.not_evaluated(nothing_to_compare(whole))]
    serious = [found for verdict in single for found in verdict.findings if found.severity != "info"]
    named = {rank for found in serious for rank in found.ranks}
    group = judge_group(run, slowdown, uncertain(run), waits, named)
    groups = [found for found in group.findings if found.severity != "info" or not named & set(found.ranks)]
    if not groups:
        unnamed = replace(group, findings=(), clear=reason("late", "single_ranks"))
        return [*single, unnamed if named else group]
    slow = run.replay.slow_groups
    told = set(slow.ranks if slow else ())
    beside = _late_for_other_reasons(run, slow, slowdown, undisturbed) if slow else []
    merged = []
    for verdict in single:  # who of those that are late alike comes last is chance
        kept = [one for one in verdict.findings if one.severity != "info" and not told & set(one.ranks)]
        kept += beside if verdict.rule == PERSISTENTLY_LATE.id else []
        clear = reason("late", "alike")
        merged.append(replace(verdict, findings=tuple(kept), clear=clear if not kept else verdict.clear))
    return [*merged, replace(group, findings=tuple(groups))]


def _late_for_other_reasons(
    run: ComparedRun, slow: SlowGroups, slowdown: float | None, undisturbed: Undisturbed | None
) -> list[Finding]:
    """TO-S001 of ranks that are late beside a group and for another reason than it, with the group cured."""
    mean = mean_over(run)
    late = sorted({*slow.ranks, *far_ranks(run.replay.stragglers.found)})
    step, found = mean(run.replay.stragglers.step_ns), list[Finding]()
    for straggler in slow.single:
        saved = mean(straggler.saved)
        severity = _persistent_severity(100 * saved / step)
        sure = straggler.apart and straggler.chance <= CHANCE and late_in_most(straggler, run)
        if severity is not None and sure:
            found.append(finding_of(PERSISTENTLY_LATE, severity, run, straggler, slowdown, undisturbed, late))
    return found


def _persistent_severity(saved_pct: float) -> Severity | None:
    """Of what its cure saves of the step; a rank that is late for good is no remark."""
    severity = severity_of(saved_pct, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)
    return "warning" if severity == "info" else severity


def _burst_severity(run: ComparedRun, straggler: Straggler) -> Severity | None:
    """By the part of its worst step that a rank costs: in a step that is long for all, being later is no cause."""
    worst = 100 * float((straggler.saved / run.replay.stragglers.step_ns).max())
    mean = 100 * float(straggler.saved.mean()) / float(run.replay.stragglers.step_ns.mean())
    if mean <= 0:
        return None  # its peers are late in other steps: their pace is no cure
    severity = severity_of(worst, *BURST_PCT)
    times = spells([step in straggler.late_steps for step in run.replay.lateness.steps])
    if severity is not None and mean >= IMPACT_BOUNDS[1] and times > 1:
        return "error"
    return severity
