"""How much a run gets done a second, in words."""

from __future__ import annotations

from traceops.core.rank_files import round_steps
from traceops.core.units import number_text
from traceops.core.words import STEPS_FOUND, steps_found_text
from traceops.render.cells import Cell
from traceops.render.report.terms import said
from traceops.report.model import Report
from traceops.report.summary import Flops


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
    key = flops.why or ("no_precision" if flops.precision is None else "no_peak")
    return said("speed", key, precision=flops.precision, device=flops.device or said("speed", "these"))


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
    return said(
        "kinds", "sentence", ends=" or ".join(kinds.ends), another=another, count=kinds.count, of=kinds.steps,
        every=every, round=kinds.round_ms,
    )  # fmt: skip
