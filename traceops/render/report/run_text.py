"""How much a run gets done a second, in words."""

from __future__ import annotations

from traceops.core.rank_files import round_steps
from traceops.core.rank_text import who
from traceops.core.units import ms_text, number_text
from traceops.core.words import STEPS_FOUND, steps_found_text
from traceops.render.cells import Cell
from traceops.report.model import Report
from traceops.report.step_times import WholeRunRows
from traceops.report.summary import Flops

# Why operations are not known; the keys are those of report.run.Flops.why.
WHY_NOT = {
    "no_products": "no operator that multiplies was recorded",
    "no_shapes": "shapes were not recorded (traceops run --record-shapes)",
    "unknown_shape": "of some operators the shapes do not tell the work",
    "uncounted": "kernels multiply that no recorded operator launched",
}


def speed_text(report: Report) -> str:
    """'312 samples/s, 40 000 tokens/s, MFU 38 % (376 of 989.4 TFLOP/s in bf16)', as far as it is known."""
    known = ((report.summary.samples_per_s, "samples/s"), (report.summary.tokens_per_s, "tokens/s"))
    parts = [f"{number_text(value)} {unit}" for value, unit in known if value is not None]
    flops = report.summary.flops
    if flops is not None and flops.mfu_pct is not None:
        recorded = "" if report.summary.plain_ms else " as recorded"
        parts.append(f"MFU {flops.mfu_pct:.1f} %{recorded} ({_of_peak(flops)})")
    elif flops is not None and flops.tflops_per_s is not None:
        parts.append(f"{number_text(flops.tflops_per_s)} TFLOP/s a rank")
    return ", ".join(parts)


def speed_facts(report: Report) -> list[tuple[str, Cell]]:
    """The same for the page's strip of facts; on GPUs also that MFU is not known, and why."""
    known = (("Samples a second", report.summary.samples_per_s), ("Tokens a second", report.summary.tokens_per_s))
    facts = [(label, Cell(number_text(value), "of all ranks")) for label, value in known if value is not None]
    flops = report.summary.flops
    if flops is None or report.run.device_type != "cuda":
        return facts
    if flops.mfu_pct is not None:
        return [*facts, ("MFU", Cell(f"{flops.mfu_pct:.1f} %", f"{_of_peak(flops)}; {flops.peak_source}"))]
    return [*facts, ("MFU", Cell("–", f"not known: {_why(flops)}", "unknown"))]


def _of_peak(flops: Flops) -> str:
    return f"{number_text(flops.tflops_per_s or 0.0)} of {flops.peak_tflops or 0.0:g} TFLOP/s in {flops.precision}"


def _why(flops: Flops) -> str:
    if flops.why is not None:
        return WHY_NOT[flops.why]
    if flops.precision is None:
        return "the kernels' names do not tell one precision"
    return f"no dense peak in {flops.precision} is known of {flops.device or 'these devices'}"


# How the steps of a report were found, in a few words.


def how_found(report: Report) -> str:
    """'found by Optimizer.step'; '' where the profiler marked the steps, or nothing did."""
    by = report.summary.steps_found_by
    if by is None or by == "profiler" or by not in STEPS_FOUND:
        return ""
    return STEPS_FOUND[by].format(mark=report.summary.step_mark)


def steps_found(report: Report) -> str:
    """The same behind their number: '20 steps found by Optimizer.step'."""
    by, count = report.summary.steps_found_by, len(report.run.steps)
    if not how_found(report) or by is None or not count:
        return ""
    return steps_found_text(count, by, report.summary.step_mark)


# What a step is where steps are of two kinds.


def kinds_sentence(report: Report) -> str:
    """That no step is a whole round of the training; '' where all steps are alike, as far as known."""
    kinds = report.summary.step_kinds
    if kinds is None:
        return ""
    another = f"another optimizer's {kinds.another}" if kinds.another in kinds.ends else kinds.another
    every = round_steps(kinds.steps, kinds.count)
    took = "" if kinds.round_ms is None else f", {ms_text(kinds.round_ms)} ms in the mean"
    return (
        f"Steps are of two kinds: one ends where {' or '.join(kinds.ends)} returns, and {another} runs in "
        f"{kinds.count} of {kinds.steps} only. A round of the training is {every:.3g} steps{took}: a typical step "
        "tells of the kind that comes most often"
    )


# What else is said of the whole run: steps that a gradient scaler left out, and a script that profiles itself.


def skipped_sentence(rows: WholeRunRows) -> str:
    """That a gradient scaler left steps out, as gradients were inf or NaN: they train nothing."""
    every = rows.steps + rows.recorded_steps + 1  # the first is not timed
    said = f" In {rows.skipped_steps} of all {every} steps the gradient scaler left the optimizer out (inf or NaN)."
    return said * bool(rows.skipped_steps)


def own_profiler_sentence(rows: WholeRunRows) -> str:
    """'' where no profiler of the script's own was at work."""
    if (own := rows.own_profiler) is None:
        return ""
    steps = f"step {own.first}" if own.first == own.last else f"{own.steps} of the steps {own.first} to {own.last}"
    steps = f"steps {own.first} to {own.last}" if 1 < own.steps == own.last - own.first + 1 else steps
    where = "" if own.where is None else f" ({own.where.replace(chr(92), '/').rpartition('/')[2]})"
    cost = "" if own.step_ms is None else f": one takes {ms_text(own.step_ms)} ms there"
    return f" The script's own profiler{where} is at work in {steps}{cost}."


def ended_sentence(rows: WholeRunRows) -> str:
    """That ranks made different numbers of steps, as with uneven inputs."""
    row = rows.ended_after
    if row is None:
        return ""
    return f" Ranks made different numbers of steps: {who(row.first)} {row.least}, others up to {row.most}."
