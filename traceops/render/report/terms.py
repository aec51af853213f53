"""What the page calls each number, what it means in one line, and its colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from traceops.core.cause_words import BUCKETS as BUCKET_WORDS
from traceops.core.claims import first_phrase, phrases
from traceops.core.words import STEP, WINDOW, StepWords
from traceops.render.document import Block, Section


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
# Of comm_wait, in the order of BubbleTimes.
BUBBLE: dict[str, BucketTerm] = {
    name: BucketTerm(f"… {label}", COMM_WAIT.colour, definition)
    for name, label, definition in (
        ("bubble", "of it pipeline bubble", "Of waiting: stages of a pipeline that wait for each other's sends."),
        ("fill", "of it fill", "Of the bubble: the first micro-batch is on its way in."),
        ("drain", "of it drain", "Of the bubble: the last micro-batch's gradients are on their way out."),
        ("imbalance", "of it imbalance", "Of the bubble: for a stage that takes longer."),
        ("late", "of it late sends", "Of the bubble: what even stages with this many micro-batches would not wait."),
        (
            NOT_TOLD_APART,
            "of it the rest",
            "Of the bubble: filling, draining and late sends. They cannot be told apart, because the schedule's own "
            "bubble is not known.",
        ),
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


def section_of(id: str, blocks: Sequence[Block], words: StepWords = STEP, **facts: Any) -> Section:
    """A section whose heading and name words/page.ini has."""
    return Section(id, said(id, "heading", words, **facts), tuple(blocks), said(id, "nav", words))


def step_column(words: StepWords) -> str:
    """What a rank's step is."""
    mean = words.choose("one step: the mean over the rank's typical steps", "the window")
    return f"Device time of {mean}, which its ledger adds up to."


def caused_wait_column(words: StepWords) -> str:
    """What a rank's caused waiting is."""
    return (
        f"What all other ranks waited in collectives that this rank entered last; can exceed {words.the}, as it sums "
        "over ranks."
    )


COLUMNS: dict[str, str] = {
    "Step": step_column(STEP),
    "Idle, compute, non-compute": (
        "Shares of the device time from the first to the last activity, by HTA's definitions: nothing runs; compute "
        "runs; only communication or memory copies run."
    ),
    "Overlap": "Share of the communication time in which compute runs as well.",
    "Exposed": ("Communication with no compute at the same moment: transfer + waiting + unmatched in the ledger."),
    "Wait": (
        "Time in collectives before their last member arrived, with no compute beside it: comm_wait of the ledger. "
        "wait_ms in the files counts what compute hides too."
    ),
    "Transfer": (
        "Time in collectives after their last member arrived, with no compute beside it: comm_transfer of the ledger. "
        "transfer_ms in the files counts what compute hides too."
    ),
    "Caused wait": caused_wait_column(STEP),
    "Share of caused": "This rank's part of all waiting that any rank caused.",
    "Bus bandwidth": (
        "Bytes ÷ median transfer × 2(n−1)/n for all-reduce, (n−1)/n for all-gather, reduce-scatter and all-to-all, "
        "1 otherwise; as nccl-tests counts. GB are 10⁹ bytes."
    ),
    "Impact": "What a step would be shorter without the finding, at most; findings overlap, so impacts do not add up.",
    "Confidence": "How sure the finding is, apart from how bad it is.",
}
