"""What the page calls each number, what it means in one line, and its colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from traceops.core.claims import first_phrase, phrases
from traceops.core.words import BUCKETS as BUCKET_WORDS
from traceops.core.words import STEP, WINDOW, StepWords
from traceops.render.document import Block, Section
from traceops.words.catalogue import texts


class BucketTerm(Struct, frozen=True):
    """A bucket of the step ledger for people; colours from Okabe and Ito, safe for colour-blind readers."""

    label: str
    colour: str
    definition: str


def _term(bucket: str, colour: str) -> BucketTerm:
    words = BUCKET_WORDS[bucket]
    return BucketTerm(words.label, colour, words.definition)


COMPUTE = _term("compute", "#0072B2")
COMM_TRANSFER = _term("comm_transfer", "#E69F00")
COMM_WAIT = _term("comm_wait", "#D55E00")
MEMORY = _term("memory", "#CC79A7")
TERMS: dict[str, BucketTerm] = {
    "compute": COMPUTE,
    "comm_transfer": COMM_TRANSFER,
    "comm_wait": COMM_WAIT,
    "comm_unmatched": _term("comm_unmatched", "#B58B5A"),
    "memory": MEMORY,
    "idle_input": _term("idle_input", "#009E73"),
    "idle_sync": _term("idle_sync", "#F0E442"),
    "idle_host": _term("idle_host", "#56B4E9"),
    "idle_dependency": _term("idle_dependency", "#7A7A7A"),
    "idle_unknown": _term("idle_unknown", "#4D4D4D"),
    "idle_gap": _term("idle_gap", "#BDBDBD"),
}
NOT_TOLD_APART = "not_told_apart"  # in place of `late`, where a schedule's own bubble is not known
BUBBLE: dict[str, BucketTerm] = {  # parts of comm_wait, in the order of BubbleTimes
    name: BucketTerm(f"… {label}", COMM_WAIT.colour, definition)
    for name, (label, _, definition) in (
        (name, line.partition(" | ")) for name, line in texts("page", "bubble").items()
    )
}
TRANSFER = "transfer"  # what the critical path calls a collective with all members there
KINDS = {"compute": COMPUTE, "comm": COMM_TRANSFER, "memory": MEMORY}


def term_of(kind: Any) -> BucketTerm:
    """Name and colour of a piece: a bucket of the ledger, or 'transfer'."""
    key = "comm_transfer" if kind == TRANSFER else str(kind)
    return TERMS.get(key) or BucketTerm("Other", "#444444", "")


def said(section: str, part: str, words: StepWords = STEP, /, **facts: Any) -> str:
    """A text of words/page.ini: those of its sentences whose facts are known."""
    return " ".join(filter(None, phrases("page", section, part, window=words is WINDOW, noun=words.noun, **facts)))


def first_said(section: str, part: str, words: StepWords = STEP, /, **facts: Any) -> str:
    """The first of the sentences whose facts are known; '' without any."""
    return first_phrase("page", section, part, window=words is WINDOW, noun=words.noun, **facts)


def section_of(id: str, blocks: Sequence[Block], words: StepWords = STEP, /, **facts: Any) -> Section:
    """A section whose heading, name and line while it is closed words/page.ini has; heading and line take the facts."""
    heading, brief = said(id, "heading", words, **facts), first_said(id, "brief", words, **facts)
    return Section(id, heading, tuple(blocks), said(id, "nav", words, **facts), brief)


def _columns(words: StepWords) -> dict[str, tuple[str, str, str]]:
    return {key: said("columns", key, words).partition(" | ") for key in texts("page", "columns")}


def meanings(words: StepWords = STEP) -> dict[str, str]:
    """What columns of several tables mean, by the name that words/tables.ini has for it."""
    return {key: meaning for key, (_, _, meaning) in _columns(words).items()}


COLUMNS: dict[str, str] = {label: meaning for label, _, meaning in _columns(STEP).values()}
