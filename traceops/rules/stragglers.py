"""Turns stragglers into TO-S001 and TO-S002, with TO-S003 beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from traceops.across.cross_rank import CrossRank
from traceops.across.grown import grown
from traceops.across.lateness import CAUSES
from traceops.across.replay.what_if import WORK_SHARED, Steps
from traceops.across.slow_group import SlowGroups, far_ranks
from traceops.across.stragglers import Straggler, least_share
from traceops.across.undisturbed import Undisturbed
from traceops.across.work import MORE, WorkCompared
from traceops.core.findings import Confidence, Evidence, Finding, Severity, severity_of
from traceops.core.rank_text import who as ranks_named
from traceops.core.rule import Rule, Verdict
from traceops.core.step_words import StepWords
from traceops.core.words import CAUSES as CAUSE_WORDS
from traceops.core.words import COMPUTES_LONGER
from traceops.measure.typical import spells
from traceops.rules import slow_group
from traceops.rules.clocks import MOST_OUT_OF_STEP_PCT, out_of_step_pct
from traceops.rules.inputs import Inputs
from traceops.rules.role_text import in_role, late_in
from traceops.rules.slow_group import SLOW_GROUP

PERSISTENTLY_LATE = Rule(
    id="TO-S001",
    title="A rank is persistently late and makes the others wait",
    fires=(
        "Fires where a rank causes 10 % or more of all waiting (of n ranks 2.5 / n, if that is less), running it at "
        "its peers' pace saves 10 % of "
        "the step (warning; error from 20 %) in most steps, the others are seen to wait, and a permutation "
        "test puts chance at 12 % or less. Info where the others wait 10 % of the step for one rank but would "
        "hardly be faster without it, or where the cause is the host or no single one and the profiler "
        "slowed the steps by more than 20 %, or by an unknown amount in a run that its hosts bound anyway. "
        "Without a GPU a rank that takes longer for no single cause is named only where it causes half of all waiting."
    ),
    advice="Compare what this rank does in a step with a peer's, in the merged timeline (traceops view).",
    by_cause=(
        (
            "gpu_compute",
            "See `grew` for the kernels. Compare this GPU's clocks, temperature and power with its peers' (nvidia-smi "
            "-q -d PERFORMANCE,CLOCK), look for another process on it, and for a larger batch or longer sequences "
            "on this rank.",
        ),
        (
            "slower",
            "Compare this GPU's clocks, temperature and power with its peers' (nvidia-smi -q -d "
            "PERFORMANCE,CLOCK), and look for another process on it.",
        ),
        (
            "more_work",
            "Share the work evenly: tokens over experts (an auxiliary loss, a capacity factor), samples over ranks "
            "by length and not by number (packing, grouping by length), layers over stages.",
        ),
        (
            "extra_kernels",
            "Look for what launches these kernels on this rank only (see `grew`, and the timeline of traceops "
            "view): logging, metrics, an extra loss, a branch on the rank.",
        ),
        (
            "more_calls",
            "Look for what launches these kernels more often on this rank than on its peers (see `grew`, and the "
            "timeline of traceops view): logging, metrics, an extra loss or forward pass, a branch on the rank.",
        ),
        (
            "on_cpu",
            "See `grew` for what takes longer on this rank. Then look at its CPU binding and NUMA node, for other "
            "processes on its cores, and for logging, metrics or checkpoints that only this rank does.",
        ),
        (
            "host",
            "Look at the rank's CPU binding and NUMA node, for other processes on its cores, and for logging, "
            "metrics or checkpoints that only this rank does.",
        ),
        (
            "input",
            "Look at the loader, the data shard and the storage of this rank: more workers (num_workers), "
            "prefetch_factor, samples of even size.",
        ),
        (
            "copy",
            "Pin the memory this rank copies from and use non_blocking=True; check its GPU's PCIe generation "
            "and width against its siblings' (nvidia-smi -q).",
        ),
    ),
)

SOMETIMES_LATE = Rule(
    id="TO-S002",
    title="A rank is late in some steps only",
    fires=(
        "As TO-S001, for a rank late in at most half of the steps: info where it costs 10 % of a step or more "
        "in the worst of them, warning from 25 %, error where the mean over all steps reaches 20 % and it is late more "
        "than once: one late step does not say how often such steps come. The others are seen to wait in these very "
        "steps. Without a GPU only for a rank that causes three quarters of all waiting, and as info where its host "
        "is the cause, because ranks that share cores are late by turns."
    ),
    advice=(
        "Look at what that rank does in those steps only: checkpointing, evaluation, logging, garbage "
        "collection, a longer sample, a data shard's end, a neighbour on the same host. See the steps in the "
        "merged timeline."
    ),
)
RULES = (PERSISTENTLY_LATE, SOMETIMES_LATE, SLOW_GROUP)
IDS = tuple(rule.id for rule in RULES)

IMPACT_BOUNDS = (10.0, 20.0)  # percent of the step: warning, error
_MOST_ERROR = 0.15  # of a step, mean over steps: of a replay that is off by more nothing is concluded
_ERRORS = (
    2.0  # how many times the replay's mean error a saving must exceed the bound by, where that error is large
)
_LEAD = 2.0  # times as much waiting as any other can have caused, where some is charged to nobody
_BURST_PCT = (10.0, 25.0)  # what a rank late in some steps costs the worst of them: info, warning
_WAITING_PCT = 10.0  # of the step: waiting for one rank that is worth a remark though its cure saves little
_MOST = 0.5  # of all waiting: what a rank must cause on CPUs that takes longer for no single cause
_MOST_OF_WAITING = 0.75  # what a rank that is late in some steps must cause on CPUs, which others use too
_FELT = 0.25  # of what a rank costs in its worst step: the others lose time in such a step too
_CHANCE = 0.12  # two ranks of three steps each cannot do better than one in ten
_SURE = 0.05
_PACE: Mapping[object, str] = {"extra_kernels": "Without them", "more_calls": "Without these launches"}
_VISIBLE = 0.25  # of the saving: what the others must be seen to wait
_PROFILED = 1.2  # profiled ÷ unprofiled step from which a slow host may be the profiler's doing
_HOST_BOUND = 0.1  # of the step with the stragglers cured: what it would lose if no host were late


def judge(inputs: Inputs) -> list[Verdict]:
    """Ranks that make the others wait, and groups of them."""
    return judge_late(inputs.run, inputs.slowdown, inputs.undisturbed)


def judge_stragglers(
    run: CrossRank, profiler_slowdown: float | None, calm: Undisturbed | None = None
) -> list[Verdict]:
    """TO-S001 and TO-S002 [docs/metrics.md, who causes the wait]. calm: the undisturbed step, where it is known."""
    if not _comparable(run):
        why = _nothing_to_compare(run)
        return [PERSISTENTLY_LATE.not_evaluated(why), SOMETIMES_LATE.not_evaluated(why)]
    assert run.stragglers is not None and run.lateness is not None and run.what_if is not None
    if run.stragglers.alone is not None:
        why = f"the others wait most for rank {run.stragglers.alone}, and no other rank runs its program"
        if any(run.stragglers.alone in bubble.pipeline.ranks for bubble in run.bubbles):
            why = f"the others wait most for rank {run.stragglers.alone}, a stage of a pipeline: see TO-B001"
        return [PERSISTENTLY_LATE.not_evaluated(why), SOMETIMES_LATE.not_evaluated(why)]
    persistent, sometimes = list[Finding](), list[Finding]()
    left_out, too_few = list[str](), _uncertain(run)
    rough = bool(too_few)
    mean = _mean_over(run, PERSISTENTLY_LATE)
    step, seen = mean(run.stragglers.step_ns), _seen_waiting(run)
    for straggler in run.stragglers.found:
        if not _cured_beside(run, straggler):
            straggler = replace(straggler, saved=straggler.alone)
        saved = mean(straggler.saved)
        most = _late_in_most(straggler, run)
        if rough and not _beyond_doubt(run, straggler, saved / step):
            continue
        if not seen or straggler.share < least_share(len(run.ranks)):
            left_out.append(f"hardly anybody is seen to wait for rank {straggler.rank}")
        elif not straggler.apart:
            left_out.append(
                f"rank {straggler.rank} is the slowest, but not far beyond what its peers differ by"
            )
        elif most and _for_no_reason(run, straggler):
            left_out.append(
                f"rank {straggler.rank} takes longer than its peers, but for no single cause, as ranks that share "
                "cores do"
            )
        elif most and saved >= step * IMPACT_BOUNDS[0] / 100 and straggler.chance > _CHANCE:
            count = len(run.lateness.steps)
            few = run.step_words.choose(f"{count} step{'s' if count > 1 else ''}", "one window")
            too_few = f"rank {straggler.rank} looks late, but {few} cannot rule out chance"
        elif most and (severity := _persistent_severity(100 * saved / step)):
            persistent.append(_finding(PERSISTENTLY_LATE, severity, run, straggler, profiler_slowdown, calm))
        elif not most and not _seen_in_its_steps(run, straggler):
            left_out.append(
                f"rank {straggler.rank} takes longer in {_steps(straggler.late_steps)}, but hardly anybody is seen to "
                "wait for it there"
            )
        elif not most and _by_turns(run, straggler):
            steps = _steps(straggler.late_steps)
            too_few = f"rank {straggler.rank} is late in {steps}, but others are as well, by turns"
        elif not most and (burst := _burst_severity(run, straggler)) is not None:
            sometimes.append(_finding(SOMETIMES_LATE, burst, run, straggler, profiler_slowdown, None))
    leader = run.stragglers.leader
    if not rough and not persistent and not sometimes and leader is not None and leader.share > 0.5:
        persistent += _only_waited_for(run, leader, profiler_slowdown, calm)
    clear = _clear(run) + "".join(f"; {reason}" for reason in left_out)
    return [
        PERSISTENTLY_LATE.verdict(*persistent, not_evaluated="" if persistent else too_few, clear=clear),
        SOMETIMES_LATE.verdict(*sometimes, not_evaluated="" if sometimes else too_few, clear=clear),
    ]


def judge_late(run: CrossRank, slowdown: float | None, calm: Undisturbed | None = None) -> list[Verdict]:
    """TO-S001 and TO-S002, and TO-S003 for ranks that are late alike. calm: as there."""
    single = judge_stragglers(run, slowdown, calm)
    if not _comparable(run):
        return [*single, SLOW_GROUP.not_evaluated(_nothing_to_compare(run))]
    group = slow_group.judge(run, slowdown, _uncertain(run))
    named = {
        rank
        for verdict in single
        for found in verdict.findings
        if found.severity != "info"
        for rank in found.ranks
    }
    groups = [found for found in group.findings if found.severity != "info" or not named & set(found.ranks)]
    if not groups:
        return [
            *single,
            replace(group, findings=(), clear="single ranks are late, see TO-S001 and TO-S002")
            if named
            else group,
        ]
    assert run.slow_groups is not None
    told = set(run.slow_groups.ranks)
    beside = _late_for_other_reasons(run, run.slow_groups, slowdown, calm)
    merged = []
    for verdict in single:  # who of those that are late alike comes last is chance
        kept = [one for one in verdict.findings if one.severity != "info" and not told & set(one.ranks)]
        kept += beside if verdict.rule == PERSISTENTLY_LATE.id else []
        clear = f"of ranks that are late alike, see {SLOW_GROUP.id}"
        merged.append(replace(verdict, findings=tuple(kept), clear=clear if not kept else verdict.clear))
    return [*merged, replace(group, findings=tuple(groups))]


def _late_for_other_reasons(
    run: CrossRank, slow: SlowGroups, slowdown: float | None, calm: Undisturbed | None
) -> list[Finding]:
    """TO-S001 of ranks that are late beside a group and for another reason than it, with the group cured."""
    assert run.stragglers is not None
    mean = _mean_over(run, PERSISTENTLY_LATE)
    late = sorted({*slow.ranks, *far_ranks(run.stragglers.found)})
    step, found = mean(run.stragglers.step_ns), list[Finding]()
    for straggler in slow.single:
        saved = mean(straggler.saved)
        severity = _persistent_severity(100 * saved / step)
        if (
            severity is None
            or not straggler.apart
            or straggler.chance > _CHANCE
            or not _late_in_most(straggler, run)
        ):
            continue
        found.append(_finding(PERSISTENTLY_LATE, severity, run, straggler, slowdown, calm, late))
    return found


def _persistent_severity(saved_pct: float) -> Severity | None:
    """Of what its cure saves of the step; a rank that is late for good is no remark."""
    severity = severity_of(saved_pct, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)
    return "warning" if severity == "info" else severity


def _comparable(run: CrossRank) -> bool:
    """Whether ranks can be compared step by step, by what was measured and by a replay that is near to it."""
    return (
        run.stragglers is not None
        and run.lateness is not None
        and run.what_if is not None
        and run.what_if.mean_error <= _MOST_ERROR
        and out_of_step_pct(run) <= MOST_OUT_OF_STEP_PCT
    )


def _uncertain(run: CrossRank) -> str:
    """Why no rank may be cleared and only the plainest be named; empty where everything is explained."""
    assert run.what_if is not None
    if run.charged is not None and not run.charged.holds:
        return f"{run.charged.uncharged_pct:.0f} % of what ranks wait for each other can be charged to nobody"
    return "" if run.what_if.holds else _nothing_to_compare(run)


def _beyond_doubt(run: CrossRank, straggler: Straggler, saved: float) -> bool:
    """Whether a rank would be named whoever caused the rest of the waiting, and however far the replay is off.

    saved: part of the step.
    """
    assert run.stragglers is not None and run.lateness is not None and run.what_if is not None
    if saved < IMPACT_BOUNDS[0] / 100 + _ERRORS * run.what_if.mean_error:
        return False
    if run.charged is None or run.charged.holds:
        return True
    others = max(run.lateness.share(rank) or 0.0 for rank in run.lateness.caused if rank != straggler.rank)
    return run.charged.least_lead(straggler.share, others) >= _LEAD


def _late_in_most(straggler: Straggler, run: CrossRank) -> bool:
    """Whether it is late in most of the typical steps; what is long for another reason is no evidence of it."""
    assert run.lateness is not None
    typical = set(run.lateness.steps) - set(run.unlike) or set(run.lateness.steps)
    return len(typical & set(straggler.late_steps)) > len(typical) / 2


def _nothing_to_compare(run: CrossRank) -> str:
    if len(run.ranks) < 2:
        return "there is only one rank"
    if not run.split:
        return "no collective could be matched across ranks"
    if out_of_step_pct(run) > MOST_OUT_OF_STEP_PCT:
        return "the ends of matched collectives do not fit together, see TO-V006"
    if run.what_if is not None:
        return f"the replay is off by up to {run.what_if.error_pct:.0f} % of the measured step"
    return "no step is common to all ranks with most of its collectives matched"


def _seen_waiting(run: CrossRank) -> bool:
    """Whether the ranks that are not late wait for those that are, as far as their cure would save."""
    assert run.stragglers is not None
    if run.stragglers.joint_ns is None:
        return False
    return _wait_for_late(run, run.stragglers.step_ns - run.stragglers.joint_ns)


def _seen_in_its_steps(run: CrossRank, straggler: Straggler) -> bool:
    """The same for the steps in which a rank costs most, and those after: a wait may come a step later."""
    assert run.stragglers is not None and run.stragglers.joint_ns is not None
    felt = straggler.saved >= _FELT * max(float(straggler.saved.max()), 1.0)
    near = felt | np.concatenate(([False], felt[:-1]))
    return _wait_for_late(run, (run.stragglers.step_ns - run.stragglers.joint_ns) * felt, near)


def _by_turns(run: CrossRank, straggler: Straggler) -> bool:
    """Whether ranks without a GPU are late now one and now another, as those are that do not always get a core."""
    on_cpu = not any(times.summary.on_gpu for times in run.ranks)
    return on_cpu and straggler.share < _MOST_OF_WAITING


def _for_no_reason(run: CrossRank, straggler: Straggler) -> bool:
    """Whether a rank without a GPU is not waited for most, and no single cause explains that it takes longer."""
    assert run.lateness is not None
    on_cpu = not any(times.summary.on_gpu for times in run.ranks)
    return on_cpu and straggler.cause == "unknown" and (run.lateness.share(straggler.rank) or 0.0) <= _MOST


def _cured_beside(run: CrossRank, straggler: Straggler) -> list[int]:
    """The other late ranks, cured with this one; none where no cause of theirs is known that could be cured."""
    assert run.stragglers is not None
    others = [other for other in run.stragglers.found if other.rank != straggler.rank]
    if all(_late_in_most(other, run) and _for_no_reason(run, other) for other in others):
        return []
    return [other.rank for other in others]


def _wait_for_late(run: CrossRank, saved: Steps, among: NDArray[np.bool_] | None = None) -> bool:
    """Whether in these steps (None: all) the others wait for the late ranks a good part of what is `saved`, ns."""
    assert run.stragglers is not None and run.lateness is not None
    late = {straggler.rank for straggler in run.stragglers.found}
    steps = run.lateness.steps
    chosen = np.ones(len(steps), dtype=bool) if among is None else among
    waiting = sum(float(run.lateness.caused[rank].sum(axis=0)[chosen].sum()) for rank in late)
    # Waiting that other work hides delays the transfers behind it all the same.
    named = {number for number, wanted in zip(steps, chosen, strict=True) if wanted}
    by_rank = {times.summary.rank: times.summary for times in run.ranks}
    behind = [
        c
        for c in run.matching.collectives
        if c.last_rank in late
        and (among is None or by_rank[c.members[0][0]].step_number(c.members[0][1]) in named)
    ]
    hidden = sum(sum(c.wait_ns) for c in behind)
    others = max(len(run.ranks) - len(late), 1)
    # On a mesh a rank meets few of the others: those that wait for them in turn are not its own.
    met = max(len({rank for c in behind for rank in c.group} - late), 1)
    return max(waiting / others, hidden / min(others, met)) >= _VISIBLE * float(saved.sum())


def _burst_severity(run: CrossRank, straggler: Straggler) -> Severity | None:
    """By the part of its worst step that a rank costs: in a step that is long for all, being later is no cause."""
    assert run.stragglers is not None
    worst = 100 * float((straggler.saved / run.stragglers.step_ns).max())
    mean = 100 * float(straggler.saved.mean()) / float(run.stragglers.step_ns.mean())
    severity = severity_of(worst, *_BURST_PCT)
    assert run.lateness is not None
    times = spells([step in straggler.late_steps for step in run.lateness.steps])
    if severity is not None and mean >= IMPACT_BOUNDS[1] and times > 1:
        return "error"
    return severity


def _finding(
    rule: Rule,
    severity: Severity,
    run: CrossRank,
    straggler: Straggler,
    slowdown: float | None,
    calm: Undisturbed | None,
    late: Sequence[int] = (),
) -> Finding:
    """late: who is cured beside it, itself among them, where these are not the stragglers that were found."""
    assert run.stragglers is not None and run.lateness is not None
    mean = _mean_over(run, rule)
    step, saved = mean(run.stragglers.step_ns), mean(straggler.saved)
    compared = run.work.get(straggler.rank)
    longer = UNSET if compared is None else compared.kind
    if straggler.cause == "host" and not any(times.summary.on_gpu for times in run.ranks):
        longer = "on_cpu"
    shared = _saved_by_sharing(run, mean) if longer == "more_work" else None
    confidence: Confidence = (
        "high" if straggler.chance <= _SURE and straggler.cause != "unknown" else "medium"
    )
    note = ""
    if straggler.cause in ("host", "unknown"):
        if slowdown is None:
            confidence = "medium"
            if run.stragglers.host_share >= _HOST_BOUND:
                severity = "info"
                note = (
                    " But hosts bound the whole run: under the profiler, whose cost these traces do not tell, one of "
                    "them is the slowest by nature (see TO-I001)."
                )
        elif slowdown > _PROFILED and calm is not None:
            confidence, severity, note = _undisturbed(straggler, severity, calm)
        elif slowdown > _PROFILED:
            confidence, severity = "low", "info"
            note = (
                f" The profiler made the steps {slowdown:.2f} times as long, most of it host time: without it this "
                "rank may not be late."
            )
        if rule is SOMETIMES_LATE and not any(times.summary.on_gpu for times in run.ranks):
            confidence, severity = "low", "info"
            note = (
                " Ranks that share a host's cores are late by turns: more steps tell whether it is this rank or the "
                "machine."
            )
    # Of a rank that is late in some steps only, numbers are means over all of them.
    average = "" if rule is PERSISTENTLY_LATE else " on average"
    when = "" if rule is PERSISTENTLY_LATE else f" in {_steps(straggler.late_steps)}"
    words = CAUSE_WORDS[straggler.cause] if longer is UNSET else COMPUTES_LONGER[longer]
    message = f"Rank {straggler.rank} is late{when}: {words.clause}. {_waits(run, straggler, rule)} "
    cured = late or _cured_beside(run, straggler)
    beside = sorted(rank for rank in cured if rank != straggler.rank)
    pace = _PACE.get(longer, "At its peers' pace")
    said = run.step_words
    if shared is not None:
        message += (
            f"With the work shared evenly {said.the} would take {_shared_text(run, step - shared)} instead of "
            f"{step / 1e6:.2f} ms ({100 * shared / step:.0f} % less). "
        )
        pace = "With as little to do as its peers"
    if beside:
        told = f"{saved / 1e6:.2f} of {step / 1e6:.2f} ms {said.per}{average}"
        message += f"With {ranks_named(beside)} cured too, its cure saves {told}"
    else:
        message += (
            f"{pace} {said.the} would take {(step - saved) / 1e6:.2f} instead of {step / 1e6:.2f} ms{average}"
        )
    if doubt := _uncertain(run):
        confidence = "medium" if confidence == "high" else confidence
        note += f" This is approximate: {doubt}."
    message += f" ({100 * saved / step:.0f} % less).{note}"
    return rule.finding(
        severity,
        confidence,
        message,
        _evidence(run, straggler, step, saved, rule)
        + _work_evidence(compared, straggler.rank, step, shared, said),
        ranks=[straggler.rank],
        steps=straggler.late_steps,
        impact_ms=round((saved if shared is None else shared) / 1e6, 3),
        cause=straggler.cause,
        computes_longer=longer,
        role=late_in(run, straggler.rank),
    )


def _saved_by_sharing(run: CrossRank, mean: Callable[[Steps], float]) -> float | None:
    """What even shares of the work save a step, ns; None where the replay shows no gain."""
    saved = run.what_if.saved_steps(WORK_SHARED) if run.what_if is not None else None
    shared = None if saved is None else mean(saved)
    return shared if shared is not None and shared > 0 else None


def _mean_over(run: CrossRank, rule: Rule) -> Callable[[Steps], float]:
    """Mean over steps, ns: over typical ones, but of a rank late in some steps only over all."""
    if rule is SOMETIMES_LATE or run.what_if is None:
        return lambda steps: float(steps.mean())
    return run.what_if.mean_ns


def _work_evidence(
    compared: WorkCompared | None, rank: int, step: float, shared: float | None, words: StepWords
) -> list[Evidence]:
    """What tells a slower device from more work."""
    if compared is None or compared.kind is UNSET:
        return []
    found = []
    if compared.kind == "more_work":
        found.append(Evidence("work of its peers", round(compared.work, 2), "times", MORE, rank))
    if compared.kind == "extra_kernels":
        found.append(
            Evidence("kernels that no peer runs", round(compared.alone_ms, 3), words.unit("ms"), rank=rank)
        )
    if compared.kind == "slower" and compared.speed is not None:
        found.append(
            Evidence("time of its peers for the same kernels", round(compared.speed, 2), "times", rank=rank)
        )
    if shared is not None:
        found.append(
            Evidence("saved with the work shared evenly", round(shared / 1e6, 3), words.unit("ms"), rank=rank)
        )
        found.append(
            Evidence(f"of {words.the}, shared evenly", round(100 * shared / step, 1), "%", rank=rank)
        )
    return found


def _shared_text(run: CrossRank, ns: float) -> str:
    """'18.95', or '18.70 to 19.21, by how efficiently kernels of that size run,'."""
    ends = None if run.what_if is None else run.what_if.range_ns(WORK_SHARED)
    if ends is None:
        return f"{ns / 1e6:.2f}"
    return f"{ends[0] / 1e6:.2f} to {ends[1] / 1e6:.2f} (by how efficiently kernels of that size run)"


def _only_waited_for(
    run: CrossRank, leader: Straggler, slowdown: float | None, calm: Undisturbed | None
) -> list[Finding]:
    """A remark on whom all wait for, where its cure would save little because the others are hardly faster."""
    assert run.stragglers is not None
    mean = _mean_over(run, PERSISTENTLY_LATE)
    step, saved = mean(run.stragglers.step_ns), max(mean(leader.alone), 0.0)
    waiting = _waiting_ms(run, leader, PERSISTENTLY_LATE) * 1e6
    if waiting < _WAITING_PCT / 100 * step or leader.chance > _CHANCE:
        return []
    if saved >= IMPACT_BOUNDS[0] / 100 * step:
        return []  # it would save a lot, and was left out for another reason
    message = (
        f"Rank {leader.rank} comes last and the others wait {waiting / 1e6:.2f} ms {run.step_words.per} for it "
        f"({CAUSE_WORDS[leader.cause].clause}), but they would hardly be faster without it: its cure "
        f"saves {saved / 1e6:.2f} of {step / 1e6:.2f} ms."
    )
    confidence: Confidence = "low" if leader.cause == "host" and (slowdown or 0) > _PROFILED else "medium"
    if confidence == "low" and calm is not None:
        message += _undisturbed(leader, "info", calm)[2]
    return [
        PERSISTENTLY_LATE.finding(
            "info",
            confidence,
            message,
            _evidence(run, leader, step, saved, PERSISTENTLY_LATE),
            ranks=[leader.rank],
            steps=leader.late_steps,
            impact_ms=round(saved / 1e6, 3),
            cause=leader.cause,
            role=late_in(run, leader.rank),
        )
    ]


def _waits(run: CrossRank, straggler: Straggler, rule: Rule) -> str:
    waiting = _waiting_ms(run, straggler, rule)
    average = "" if rule is PERSISTENTLY_LATE else " on average"
    where = in_role(run, late_in(run, straggler.rank), ", first of all in {} communication")
    if waiting < 0.01:
        return "Nobody is seen to wait for it alone, because others are as late or later."
    assert run.stragglers is not None
    others = len(run.ranks) - 1
    if waiting < _VISIBLE * _mean_over(run, rule)(straggler.saved) / 1e6 and len(run.stragglers.found) == 1:
        behind = [c for c in run.matching.collectives if c.last_rank == straggler.rank]
        met = len({rank for c in behind for rank in c.group}) - 1
        if not 0 < met < others:
            return "It delays transfers, which the others partly hide behind their own work."
        steps = max(len(run.stragglers.step_ns), 1)
        mean = sum(sum(c.wait_ns) for c in behind) / met / steps / 1e6
        return (
            f"The {met} ranks that it meets wait {mean:.2f} ms {run.step_words.per} for it{average}{where}."
        )
    wait = "The other rank waits" if others == 1 else f"The other {others} ranks wait"
    return f"{wait} {waiting:.2f} ms {run.step_words.per} for it{average}{where}."


def _waiting_ms(run: CrossRank, straggler: Straggler, rule: Rule) -> float:
    """Waiting for this rank, ms a step, mean over the other ranks and the steps that `_mean_over` takes."""
    assert run.lateness is not None
    caused = run.lateness.caused[straggler.rank].sum(axis=0)
    if rule is not SOMETIMES_LATE and run.what_if is not None:
        caused = caused[run.what_if.chosen]
    return float(caused.mean()) / 1e6 / max(len(run.ranks) - 1, 1)


def _evidence(run: CrossRank, straggler: Straggler, step: float, saved: float, rule: Rule) -> list[Evidence]:
    rank = straggler.rank
    total = sum(straggler.caused.values()) or 1.0
    least, words = least_share(len(run.ranks)), run.step_words
    split = " / ".join(f"{100 * straggler.caused[cause] / total:.0f}" for cause in CAUSES)
    return [
        Evidence(
            "saved at its peers' pace",
            round(saved / 1e6, 3),
            words.unit("ms"),
            round(step / 1e6 * 0.1, 3),
            rank,
        ),
        Evidence(f"of {words.the}", round(100 * saved / step, 1), "%", IMPACT_BOUNDS[0], rank),
        Evidence(
            "waiting for it",
            round(_waiting_ms(run, straggler, rule), 3),
            words.unit("ms") + " and rank",
            rank=rank,
        ),
        Evidence("share of all waiting", round(100 * straggler.share, 1), "%", round(100 * least, 1), rank),
        Evidence(f"cause ({' / '.join(CAUSES)})", split, "%", rank=rank),
        Evidence("late steps", f"{len(straggler.late_steps)} of {len(straggler.saved)}", rank=rank),
        Evidence("chance", round(straggler.chance, 4), "probability", _CHANCE, rank),
        *_late_step_evidence(run, straggler),
        *(
            Evidence(
                f"grew: {one.name}",
                round(one.ms, 3),
                words.unit("ms"),
                rank=rank,
                peers=round(one.peers_ms, 3),
                grown=one.name,
            )
            for one in grown(run, rank, straggler.cause)
        ),
    ]


def _late_step_evidence(run: CrossRank, straggler: Straggler) -> list[Evidence]:
    """The mean step that the others lose time in, and what the cure saves there; nothing where they do in all."""
    assert run.stragglers is not None
    felt = straggler.saved >= _FELT * max(float(straggler.saved.max()), 1.0)
    if not felt.any() or felt.all():
        return []
    late, saved = (float(ns[felt].mean()) / 1e6 for ns in (run.stragglers.step_ns, straggler.saved))
    return [
        Evidence("late step", round(late, 3), "ms", rank=straggler.rank),
        Evidence("saved in a late step", round(saved, 3), "ms", rank=straggler.rank),
    ]


def _undisturbed(
    straggler: Straggler, severity: Severity, calm: Undisturbed
) -> tuple[Confidence, Severity, str]:
    """What remains of a late host without the profiler: what the others wait in the light window, at most."""
    late = calm.of(straggler.rank)
    others = [one for one in calm.ranks if one.rank != straggler.rank]
    if late is None or not others:
        return "low", "info", ""
    waits = float(np.mean([one.wait_ms for one in others]))
    unknown = float(np.mean([one.unmatched_ms for one in others]))
    if 100 * unknown / calm.step_ms >= IMPACT_BOUNDS[0]:
        return (
            "low",
            "info",
            (
                f" Without the profiler a step takes {calm.step_ms:.2f} ms; how much of it the others wait for is not "
                f"known: the light window does not tell waiting from transfer in {unknown:.2f} ms of it."
            ),
        )
    seen = severity_of(100 * waits / calm.step_ms, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)
    note = (
        f" Without the profiler a step takes {calm.step_ms:.2f} ms, and by the light window the others wait for "
        f"{waits:.2f} ms of it."
    )
    if seen is None or late.wait_ms >= waits:
        return "low", "info", note
    return "medium", "warning" if seen != "error" else severity, note


def _steps(steps: Sequence[int]) -> str:
    listed = ", ".join(map(str, steps[:8])) + (" …" if len(steps) > 8 else "")
    return f"step{'s' if len(steps) != 1 else ''} {listed}"


def _clear(run: CrossRank) -> str:
    assert run.stragglers is not None
    leader = run.stragglers.leader
    if leader is None:
        return "no rank makes the others wait"
    mean = _mean_over(run, PERSISTENTLY_LATE)
    step, saved = mean(run.stragglers.step_ns), max(mean(leader.alone), 0.0)
    waiting = _waiting_ms(run, leader, PERSISTENTLY_LATE)
    return (
        f"the others wait most for rank {leader.rank}, {waiting:.2f} ms {run.step_words.per}; at its peers' pace "
        f"{saved / 1e6:.2f} of {step / 1e6:.2f} ms would be saved (bound {IMPACT_BOUNDS[0]:g} %)"
    )
