"""TO-V001, TO-V002 and TO-V004: how far the traces can be trusted; other modules here have the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceops.across.gradients import reduced_behind_step
from traceops.core.capture_failure import CaptureFailure, advice_text, by_cause, cause_text
from traceops.core.findings import Evidence
from traceops.core.rank_text import ranks_text, who
from traceops.core.rule import Rule, Verdict
from traceops.core.shorter_schedule import counted
from traceops.core.units import size_text
from traceops.measure.summary import RankSummary
from traceops.rules.activity import KERNELS_MISSING, NO_COMMUNICATION_SEEN, judge_communication, judge_kernels
from traceops.rules.clocks import UNALIGNED_CLOCKS, judge_clocks
from traceops.rules.contradictions import CONTRADICTIONS, judge_contradictions
from traceops.rules.inputs import Inputs
from traceops.rules.profiler_cost import PROFILER_COST, judge_profiler
from traceops.rules.uneven_steps import ENDED_EARLY, UNEVEN_STEPS, judge_steps
from traceops.rules.whole_steps import NO_STEP_REASON, NO_WHOLE_STEP, ended_before
from traceops.rules.whole_steps import judge as judge_whole_steps
from traceops.traces.run_manifest import capture_failures

NOT_USED = "file not used"  # evidence of TO-V002
MISSING_RANKS = Rule(
    id="TO-V001",
    title="Ranks of the world have no trace",
    fires="Fires where the world size in run.json or in the traces is larger than the number of ranks found.",
    advice=(
        "Collect the missing ranks' traces: a straggler among them cannot be seen, and collectives they "
        "belong to cannot be split into waiting and transfer."
    ),
    by_cause=(ENDED_EARLY,),
)

DAMAGED = Rule(
    id="TO-V002",
    title="A trace is damaged or cannot be used",
    fires=(
        "Fires for every file that looks like a trace and is empty, cut off, not JSON, not of torch's "
        "profiler, a second trace of one rank or of another run. A trace is incomplete where it is cut off, or more "
        "than 1 % of its events are not readable: then what it lacks may be of any moment."
    ),
    advice=(
        "Capture again, or copy the file again; check the disk's free space and that the job was not killed "
        "while it wrote. What could be read is used, but for what its gaps would make wrong."
    ),
)

_MODEL_BYTES = 1_000_000  # of all steps together: what is less may be confusion matrices and counts
NO_SYNC_IN_BACKWARD = Rule(
    id="TO-V004",
    title="No gradient synchronisation inside backward",
    fires=(
        "Fires where the strategy, or DDP or FSDP seen in the trace, synchronises inside backward, and no "
        "collective was launched between backward's first and last function in any step, nor parameters averaged "
        "behind an optimizer's step (local SGD): below 1 MB reduced there nobody can tell."
    ),
    advice=(
        "If this window is gradient accumulation under no_sync(), capture a window with an optimizer step. Where "
        "models are averaged every few steps (local SGD), it is meant. Otherwise the gradients are not synchronised "
        "while backward runs, and nothing can overlap with it."
    ),
)

RULES = (
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


def judge(inputs: Inputs) -> list[Verdict]:
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
            [Evidence("ranks without a trace", len(missing), "ranks", 0)],
            ranks=missing[:_MOST_LISTED],
            cause=ENDED_EARLY[0] if len(short) == len(missing) else None,
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
                    [Evidence("damage", what, rank=summary.rank), Evidence("events read", summary.event_count)],
                    ranks=[summary.rank],
                )
            )
    for path, what in problems:
        found.append(DAMAGED.finding("warning", "high", f"{path}: {what}.", [Evidence(NOT_USED, f"{path}: {what}")]))
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
            [Evidence("steps synchronised inside backward", 0, "steps", 1), Evidence("promised by", who)],
            ranks=sorted(with_backward),
        )
    )
