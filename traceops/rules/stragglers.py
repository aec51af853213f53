"""TO-S001 to TO-S003: ranks that make the others wait, one by one and as groups that are slower alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from msgspec import UNSET, Struct
from msgspec.structs import replace

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
from traceops.core.findings import Evidence, Finding, Severity, severity_of
from traceops.core.rank_text import ranks_text
from traceops.core.rule import Rule, Verdict, described
from traceops.core.units import stored
from traceops.core.words import WINDOW
from traceops.measure.steps import spells
from traceops.rules.inputs import Inputs
from traceops.rules.shared import IMPACT_BOUNDS, on_cpu
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
from traceops.rules.stragglers_findings import clear_text, finding_of, grown_evidence, only_waited_for, steps_text

_MOST_OF_WAITING = 0.75  # that must be for the group
_UNEVEN = 1.5  # times the least of them: from there on one number does not say what they take longer
SLOW_GROUP = described("late", "TO-S003")


def judge_group(
    run: ComparedRun, slowdown: float | None, uncertain: str, waits: CoreWaits, named: Collection[int]
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
        little = severity_of(100 * saved / step, IMPACT_BOUNDS[0], *IMPACT_BOUNDS) is None
        # The others may wait long for a group with more work, though even shares of it save little.
        more_work = group.compared is not None and group.compared.kind == "more_work"
        if little and not (more_work and 100 * slow.waited / step >= IMPACT_BOUNDS[0]):
            numbers = {"saved": f"{saved / 1e6:.2f}", "step": f"{step / 1e6:.2f}", "bound": IMPACT_BOUNDS[0]}
            spared.append(reason("late", "group_saves_little", who=_who(group.ranks), **numbers))
        elif group.chance > CHANCE or 2 * len(group.late) <= len(group.longer):
            unsure.append(reason("late", "group_chance", who=_who(group.ranks), few=_few(run, len(group.longer))))
        elif _late_for_cores(run, group, waits):
            unsure.append(reason("late", "group_wants_cores", who=_who(group.ranks)))
        else:
            plain = len(set(named) & set(group.ranks)) >= LEAST_RANKS
            doubt = None if plain else _doubt(run, group, slowdown, waits)
            found.append(_finding(run, slow, group, step, saved, doubt))
    return SLOW_GROUP.verdict(*found, not_evaluated="" if found else "; ".join(unsure), clear="; ".join(spared))


def _late_for_cores(run: ComparedRun, group: SlowGroup, waits: CoreWaits) -> bool:
    """Whether a group without a GPU, with cores enough, would be slower in few steps, or by too little to matter."""
    steps, step = run.replay.lateness.steps, run.replay.stragglers.step_ns
    if not on_cpu(run):
        return False
    wanted = median([beyond_peers(waits, rank, group.peers, steps) for rank in group.ranks], axis=0)
    still = group.longer - wanted >= LATE_STEP * median(step)
    left = float((group.saved - wanted).mean())
    by_itself = still.mean() > 0.5 and left >= IMPACT_BOUNDS[0] / 100 * float(step.mean())
    return bool((wanted > 0).any()) and not by_itself


def _doubt(run: ComparedRun, group: SlowGroup, slowdown: float | None, waits: CoreWaits) -> Doubt | None:
    """Why a group is a remark only, where it is one."""
    seen = {run.hosts.get(rank) for rank in waits.of_rank}
    if group.middle in run.replay.graph.on_cpu and any(run.hosts.get(rank) not in seen for rank in group.ranks):
        return Doubt(kind="group_cores")
    if group.cause in ("host", "unknown") and (slowdown is None or slowdown > PROFILED):
        return Doubt(kind="group_profiled")
    return None


def _who(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} ranks ({ranks_text(ranks, 4, counted=False)})"


def _finding(
    run: ComparedRun, slow: SlowGroups, group: SlowGroup, step: float, saved: float, doubt: Doubt | None
) -> Finding:
    mean, words = run.replay.what_if.mean_ns, run.step_words
    severity: Severity = "info" if doubt else _persistent_severity(100 * saved / step) or "info"
    sure = group.chance <= SURE and group.cause != "unknown"
    kind = UNSET if group.compared is None else group.compared.kind
    if group.cause == "host" and group.middle in run.replay.graph.on_cpu:
        kind = "on_cpu"
    place = shared_place(group.ranks, run.hosts)
    longer, each = mean(group.longer) / 1e6, [mean(ns) / 1e6 for ns in group.each]
    alike = max(each) < _UNEVEN * min(each)
    # the rank that is far slower than all others of its group, if there is one
    *_, second, most = sorted(each)
    worst = group.ranks[each.index(most)] if most >= _UNEVEN * second else None
    shared = kind == "more_work" and not group.beside
    claim = Slower(
        window=words is WINDOW,
        ranks=group.ranks,
        count=len(group.ranks),
        of=len(run.ranks),
        place=place,
        does=kind if isinstance(kind, str) else group.cause,
        waiting=slow.waited / 1e6,
        way="shared" if shared else "pace",
        step=step / 1e6,
        saved=saved / 1e6,
        pct=100 * saved / step,
        beside=tuple(group.beside),
        doubt=doubt,
    )
    if alike:
        claim = replace(claim, longer=longer)
    else:
        claim = replace(claim, longer_least=min(each), longer_most=most, worst=worst)
    saved_fact = Fact.SAVED_WITH_THE_WORK_SHARED_EVENLY if shared else Fact.SAVED_AT_THEIR_PACE
    if group.beside:
        saved_fact = Fact.SAVED_WITH_THE_OTHERS_TOO
    elif run.cures_are_least:
        claim = replace(claim, then_or_more=(step - saved) / 1e6)
    else:
        claim = replace(claim, then=(step - saved) / 1e6)
    evidence = [
        Evidence(saved_fact, stored(saved / 1e6), words.unit("ms"), stored(step / 1e6 * IMPACT_BOUNDS[0] / 100)),
        Evidence(Fact.OF_STEP, round(100 * saved / step, 1), "%", IMPACT_BOUNDS[0], subject=words.the),
        Evidence(Fact.LONGER_THAN_THE_OTHERS, stored(longer), words.unit("ms"), rank=group.middle),
        Evidence(Fact.THE_OTHERS_WAIT, stored(slow.waited / 1e6), words.unit("ms") + " and rank"),
        Evidence(Fact.SHARE_OF_ALL_WAITING, round(100 * slow.share, 1), "%", 100 * _MOST_OF_WAITING),
        Evidence(Fact.LATE_STEPS, f"{len(group.late)} of {len(group.longer)}"),
        Evidence(Fact.CHANCE, round(group.chance, 4), "probability", CHANCE),
        *([Evidence(Fact.IN_COMMON, place)] if place else []),
        *grown_evidence(run, group.middle, group.cause, group.peers),
    ]
    if worst is not None:
        evidence.insert(3, Evidence(Fact.WORST_OF_THEM, stored(most), words.unit("ms"), rank=worst))
    return SLOW_GROUP.finding(
        severity,
        "low" if doubt else "high" if sure else "medium",
        claim,
        evidence,
        ranks=group.ranks,
        steps=group.late,
        impact_ms=stored(saved / 1e6),
        cause=group.cause,
        computes_longer=kind,
    )


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
    run, held = compared(whole), dict[int, HeldByCores]()
    if run is None or run.replay.stragglers.alone is not None or not seen_waiting(run):
        return held
    mean = run.replay.what_if.mean_ns
    for one in _late_ranks(run, waits):
        late = one.straggler
        stands_out = one.costs and late.share >= least_share(len(run.ranks)) and late.apart and late.chance <= CHANCE
        if stands_out and (one.wanted > 0).any() and not late_by_itself(run, late, one.own, most=True):
            by_cores = mean(one.wanted.clip(max=late.saved.clip(min=0.0)))
            held[late.rank] = HeldByCores(late.rank, mean(one.wanted) / 1e6, by_cores / 1e6, one.step / 1e6)
    return held


class _LateRank(Struct, frozen=True):
    """A straggler with what its cure saves of a step, ns. wanted: what it waits for a core beyond its peers in each
    step. most: whether it is late in most steps."""

    straggler: Straggler
    step: float
    saved: float
    wanted: Steps
    most: bool

    @property
    def own(self) -> Steps:
        """What its cure saves in each step beside its waits for cores."""
        return self.straggler.saved - self.wanted

    @property
    def costs(self) -> bool:
        """Whether it is late in most steps, and that costs enough."""
        return self.most and self.saved >= self.step * IMPACT_BOUNDS[0] / 100


def _late_ranks(run: ComparedRun, waits: CoreWaits) -> Iterator[_LateRank]:
    """The stragglers; where the replay is only rough, those beyond doubt."""
    mean, rough = run.replay.what_if.mean_ns, uncertain(run)
    step = mean(run.replay.stragglers.step_ns)
    for straggler in run.replay.stragglers.found:
        if not cured_beside(run, straggler):
            straggler = replace(straggler, saved=straggler.alone)
        saved = mean(straggler.saved)
        if not rough or beyond_doubt(run, straggler, saved / step):
            wanted = in_want_of_a_core(run, straggler, waits)
            yield _LateRank(straggler, step, saved, wanted, late_in_most(straggler, run))


# TO-S001 as a remark: a rank whose device is late, which data loading hides as long as it bounds the step.


def behind_loading(rule: Rule, run: ComparedRun) -> list[Finding]:
    """Who would be waited for with batches in time; nobody where loading saves nothing, or where that is chance."""
    late, saved_by_loading = run.replay.late_behind_loading, run.replay.what_if.saved_ns(NO_LOADING)
    if late is None or saved_by_loading is None:
        return []
    mean, words = run.replay.what_if.mean_ns, run.step_words
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
    ranks, steps, cause = [late.rank], late.late_steps, late.cause
    found = rule.finding(
        "info", "medium", claim, evidence, ranks=ranks, steps=steps, cause=cause, computes_longer=longer
    )
    return [found]


PERSISTENTLY_LATE = described("late", "TO-S001")
SOMETIMES_LATE = described("late", "TO-S002")
RULES = (PERSISTENTLY_LATE, SOMETIMES_LATE, SLOW_GROUP)
IDS = tuple(rule.id for rule in RULES)


def judge(inputs: Inputs) -> list[Verdict]:
    """Ranks that make the others wait, and groups of them."""
    return judge_late(inputs.run, inputs.slowdown, inputs.undisturbed, unfair_waits(inputs.observed, inputs.machine))


def judge_late(
    whole: CrossRank, slowdown: float | None, undisturbed: Undisturbed | None = None, waits: CoreWaits | None = None
) -> list[Verdict]:
    """TO-S001 and TO-S002 of single ranks, and TO-S003 of ranks that are late alike. Arguments as `judge_stragglers`
    has them."""
    single, waits = judge_stragglers(whole, slowdown, undisturbed, waits), waits or CoreWaits()
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
    assert slow is not None  # whose groups were found
    alike, beside = set(slow.ranks), _late_for_other_reasons(run, slow, slowdown, undisturbed)
    merged = []
    for verdict in single:  # which of the ranks that are late alike comes last is chance
        kept = [one for one in verdict.findings if one.severity != "info" and not alike & set(one.ranks)]
        kept += beside if verdict.rule == PERSISTENTLY_LATE.id else []
        clear = verdict.clear if kept else reason("late", "alike")
        merged.append(replace(verdict, findings=tuple(kept), clear=clear))
    return [*merged, replace(group, findings=tuple(groups))]


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
    persistent, sometimes, left_out = list[Finding](), list[Finding](), list[str]()
    rough = too_few = uncertain(run)
    held, seen = held_by_cores(run, waits), seen_waiting(run)
    for one in _late_ranks(run, waits):
        judged = _judged(run, one, waits, held, seen=seen)
        too_few = judged.too_few or too_few
        left_out.append(judged.left_out)
        if judged.severity and one.most:
            made = finding_of(PERSISTENTLY_LATE, judged.severity, run, one.straggler, profiler_slowdown, undisturbed)
            persistent.append(made)
        elif judged.severity:
            made = finding_of(
                SOMETIMES_LATE, judged.severity, run, one.straggler, profiler_slowdown, None, sometimes=True
            )
            sometimes.append(made)
    alone = not rough and not persistent and not sometimes
    persistent += behind_loading(PERSISTENTLY_LATE, run) if alone else []
    in_some = _see("in_some_steps", sometimes)
    in_most = _see("in_most_steps", persistent)
    if alone and not persistent:
        persistent += only_waited_for(PERSISTENTLY_LATE, run, waits, profiler_slowdown, undisturbed)
    clear = "; ".join([clear_text(run), *filter(None, left_out)])
    return [
        PERSISTENTLY_LATE.verdict(*persistent, not_evaluated="" if persistent else too_few, clear=in_some or clear),
        SOMETIMES_LATE.verdict(*sometimes, not_evaluated="" if sometimes else too_few, clear=in_most or clear),
    ]


class _Judged(Struct, frozen=True):
    """What becomes of a late rank: a finding of this severity, or why it is left out, or why nothing is judged."""

    severity: Severity | None = None
    left_out: str = ""
    too_few: str = ""


def _judged(run: ComparedRun, one: _LateRank, waits: CoreWaits, held: Collection[int], *, seen: bool) -> _Judged:
    """held: ranks with a finding of TO-W002. seen: whether the others are seen to wait for the late ranks."""
    straggler = one.straggler
    say = partial(reason, "late", rank=straggler.rank, steps=steps_text(straggler.late_steps))
    if not seen or straggler.share < least_share(len(run.ranks)):
        return _Judged(left_out=say("unseen"))
    if not straggler.apart:
        why, numbers = say("not_apart"), {"saved": f"{one.saved / 1e6:.2f}", "step": f"{one.step / 1e6:.2f}"}
        return _Judged(too_few=say("not_apart_but", why=why, **numbers)) if one.costs else _Judged(left_out=why)
    if one.most and for_no_cause(run, straggler):
        return _Judged(left_out=say("no_cause"))
    if one.most and without_a_known_core(run, straggler, waits):
        return _Judged(too_few=say("unknown_core"))
    if one.costs and straggler.chance > CHANCE:
        return _Judged(too_few=say("chance", few=_few(run, len(run.replay.lateness.steps))))
    if (one.wanted > 0).any() and not late_by_itself(run, straggler, one.own, most=one.most):
        return _Judged(too_few=say("held_by_cores" if straggler.rank in held else "wants_a_core"))
    if one.most:
        return _Judged(_persistent_severity(100 * run.replay.what_if.mean_ns(one.own) / one.step))
    if not straggler.late_steps:
        return _Judged(left_out=say("in_no_step"))
    if not seen_in_its_steps(run, straggler):
        return _Judged(left_out=say("unseen_there"))
    if slowed_by_profiler(run, straggler):
        return _Judged(left_out=say("ran_ahead"))
    if late_by_turns(run, straggler):
        return _Judged(too_few=say("by_turns"))
    return _Judged(left_out=say("lost_again")) if lost_again(straggler) else _Judged(_burst_severity(run, straggler))


def _few(run: ComparedRun, count: int) -> str:
    """How many steps there are to judge by, or that there is one window."""
    return run.step_words.choose(f"{count} step{'s' if count > 1 else ''}", "one window")


def _see(key: str, found: Sequence[Finding]) -> str:
    """Why the other of the two rules is clear where this one fired, which clears nobody; '' where it did not."""
    ranks = tuple(sorted({rank for one in found for rank in one.ranks}))
    return reason("late", key, ranks=ranks) if ranks else ""


def _late_for_other_reasons(
    run: ComparedRun, slow: SlowGroups, slowdown: float | None, undisturbed: Undisturbed | None
) -> list[Finding]:
    """TO-S001 of ranks that are late beside a group and for another reason than it, with the group cured."""
    mean = run.replay.what_if.mean_ns
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
