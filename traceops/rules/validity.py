"""TO-V001, TO-V002 and TO-V004: how far the traces can be trusted; other modules here have the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceops.across.agreed_steps import ApartInTime, apart_in_time
from traceops.across.cross_rank import CrossRank
from traceops.across.roles import reduced_behind_step
from traceops.core.capture_failure import CaptureFailure, advice_text, by_cause, cause_text, counted, shorter_schedule
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import ranks_text, who, who_first
from traceops.core.rule import Verdict, described
from traceops.core.units import clock_text, size_text
from traceops.core.words import STEPS_FOUND, steps_found_text
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.rules.activity import KERNELS_MISSING, NO_COMMUNICATION_SEEN, judge_communication, judge_kernels
from traceops.rules.clocks import UNALIGNED_CLOCKS, judge_clocks
from traceops.rules.inputs import Inputs, OtherSteps
from traceops.rules.profiler_cost import PROFILER_COST, judge_profiler
from traceops.traces.run_manifest import capture_failures

# TO-V007: traces that contradict each other, their names or run.json, and are used all the same.


CONTRADICTIONS = described("validity", "TO-V007")
RULES = (CONTRADICTIONS,)


def judge_contradictions(doubts: Sequence[tuple[str, str]], run: CrossRank) -> Verdict:
    """TO-V007: one finding a file, so that each is named."""
    doubted = {path for path, _ in doubts}
    apart = apart_in_time([times.summary for times in run.ranks], run.matching)
    told = [*doubts, *((one.path, _apart_text(one)) for one in apart if one.path not in doubted)]
    found = [
        CONTRADICTIONS.finding("warning", "high", f"{path}: {what}.", [Evidence(Fact.FILE, path)])
        for path, what in told
    ]
    return CONTRADICTIONS.verdict(*found, clear="the traces, their names and run.json fit together")


def _apart_text(one: ApartInTime) -> str:
    when = "before" if one.after_ns < 0 else "after"
    return (
        f"begins {clock_text(abs(one.after_ns) / 1e9)} {when} the {'trace' if len(one.others) == 1 else 'traces'} of "
        f"{who(one.others)} with the same steps, and none of its collectives is among theirs: it is of another "
        "capture. It is used; put each capture in a folder of its own"
    )


# TO-V003: ranks that cover different steps.


_ENDED_EARLY = "ended_early"
UNEVEN_STEPS = described("validity", "TO-V003")


def judge_steps(ranks: Sequence[RankSummary], left_out: Sequence[OtherSteps]) -> Verdict:
    """TO-V003: the same steps on every rank."""
    if left_out:
        return UNEVEN_STEPS.verdict(_left_out(ranks, left_out))
    steps = {summary.rank: summary.numbered_steps for summary in ranks}
    if not any(steps.values()):
        return UNEVEN_STEPS.not_evaluated("the traces mark no steps (no ProfilerStep annotation)")
    if len(ranks) == 1:
        return UNEVEN_STEPS.not_evaluated("there is only one rank")
    common, every = set.intersection(*steps.values()), set.union(*steps.values())
    if common == every:
        return UNEVEN_STEPS.clear(f"all ranks cover the {len(every)} steps {_span(every)}")
    odd = [rank for rank, own in steps.items() if own != every]
    return UNEVEN_STEPS.verdict(
        UNEVEN_STEPS.finding(
            "warning" if any(summary.steps_by == "profiler" for summary in ranks) else "info",
            "high",
            f"{who_first(odd)} {'does' if len(odd) == 1 else 'do'} not cover all of steps {_span(every)}; "
            f"{_common(len(common))} common to all ranks.",
            [Evidence(Fact.COMMON_STEPS, len(common), "steps", len(every))]
            + [Evidence(Fact.STEPS, _span(steps[rank]), rank=rank) for rank in odd[:16]],
            ranks=odd,
            steps=sorted(every - common),
        )
    )


def _left_out(ranks: Sequence[RankSummary], left_out: Sequence[OtherSteps]) -> Finding:
    used = numbered_steps(ranks)
    others = {number for one in left_out for number in one.steps}
    odd = [one.rank for one in left_out]
    return UNEVEN_STEPS.finding(
        "warning",
        "high",
        f"{who_first(odd)} recorded other steps ({_span(others)}) than {who([s.rank for s in ranks])} "
        f"({_span(used)}), and none in common. All numbers are of {who([s.rank for s in ranks])} alone.",
        [Evidence(Fact.COMMON_STEPS, 0, "steps", len(used | others))]
        + [Evidence(Fact.STEPS, _span(set(one.steps)), rank=one.rank) for one in left_out[:16]],
        ranks=odd,
        steps=sorted(others),
        cause=_ENDED_EARLY,
    )


def _common(count: int) -> str:
    return "no step is" if count == 0 else "1 step is" if count == 1 else f"{count} steps are"


def _span(steps: set[int]) -> str:
    if not steps:
        return "none"
    ordered = sorted(steps)
    dense = ordered[-1] - ordered[0] + 1 == len(ordered)
    if dense and len(ordered) > 1:
        return f"{ordered[0]}–{ordered[-1]}"
    return ", ".join(map(str, ordered[:20])) + (" …" if len(ordered) > 20 else "")


# TO-V010: traces without a complete step, and what would record one.


NO_WHOLE_STEP = described("validity", "TO-V010")
NO_STEP_REASON = "no step was recorded whole, see TO-V010"
_MOST_SAID = 4


def judge(inputs: Inputs) -> Verdict:
    """Whether there are steps to speak of."""
    ranks = inputs.ranks
    cut = [summary.rank for summary in ranks if summary.steps_by == "cut_off"]
    if cut:
        return _cut_off(cut, len(ranks), inputs.manifest)
    without = [summary.rank for summary in ranks if summary.steps_by == "window"]
    if len(without) < len(ranks):
        return NO_WHOLE_STEP.clear(_found(ranks))
    return NO_WHOLE_STEP.verdict(
        NO_WHOLE_STEP.finding(
            "info",
            "high",
            "The traces mark no steps, and none could be found by what repeats: all numbers are of the whole window.",
            [Evidence(Fact.STEPS, 0, "steps", 1)],
            ranks=without,
        )
    )


def _found(ranks: Sequence[RankSummary]) -> str:
    first = next(summary for summary in ranks if summary.steps_by in STEPS_FOUND)
    count = len(numbered_steps(ranks))
    return steps_found_text(count, first.steps_by, first.step_mark)


def _cut_off(ranks: Sequence[int], count: int, manifest: dict[str, Any]) -> Verdict:
    entries = [entry for entry in manifest.get("ranks") or () if entry.get("rank") in ranks]
    steps = min((n for entry in entries if isinstance(n := entry.get("steps"), int)), default=None)
    shorter = None if steps is None else shorter_schedule(manifest.get("schedule"), steps)
    said = "No step was recorded whole"
    if len(ranks) < count:
        said = f"On rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks, _MOST_SAID)} no step was recorded whole"
    evidence = [Evidence(Fact.WHOLE_STEPS, 0, "steps", 1)]
    cause = None
    if any(entry.get("status") == "given_way" for entry in entries):
        said += ", because the program started a profiler of its own"
        cause = "given_way"
    elif shorter is not None and steps is not None:
        said += f": the program ended after {counted(steps)}, and the schedule needs {shorter.needed}"
        cause = "too_short"
        evidence.append(Evidence(Fact.STEPS_OF_THE_PROGRAM, steps, "steps", shorter.needed))
    said += ". Nothing is said about its time."
    if shorter is not None and cause == "too_short":
        said += f" {_would_record(shorter.active)}: traceops run {shorter.flags}"
    return NO_WHOLE_STEP.verdict(NO_WHOLE_STEP.finding("warning", "high", said, evidence, ranks=ranks, cause=cause))


def ended_before(manifest: Mapping[str, Any], rank: int) -> tuple[int, int] | None:
    """The steps of a rank whose program ended by itself before its window, and those that the schedule needs."""
    entry: Mapping[str, Any] = next((one for one in manifest.get("ranks") or () if one.get("rank") == rank), {})
    steps = entry.get("steps")
    if entry.get("status") != "finished" or entry.get("traces") or not isinstance(steps, int):
        return None
    shorter = shorter_schedule(manifest.get("schedule"), steps)
    return None if shorter is None else (steps, shorter.needed)


def _would_record(steps: int) -> str:
    return "What would record one" if steps == 1 else f"What would record {steps}"


MISSING_RANKS = described("validity", "TO-V001")

DAMAGED = described("validity", "TO-V002")

_MODEL_BYTES = 1_000_000  # of all steps together: what is less may be confusion matrices and counts
NO_SYNC_IN_BACKWARD = described("validity", "TO-V004")

VALIDITY_RULES = (
    MISSING_RANKS,
    DAMAGED,
    UNEVEN_STEPS,
    NO_SYNC_IN_BACKWARD,
    PROFILER_COST,
    UNALIGNED_CLOCKS,
    CONTRADICTIONS,
    KERNELS_MISSING,
    NO_COMMUNICATION_SEEN,
    NO_WHOLE_STEP,
)
_MOST_LISTED = 1024  # ranks named in one finding


def judge_traces(inputs: Inputs) -> list[Verdict]:
    """How far the traces can be trusted."""
    return [
        judge_missing(
            inputs.run.world,
            [*(summary.rank for summary in inputs.ranks), *(one.rank for one in inputs.other_steps)],
            inputs.single_file,
            capture_failures(inputs.manifest),
            inputs.manifest,
            unusable=bool(inputs.found.problems),
        ),
        judge_damage(inputs.ranks, inputs.found.problems),
        judge_steps(inputs.ranks, inputs.other_steps),
        NO_SYNC_IN_BACKWARD.not_evaluated(NO_STEP_REASON)
        if inputs.run.unit == "none"
        else judge_backward_sync(inputs.ranks, inputs.manifest),
        judge_profiler(inputs),
        judge_clocks(inputs.run, known=bool(inputs.manifest)),
        judge_contradictions(inputs.found.doubts, inputs.run),
        judge_kernels(inputs.ranks),
        judge_communication(inputs.ranks, inputs.run.world, inputs.run.step_words),
        judge(inputs),
    ]


def judge_missing(
    world: int,
    present: Sequence[int],
    single_file: bool,
    failures: Sequence[CaptureFailure] = (),
    manifest: Mapping[str, Any] | None = None,
    *,
    unusable: bool = False,
) -> Verdict:
    """TO-V001; asked about one file, missing ranks are only worth a remark. failures: why, where run.json says so.

    unusable: files were left out, which TO-V002 names.
    """
    missing = sorted(set(range(world)) - set(present))
    if not missing:
        return MISSING_RANKS.clear(f"all {world} ranks have a trace")
    told = by_cause([failure for failure in failures if failure.rank in set(missing)])
    why = "".join(
        f" Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))}: {cause_text(failure)};"
        f" {advice_text(failure)}."
        for ranks, failure in told
    )
    short = {rank: own for rank in missing[:_MOST_LISTED] if (own := ended_before(manifest or {}, rank)) is not None}
    if short:
        steps, needed = zip(*short.values(), strict=True)
        after = f"{min(steps)} to " * (len(set(steps)) > 1) + counted(max(steps))
        whose = "Its program" if len(missing) == 1 else f"The program of {who(short)}"
        why += f" {whose} ended after {after}, and the schedule needs {max(needed)}."
    listed = ranks_text(missing)
    return MISSING_RANKS.verdict(
        MISSING_RANKS.finding(
            "info" if single_file else "warning",
            "high",
            f"{len(missing)} of {world} ranks {'has' if len(missing) == 1 else 'have'} no "
            f"{'usable ' * unusable}trace: {listed}.{why}",
            [Evidence(Fact.RANKS_WITHOUT_A_TRACE, len(missing), "ranks", 0)],
            ranks=missing[:_MOST_LISTED],
            cause=_ENDED_EARLY if len(short) == len(missing) else None,
        )
    )


_INCOMPLETE = (
    "torch writes one thread behind the other: some of each step may be missing. What compares this rank with others "
    "is not judged."
)
_INCOMPLETE_GPU = (
    "torch writes what the GPU did last, and not in order of time: some of each step may be missing, and looks idle. "
    "So idle time is not judged here, nor what compares this rank with others."
)


def judge_damage(ranks: Sequence[RankSummary], problems: Sequence[tuple[str, str]]) -> Verdict:
    """TO-V002: one finding a file, so that each is named."""
    found = []
    for summary in ranks:
        if summary.damage:
            what = "; ".join(summary.damage)
            read = f"{summary.event_count} events were read"
            used = f"{read} and are used."
            if summary.incomplete:
                used = f"{read}. {_INCOMPLETE_GPU if summary.on_gpu else _INCOMPLETE}"
            found.append(
                DAMAGED.finding(
                    "warning",
                    "high",
                    f"{summary.path}: {what}. {used}",
                    [Evidence(Fact.DAMAGE, what, rank=summary.rank), Evidence(Fact.EVENTS_READ, summary.event_count)],
                    ranks=[summary.rank],
                )
            )
    for path, what in problems:
        found.append(
            DAMAGED.finding("warning", "high", f"{path}: {what}.", [Evidence(Fact.NOT_USED, f"{path}: {what}")])
        )
    return DAMAGED.verdict(*found, clear="every file was read to its end")


def judge_backward_sync(ranks: Sequence[RankSummary], manifest: dict[str, Any]) -> Verdict:
    """TO-V004: gradient synchronisation inside backward where it is promised."""
    training = manifest.get("training")
    promised = training.get("syncs_in_backward") if isinstance(training, dict) else None
    groups = (len(group.ranks) for summary in ranks for group in summary.meta.groups)
    worlds = (summary.meta.world_size or 0 for summary in ranks)
    world = max((*groups, *worlds, manifest.get("world_size") or 0), default=0)  # 0: nothing tells
    seen = next((summary.backward.promised_by for summary in ranks if summary.backward.promised_by), "")
    if promised is False:
        return NO_SYNC_IN_BACKWARD.clear(f"{manifest.get('strategy')} synchronises after backward, by its design")
    if promised is None and not seen:
        return NO_SYNC_IN_BACKWARD.not_evaluated("nothing says that gradients are synchronised inside backward")
    if world == 1:
        return NO_SYNC_IN_BACKWARD.not_evaluated("there is only one rank, nothing to synchronise with")
    if world == 0 and len(ranks) == 1 and not len(ranks[0].comm.start):
        return NO_SYNC_IN_BACKWARD.not_evaluated(
            "the trace holds no collective and does not tell of other ranks: this may be the only one"
        )
    with_backward = {s.rank: s.backward for s in ranks if s.backward.steps_with_backward}
    if not with_backward:
        return NO_SYNC_IN_BACKWARD.not_evaluated("the traces hold no backward pass")
    if not any(backward.launches_known for backward in with_backward.values()):
        return NO_SYNC_IN_BACKWARD.not_evaluated("the traces do not say when their collectives were launched")
    if any(backward.steps_synchronised for backward in with_backward.values()):
        return NO_SYNC_IN_BACKWARD.clear("collectives were launched inside backward")
    by_host = manifest.get("backend") == "gloo" and any(summary.on_gpu for summary in ranks)
    if by_host or any(summary.through_host for summary in ranks):
        return NO_SYNC_IN_BACKWARD.not_evaluated("gloo's collectives launch nothing on a GPU")
    behind = [reduced_behind_step(summary.comm) for summary in ranks]
    if any(behind) or None in behind:
        most = max((size for size in behind if size is not None), default=0)
        if most >= _MODEL_BYTES:
            return NO_SYNC_IN_BACKWARD.clear(
                "no collective was launched inside backward; parameters are averaged behind the optimizer's step "
                "instead, as local SGD does"
            )
        size = f"{size_text(most)} are reduced" if None not in behind else "something is reduced"
        return NO_SYNC_IN_BACKWARD.not_evaluated(
            f"no collective was launched inside backward; {size} behind the optimizer's step, which may be parameters "
            "(local SGD) or what was measured"
        )
    who = seen or f"the strategy {manifest.get('strategy')}"
    steps = max(backward.steps_with_backward for backward in with_backward.values())
    return NO_SYNC_IN_BACKWARD.verdict(
        NO_SYNC_IN_BACKWARD.finding(
            "warning",
            "high",
            f"Outside of no_sync() {who} synchronises gradients inside backward, but none of the {steps} steps with a "
            "backward pass launched a collective there.",
            [Evidence(Fact.STEPS_SYNCHRONISED_INSIDE_BACKWARD, 0, "steps", 1), Evidence(Fact.PROMISED_BY, who)],
            ranks=sorted(with_backward),
        )
    )
