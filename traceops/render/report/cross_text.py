"""What the page says in one sentence about the replay, the clocks, the critical path and the waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from traceops.core.bucket_words import BUCKETS as BUCKET_WORDS
from traceops.core.findings import Check
from traceops.core.rank_text import ranks_text
from traceops.core.step_words import StepWords
from traceops.core.units import percent_text, us_text
from traceops.core.words import SCHEDULES
from traceops.measure.ledger import BUCKETS
from traceops.render.report.then_text import least_note, unfit_note
from traceops.report.cross_rows import PipelineRow
from traceops.report.model import Report
from traceops.rules import stragglers

_LEAST_PART_PCT = 4.0  # of the critical path, to be named
_MOST_PARTS = 4
_MOSTLY = 0.75  # of a bucket's time on the path, to be one rank's
_DOUBTFUL_PCT = 5.0  # error of the replay from which predictions are to be taken with care
_NO_SLOWDOWN = 1.02


def check_of(report: Report, rule: str) -> Check | None:
    """What a rule says about this run, None where nobody asked it."""
    return next((check for check in report.checks if check.rule == rule), None)


def replay_sentence(report: Report) -> str:
    """How far the replay is from the measured steps, and what the stragglers cost the whole job."""
    replay = report.summary.replay
    if replay is None:
        return ""
    said, words = "", report.summary.step_words
    error = replay.error_pct
    if error is not None:
        doubt = ", so take the predictions with care" if error > _DOUBTFUL_PCT else ""
        steps = replay.steps
        which = f"steps {ranks_text(steps, 4)}" if len(steps) > 1 else words.the
        said = f"Unchanged, the replay of {which} is within {percent_text(error)} of what was measured{doubt}."
    if note := least_note(report):
        said += f" {note[:1].upper()}{note[1:]}."
    slowdown = replay.straggler_slowdown
    if unfit := unfit_note(report):
        said += f" {unfit[:1].upper()}{unfit[1:]}."
        slowdown = None
    late = any(found.rule in stragglers.IDS and found.severity != "info" for found in report.findings)
    if slowdown is not None and slowdown < _NO_SLOWDOWN and late:
        slowdown = None  # with half of the ranks late their median is no measure
    if slowdown is not None and slowdown < _NO_SLOWDOWN:
        said += f" Making all ranks equal would save next to nothing (straggler slowdown S = {slowdown:.2f})."
    elif slowdown is not None:
        they = words.choose("they", "it")
        said += (
            f" {words.choose('Steps take', 'The window takes')} {slowdown:.2f} times as long as {they} would if every "
            "rank ran as the median rank does "
            f"(straggler slowdown S = {slowdown:.2f})."
        )
    return said.strip()


def clocks_sentence(report: Report) -> str:
    """How well the ranks' clocks fit together; empty for one rank."""
    clocks = report.summary.clocks
    if len(report.ranks) < 2 or clocks is None:
        return ""
    residual = clocks.residual_p95_us
    if residual is None:
        return "No collective synchronises the ranks, so the clocks are as the traces have them."
    said = f"Clocks agree within {us_text(residual)} (p95 over {clocks.anchors} collectives)."
    if clocks.unaligned:
        said += f" Not aligned: ranks {ranks_text(clocks.unaligned, 8)}."
    return said


def pipeline_sentence(pipeline: PipelineRow, words: StepWords) -> str:
    """'Ranks 0 to 3: 1F1B, 8 micro-batches a step. Stages wait 29 % of it; by the schedule alone, 27 %.'"""
    held = pipeline.stages_per_rank
    said = f"Ranks {', '.join(map(str, pipeline.ranks[:16]))}{' …' if len(pipeline.ranks) > 16 else ''}: "
    said += SCHEDULES[pipeline.schedule]
    if held is not None and held > 1:
        said += f", {held} stages a rank"
    if pipeline.micro_batches is not None:
        said += f", {pipeline.micro_batches} micro-batches {words.per}"
    said += f". Its stages wait {pipeline.bubble_pct:.0f} % of {words.a} for each other"
    if pipeline.schedule_bubble_pct is not None:
        said += f"; even ones would wait {pipeline.schedule_bubble_pct:.0f} % by the schedule alone"
    return f"{said}."


def path_sentence(report: Report) -> str:
    """'90 % of the path runs through rank 2's computation, 7 % through transfer.'; empty without a path."""
    spent, total = _path_parts(report)
    if not total:
        return ""
    parts: list[tuple[float, str]] = []
    for bucket, by_rank in spent.items():
        ms = sum(by_rank.values())
        parts.append((100 * ms / total, _part_text(bucket, by_rank, ms)))
    named = [part for part in sorted(parts, reverse=True) if part[0] >= _LEAST_PART_PCT][:_MOST_PARTS]
    if not named:
        return ""
    first, *rest = named
    others = "".join(f", {pct:.0f} % through {what}" for pct, what in rest)
    return f"{first[0]:.0f} % of the path runs through {first[1]}{others}."


def waiting_sentence(report: Report) -> str:
    """Why nobody is blamed, or why that was not judged; empty where a straggler was found."""
    check = check_of(report, stragglers.PERSISTENTLY_LATE.id)
    if check is None or check.status == "fired":
        return ""
    if check.status == "not_evaluated":
        return f"Not evaluated: {check.reason}."
    sometimes = check_of(report, stragglers.SOMETIMES_LATE.id)
    which = "No rank is late in most steps" if sometimes and sometimes.status == "fired" else "No straggler"
    return f"{which}: {check.reason}."


def _path_parts(report: Report) -> tuple[dict[str, dict[int, float]], float]:
    """ms of the path by bucket ('transfer' among them) and rank, and all of it."""
    spent: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    total = 0.0
    for row in report.tables.critical_path:
        rank, whole = row.rank, row.duration_ms
        told = {b: ms for b in BUCKETS if (ms := row.spent_ms.get(b))}
        for bucket, ms in told.items():
            spent[bucket][rank] += ms
        # What no bucket holds is own work that communication masked: the host's, as the kind says.
        spent[row.kind if not told else "idle_host"][rank] += max(whole - sum(told.values()), 0.0)
        total += whole
    return spent, total


def _part_text(bucket: str, by_rank: Mapping[int, float], ms: float) -> str:
    words = BUCKET_WORDS.get(bucket)
    if words is None or not words.of_rank:
        return bucket if bucket == "transfer" else "other work"
    most = max(by_rank, key=lambda rank: by_rank[rank])
    if by_rank[most] >= _MOSTLY * ms:
        return f"rank {most}'s {words.of_rank}"
    ranks = [rank for rank, own in by_rank.items() if own > 0.1 * by_rank[most]]
    return (
        f"{words.of_several} on ranks {ranks_text(ranks, 3)}"
        if len(ranks) <= 3
        else f"{words.of_several} on {len(ranks)} ranks"
    )
