"""What the page calls each number, what it means in one line, its colour, and how much a run gets done a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from traceops.core.claims import first_phrase, phrases
from traceops.core.rank_files import round_steps
from traceops.core.units import digits_text, number_text
from traceops.core.words import BUCKETS as BUCKET_WORDS
from traceops.core.words import STEP, STEPS_FOUND, WINDOW, StepWords, steps_found_text
from traceops.render.cells import Cell
from traceops.render.document import Block, Section
from traceops.report.model import Report
from traceops.report.summary import Flops
from traceops.words.catalogue import texts


class BucketTerm(Struct, frozen=True):
    """A bucket of the step ledger for people; colours from Okabe and Ito, safe for colour-blind readers."""

    label: str
    colour: str
    definition: str


_COLOURS = {
    "compute": "#0072B2", "comm_transfer": "#E69F00", "comm_wait": "#D55E00", "comm_unmatched": "#B58B5A",
    "memory": "#CC79A7", "idle_input": "#009E73", "idle_sync": "#F0E442", "idle_host": "#56B4E9",
    "idle_dependency": "#7A7A7A", "idle_unknown": "#4D4D4D", "idle_gap": "#BDBDBD",
}  # fmt: skip
TERMS: dict[str, BucketTerm] = {
    bucket: BucketTerm(BUCKET_WORDS[bucket].label, colour, BUCKET_WORDS[bucket].definition)
    for bucket, colour in _COLOURS.items()
}
COMPUTE, COMM_TRANSFER, COMM_WAIT = TERMS["compute"], TERMS["comm_transfer"], TERMS["comm_wait"]
NOT_TOLD_APART = "not_told_apart"  # in place of `late`, where a schedule's own bubble is not known
BUBBLE: dict[str, BucketTerm] = {  # parts of comm_wait, in the order of BubbleTimes
    name: BucketTerm(f"… {label}", COMM_WAIT.colour, definition)
    for name, (label, _, definition) in (
        (name, line.partition(" | ")) for name, line in texts("page", "bubble").items()
    )
}
TRANSFER = "transfer"  # what the critical path calls a collective with all members there
KINDS = {"compute": COMPUTE, "comm": COMM_TRANSFER, "memory": TERMS["memory"]}


def term_of(kind: Any) -> BucketTerm:
    """Name and colour of a piece: a bucket of the ledger, or 'transfer'."""
    key = "comm_transfer" if kind == TRANSFER else str(kind)
    return TERMS.get(key) or BucketTerm("Other", "#444444", "")


def say(section: str, part: str, words: StepWords = STEP, /, **facts: Any) -> str:
    """A text of words/page.ini: those of its sentences whose facts are known."""
    return " ".join(filter(None, phrases("page", section, part, window=words is WINDOW, noun=words.noun, **facts)))


def say_first(section: str, part: str, words: StepWords = STEP, /, **facts: Any) -> str:
    """The first of the sentences whose facts are known; '' without any."""
    return first_phrase("page", section, part, window=words is WINDOW, noun=words.noun, **facts)


def section_of(id: str, blocks: Sequence[Block], words: StepWords = STEP, /, **facts: Any) -> Section:
    """A section whose heading, name and line while it is closed words/page.ini has; heading and line take the facts."""
    heading, brief = say(id, "heading", words, **facts), say_first(id, "brief", words, **facts)
    return Section(id, heading, tuple(blocks), say(id, "nav", words, **facts), brief)


def _columns(words: StepWords) -> dict[str, tuple[str, str, str]]:
    return {key: say("columns", key, words).partition(" | ") for key in texts("page", "columns")}


def meanings(words: StepWords = STEP) -> dict[str, str]:
    """What columns of several tables mean, by the name that words/tables.ini has for it."""
    return {key: meaning for key, (_, _, meaning) in _columns(words).items()}


COLUMNS: dict[str, str] = {label: meaning for label, _, meaning in _columns(STEP).values()}


def speed_text(report: Report) -> str:
    """'312 samples/s, 40 000 tokens/s, MFU 38 % (376 of 989.4 TFLOP/s in bf16)', as far as it is known."""
    known = ((report.summary.samples_per_s, "samples/s"), (report.summary.tokens_per_s, "tokens/s"))
    parts = [f"{number_text(value)} {unit}" for value, unit in known if value is not None]
    if (flops := report.summary.flops) is not None and flops.mfu_pct is not None:
        recorded = "" if report.summary.plain_ms else " as recorded"
        parts.append(f"MFU {digits_text(flops.mfu_pct, 3)} %{recorded} ({_of_peak(flops)})")
    elif flops is not None and flops.tflops_per_s is not None:
        parts.append(f"{number_text(flops.tflops_per_s)} TFLOP/s a rank")
    return ", ".join(parts)


def speed_facts(report: Report) -> list[tuple[str, Cell]]:
    """The same for the page's strip of facts; on GPUs also that MFU is not known, and why."""
    known = (("Samples a second", report.summary.samples_per_s), ("Tokens a second", report.summary.tokens_per_s))
    facts = [(label, Cell(number_text(value), "of all ranks")) for label, value in known if value is not None]
    if (flops := report.summary.flops) is None or report.run.device_type != "cuda":
        return facts
    if flops.mfu_pct is not None:
        return [*facts, ("MFU", Cell(f"{digits_text(flops.mfu_pct, 3)} %", f"{_of_peak(flops)}; {flops.peak_source}"))]
    key = flops.why or ("no_precision" if flops.precision is None else "no_peak")
    why = say("speed", key, precision=flops.precision, device=flops.device or say("speed", "these"))
    return [*facts, ("MFU", Cell("–", f"not known: {why}", "unknown"))]


def _of_peak(flops: Flops) -> str:
    return f"{number_text(flops.tflops_per_s or 0.0)} of {flops.peak_tflops or 0.0:g} TFLOP/s in {flops.precision}"


def how_found(report: Report) -> str:
    """'found by Optimizer.step'; '' where the profiler marked the steps, or nothing did."""
    if (by := report.summary.steps_found_by) is None or by == "profiler" or by not in STEPS_FOUND:
        return ""
    return STEPS_FOUND[by].format(mark=report.summary.step_mark)


def steps_found(report: Report) -> str:
    """The same behind their number: '20 steps found by Optimizer.step'."""
    by, count = report.summary.steps_found_by, len(report.run.steps)
    if not how_found(report) or by is None or not count:
        return ""
    return steps_found_text(count, by, report.summary.step_mark)


def kinds_sentence(report: Report) -> str:
    """That no step is a whole round of the training; '' where all steps are alike, as far as known."""
    if (kinds := report.summary.step_kinds) is None:
        return ""
    another = f"another optimizer's {kinds.another}" if kinds.another in kinds.ends else kinds.another
    every = round_steps(kinds.steps, kinds.count)
    return say(
        "kinds", "sentence", ends=" or ".join(kinds.ends), another=another, count=kinds.count, of=kinds.steps,
        every=every, round=kinds.round_ms,
    )  # fmt: skip
