"""TO-V: how far the traces can be trusted; validity_time has the profiler's cost and the clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from traceops.across.agreed_steps import apart_in_time
from traceops.across.cross_rank import CrossRank
from traceops.across.roles import reduced_behind_step
from traceops.core.capture_failure import CaptureFailure, advice_text, by_cause, cause_text, counted, shorter_schedule
from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Severity
from traceops.core.rank_text import ranks_text
from traceops.core.rule import Verdict, described
from traceops.core.text import short_name
from traceops.core.units import clock_text, size_text, stored
from traceops.core.words import STEPS_FOUND, WINDOW, StepWords, steps_found_text
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.rules import validity_claims
from traceops.rules.inputs import Inputs, OtherSteps
from traceops.rules.validity_claims import OtherSteps as RecordedOthers
from traceops.rules.validity_time import PROFILER_COST, UNALIGNED_CLOCKS, judge_clocks, judge_profiler
from traceops.traces.run_manifest import capture_failures

# TO-V007: traces that contradict each other, their names or run.json, and are used all the same.

CONTRADICTIONS = described("validity", "TO-V007")
RULES = (CONTRADICTIONS,)


def judge_contradictions(doubts: Sequence[tuple[str, str]], run: CrossRank) -> Verdict:
    """TO-V007: one finding a file, so that each is named."""
    doubted = {path for path, _ in doubts}
    claims: list[validity_claims.Contradiction | validity_claims.OtherCapture] = [
        validity_claims.Contradiction(file=_name(path), path=path, what=what) for path, what in doubts
    ]
    for one in apart_in_time([times.summary for times in run.ranks], run.matching):
        apart, when = clock_text(abs(one.after_ns) / 1e9), "before" if one.after_ns < 0 else "after"
        if one.path not in doubted:
            file, others = _name(one.path), tuple(one.others)
            other = validity_claims.OtherCapture(file=file, path=one.path, apart=apart, when=when, others=others)
            claims.append(other)
    found = [CONTRADICTIONS.finding("warning", "high", one, [Evidence(Fact.FILE, one.path)]) for one in claims]
    return CONTRADICTIONS.verdict(*found, clear=reason("validity", "fit_together"))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


# TO-V003: ranks that cover different steps.

_ENDED_EARLY = "ended_early"
UNEVEN_STEPS = described("validity", "TO-V003")


def judge_steps(ranks: Sequence[RankSummary], left_out: Sequence[OtherSteps]) -> Verdict:
    """TO-V003: the same steps on every rank."""
    if left_out:
        used, others = numbered_steps(ranks), {number for one in left_out for number in one.steps}
        odd, of_used = [one.rank for one in left_out], tuple(summary.rank for summary in ranks)
        claim = RecordedOthers(ranks=tuple(odd), steps=_span(others), used=of_used, used_steps=_span(set(used)))
        evidence = [Evidence(Fact.COMMON_STEPS, 0, "steps", len(used | others))]
        evidence += [Evidence(Fact.STEPS, _span(set(one.steps)), rank=one.rank) for one in left_out[:16]]
        return UNEVEN_STEPS.verdict(
            UNEVEN_STEPS.finding(
                "warning", "high", claim, evidence, ranks=odd, steps=sorted(others), cause=_ENDED_EARLY
            )
        )
    steps = {summary.rank: summary.numbered_steps for summary in ranks}
    if not any(steps.values()):
        return UNEVEN_STEPS.not_evaluated(reason("validity", "no_steps_marked"))
    if len(ranks) == 1:
        return UNEVEN_STEPS.not_evaluated(reason("validity", "one_rank"))
    common, every = set.intersection(*steps.values()), set.union(*steps.values())
    if common == every:
        return UNEVEN_STEPS.clear(reason("validity", "same_steps", count=len(every), span=_span(every)))
    odd = [rank for rank, own in steps.items() if own != every]
    uneven = validity_claims.UnevenSteps(ranks=tuple(odd), every=_span(every), common=len(common) or None)
    evidence = [Evidence(Fact.COMMON_STEPS, len(common), "steps", len(every))]
    evidence += [Evidence(Fact.STEPS, _span(steps[rank]), rank=rank) for rank in odd[:16]]
    severity: Severity = "warning" if any(summary.steps_by == "profiler" for summary in ranks) else "info"
    lacking = sorted(every - common)
    return UNEVEN_STEPS.verdict(UNEVEN_STEPS.finding(severity, "high", uneven, evidence, ranks=odd, steps=lacking))


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
_MUCH_LONGER = 1.5  # times the window: the recording, of which the rest is no part of any number


def judge_whole_steps(inputs: Inputs) -> Verdict:
    """TO-V010: whether there are whole steps."""
    ranks = inputs.ranks
    if cut := [summary.rank for summary in ranks if summary.steps_by == "cut_off"]:
        return _cut_off(cut, len(ranks), inputs.manifest)
    without = [summary.rank for summary in ranks if summary.steps_by == "window"]
    if len(without) < len(ranks):
        first = next(summary for summary in ranks if summary.steps_by in STEPS_FOUND)
        count = len(numbered_steps(ranks))
        return NO_WHOLE_STEP.clear(steps_found_text(count, first.steps_by, first.step_mark))
    empty = any(summary.empty_steps for summary in ranks)
    claim, longest = validity_claims.NoStepsMarked(empty=empty), max(ranks, key=lambda one: one.recorded_ns)
    window = int(longest.step_edges[-1] - longest.step_edges[0])
    evidence = [Evidence(Fact.STEP, stored(window / 1e6), "ms", subject=WINDOW.noun)]
    if longest.recorded_ns >= _MUCH_LONGER * window > 0:
        claim = replace(claim, covered=stored(window / 1e6), recorded=stored(longest.recorded_ns / 1e6))
    return NO_WHOLE_STEP.verdict(NO_WHOLE_STEP.finding("info", "high", claim, evidence, ranks=without))


def _cut_off(ranks: Sequence[int], count: int, manifest: dict[str, Any]) -> Verdict:
    entries = [entry for entry in manifest.get("ranks") or () if entry.get("rank") in ranks]
    steps = min((n for entry in entries if isinstance(n := entry.get("steps"), int)), default=None)
    shorter = None if steps is None else shorter_schedule(manifest.get("schedule"), steps)
    given_way = any(entry.get("status") == "given_way" for entry in entries)
    evidence = [Evidence(Fact.WHOLE_STEPS, 0, "steps", 1)]
    claim = validity_claims.CutOff(ranks=tuple(ranks) if len(ranks) < count else (), given_way=given_way)
    cause = "given_way" if given_way else None
    if not given_way and shorter is not None and steps is not None:
        cause = "too_short"
        evidence.append(Evidence(Fact.STEPS_OF_THE_PROGRAM, steps, "steps", shorter.needed))
        claim = replace(claim, ended=counted(steps), needed=shorter.needed, active=shorter.active, flags=shorter.flags)
    return NO_WHOLE_STEP.verdict(NO_WHOLE_STEP.finding("warning", "high", claim, evidence, ranks=ranks, cause=cause))


def ended_before(manifest: Mapping[str, Any], rank: int) -> tuple[int, int] | None:
    """The steps of a rank whose program ended by itself before its window, and those that the schedule needs."""
    entry: Mapping[str, Any] = next((one for one in manifest.get("ranks") or () if one.get("rank") == rank), {})
    steps = entry.get("steps")
    if entry.get("status") != "finished" or entry.get("traces") or not isinstance(steps, int):
        return None
    shorter = shorter_schedule(manifest.get("schedule"), steps)
    return None if shorter is None else (steps, shorter.needed)


MISSING_RANKS = described("validity", "TO-V001")
DAMAGED = described("validity", "TO-V002")
NO_SYNC_IN_BACKWARD = described("validity", "TO-V004")

_MOST_LISTED = 1024  # ranks named in one finding


def judge_traces(inputs: Inputs) -> list[Verdict]:
    """How far the traces can be trusted."""
    # TO-V002: one finding per file, so that each is named.
    found = []
    for summary in inputs.ranks:
        if summary.damage:
            what, untimed = "; ".join(summary.damage), summary.untimed if len(summary.damage) == 1 else 0
            claim = validity_claims.DamagedTrace(
                file=_name(summary.path),
                path=summary.path,
                what=what,
                events=summary.event_count,
                untimed=untimed > 0,
                incomplete=("gpu" if summary.on_gpu else "host") if summary.incomplete else None,
            )
            evidence = [Evidence(Fact.DAMAGE, what, rank=summary.rank), Evidence(Fact.EVENTS_READ, summary.event_count)]
            severity: Severity = "info" if 0 < untimed <= max(2, summary.event_count // 100) else "warning"
            cause = "untimed" if untimed else None
            found.append(DAMAGED.finding(severity, "high", claim, evidence, ranks=[summary.rank], cause=cause))
    for path, what in inputs.found.problems:
        unused = validity_claims.NotUsed(file=_name(path), path=path, what=what)
        found.append(DAMAGED.finding("warning", "high", unused, [Evidence(Fact.NOT_USED, f"{path}: {what}")]))
    return [
        judge_missing(
            inputs.run.world,
            [*(summary.rank for summary in inputs.ranks), *(one.rank for one in inputs.other_steps)],
            inputs.single_file,
            capture_failures(inputs.manifest),
            inputs.manifest,
            unusable=bool(inputs.found.problems),
        ),
        DAMAGED.verdict(*found, clear=reason("validity", "read_to_the_end")),
        judge_steps(inputs.ranks, inputs.other_steps),
        NO_SYNC_IN_BACKWARD.not_evaluated(reason("validity", "no_step"))
        if inputs.run.unit == "none"
        else judge_backward_sync(inputs.ranks, inputs.manifest),
        judge_profiler(inputs),
        judge_clocks(inputs.run, known=bool(inputs.manifest)),
        judge_contradictions(inputs.found.doubts, inputs.run),
        judge_kernels(inputs.ranks),
        judge_communication(inputs.ranks, inputs.run.world, inputs.run.step_words),
        judge_whole_steps(inputs),
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
    unusable: files were left out, which TO-V002 names."""
    if world <= len(present) or not (missing := sorted(set(range(world)) - set(present))):
        return MISSING_RANKS.clear(reason("validity", "all_present", world=world))
    causes = by_cause([failure for failure in failures if failure.rank in set(missing)])
    failed = " ".join(
        f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))}: {cause_text(failure)};"
        f" {advice_text(failure)}."
        for ranks, failure in causes
    )
    short = {rank: own for rank in missing[:_MOST_LISTED] if (own := ended_before(manifest or {}, rank)) is not None}
    steps, needed = zip(*short.values(), strict=True) if short else ((), ())
    claim = validity_claims.MissingRanks(
        count=len(missing),
        world=world,
        missing=ranks_text(missing),
        usable=unusable,
        failed=failed.removesuffix(".") or None,
        ended=f"{min(steps)} to " * (len(set(steps)) > 1) + counted(max(steps)) if short else None,
        ended_of=() if len(missing) == 1 else tuple(short),
        needed=max(needed, default=None),
    )
    severity: Severity = "info" if single_file else "warning"
    evidence = [Evidence(Fact.RANKS_WITHOUT_A_TRACE, len(missing), "ranks", 0)]
    ranks, cause = missing[:_MOST_LISTED], _ENDED_EARLY if len(short) == len(missing) else None
    return MISSING_RANKS.verdict(MISSING_RANKS.finding(severity, "high", claim, evidence, ranks=ranks, cause=cause))


def judge_backward_sync(ranks: Sequence[RankSummary], manifest: dict[str, Any]) -> Verdict:
    """TO-V004: gradient synchronisation inside backward where it is promised."""
    training = manifest.get("training")
    promised = training.get("syncs_in_backward") if isinstance(training, dict) else None
    seen = next(filter(None, (summary.backward.promised_by for summary in ranks)), "")
    if promised is False:
        return NO_SYNC_IN_BACKWARD.clear(reason("validity", "syncs_after", strategy=manifest.get("strategy")))
    if why := _no_promise(ranks, manifest, promised=bool(promised or seen)):
        return NO_SYNC_IN_BACKWARD.not_evaluated(reason("validity", why))
    with_backward = {s.rank: s.backward for s in ranks if s.backward.steps_with_backward}
    if any(backward.steps_synchronised for backward in with_backward.values()):
        return NO_SYNC_IN_BACKWARD.clear(reason("validity", "synchronised"))
    gloo = manifest.get("backend") == "gloo"
    if any(summary.through_host or (gloo and summary.on_gpu) for summary in ranks):
        return NO_SYNC_IN_BACKWARD.not_evaluated(reason("validity", "gloo"))
    after = [reduced_behind_step(summary.comm) for summary in ranks]
    if any(after) or None in after:
        return _averaged(after)
    by = seen or f"the strategy {manifest.get('strategy')}"
    claim = validity_claims.NoSync(
        promised=by, steps=max(backward.steps_with_backward for backward in with_backward.values())
    )
    evidence = [Evidence(Fact.STEPS_SYNCHRONISED_INSIDE_BACKWARD, 0, "steps", 1), Evidence(Fact.PROMISED_BY, by)]
    found = NO_SYNC_IN_BACKWARD.finding("warning", "high", claim, evidence, ranks=sorted(with_backward))
    return NO_SYNC_IN_BACKWARD.verdict(found)


def _no_promise(ranks: Sequence[RankSummary], manifest: Mapping[str, Any], *, promised: bool) -> str:
    """Why synchronisation inside backward cannot be expected, or not seen; empty where it can."""
    groups = (len(group.ranks) for summary in ranks for group in summary.meta.groups)
    worlds = (summary.meta.world_size or 0 for summary in ranks)
    world = max((*groups, *worlds, manifest.get("world_size") or 0), default=0)  # 0: nothing tells
    with_backward = [s.backward for s in ranks if s.backward.steps_with_backward]
    known = (
        ("nothing_promised", not promised),
        ("nothing_to_sync", world == 1),
        ("maybe_one_rank", world == 0 and len(ranks) == 1 and not len(ranks[0].comm.start)),
        ("no_backward", not with_backward),
        ("no_launches", not any(backward.launches_known for backward in with_backward)),
    )
    return next((why for why, holds in known if holds), "")


def _averaged(after: Sequence[int | None]) -> Verdict:
    """Something is reduced after the optimizer's step, of these sizes (None: unknown): parameters, where it is much."""
    most = max((size for size in after if size is not None), default=0)
    if most >= validity_claims.BOUNDS.model_bytes:
        return NO_SYNC_IN_BACKWARD.clear(reason("validity", "averaged"))
    size = "something is" if None in after else f"{size_text(most)} are"
    return NO_SYNC_IN_BACKWARD.not_evaluated(reason("validity", "maybe_averaged", size=size))


KERNELS_MISSING = described("validity", "TO-V008")
NO_COMMUNICATION_SEEN = described("validity", "TO-V009")

_MOST_KERNELS = 5  # named where none is known as communication


def judge_kernels(ranks: Sequence[RankSummary]) -> Verdict:
    """TO-V008: operators of the host stand in for the device's work, so nothing is known of the device."""
    if not (lost := {summary.rank: summary.gpu_calls for summary in ranks if summary.kernels_lost}):
        return KERNELS_MISSING.clear(reason("validity", "kernels_present"))
    evidence = [Evidence(Fact.RANKS_WITHOUT_GPU_ACTIVITY, len(lost), "ranks", 0)]
    claim = validity_claims.KernelsMissing(ranks=tuple(lost))
    found = KERNELS_MISSING.finding("warning", "high", claim, evidence, ranks=tuple(lost))
    advice = KERNELS_MISSING.advice_for("calls" if any(lost.values()) else None)
    return KERNELS_MISSING.verdict(replace(found, advice=advice))


def judge_communication(ranks: Sequence[RankSummary], world: int, words: StepWords) -> Verdict:
    """TO-V009: communication that nobody recognises looks like compute. words: what to call the step."""
    if world < 2:
        return NO_COMMUNICATION_SEEN.not_evaluated(reason("validity", "one_rank"))
    if not (on_gpu := [summary for summary in ranks if summary.on_gpu]):
        return NO_COMMUNICATION_SEEN.not_evaluated(reason("validity", "no_gpu_activity"))
    if any(len(summary.comm.start) for summary in ranks):
        return NO_COMMUNICATION_SEEN.clear(reason("validity", "communication"))
    if any(summary.through_host for summary in ranks):
        return NO_COMMUNICATION_SEEN.not_evaluated(reason("validity", "gloo"))
    first = on_gpu[0]
    steps, kernels = max(len(first.step_numbers), 1), [one for one in first.kernels if one.kind == "compute"]
    named = [(short_name(one.name), stored(one.total_us / 1e3 / steps)) for one in kernels[:_MOST_KERNELS]]
    evidence = [Evidence(Fact.KERNEL, ms, words.unit("ms"), rank=first.rank, subject=name) for name, ms in named] or [
        Evidence(Fact.KERNELS_KNOWN_AS_COMMUNICATION, 0, "kernels", 1)
    ]
    claim, seen = validity_claims.NoCommunication(world=world), [summary.rank for summary in on_gpu]
    return NO_COMMUNICATION_SEEN.verdict(NO_COMMUNICATION_SEEN.finding("info", "medium", claim, evidence, ranks=seen))


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
