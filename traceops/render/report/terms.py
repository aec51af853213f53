"""What the page calls each number, what it means in one line, and its colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from traceops.across.lateness import CAUSES as LATENESS_CAUSES
from traceops.measure.ledger import BUCKETS


@dataclass(frozen=True)
class Term:
    """A bucket of the step ledger for people; colours from Okabe and Ito, safe for colour-blind readers."""

    label: str
    colour: str
    definition: str


TERMS: dict[str, Term] = {
    "compute": Term("Compute", "#0072B2", "A compute kernel (on a CPU: an operator) runs."),
    "comm_transfer": Term(
        "Transfer", "#E69F00", "A collective runs with every member there, and no compute beside it."
    ),
    "comm_wait": Term(
        "Waiting for ranks",
        "#D55E00",
        "A collective runs but still waits for a member; no compute beside it.",
    ),
    "comm_unmatched": Term(
        "Communication, unmatched",
        "#B58B5A",
        "A collective runs that could not be matched across ranks: waiting or transfer, not known which.",
    ),
    "memory": Term("Memory copies", "#CC79A7", "A memcpy or memset runs, and nothing else."),
    "idle_input": Term(
        "Idle: input", "#009E73", "Nothing runs; the thread that launches next is inside data loading."
    ),
    "idle_sync": Term(
        "Idle: host blocked",
        "#F0E442",
        "Nothing runs; the launching thread was waiting for the device (.item(), synchronize) when it ran dry.",
    ),
    "idle_host": Term(
        "Idle: launched late", "#56B4E9", "Nothing runs; the next kernel was launched after the gap began."
    ),
    "idle_dependency": Term(
        "Idle: dependency",
        "#7A7A7A",
        "Nothing runs; the next kernel had been launched and waited for an event or another stream.",
    ),
    "idle_gap": Term("Idle: gaps", "#BDBDBD", "Gaps shorter than 1 µs between kernels."),
}
if tuple(TERMS) != BUCKETS:
    raise RuntimeError("report/terms.py and the ledger disagree on the buckets")

TRANSFER = "transfer"  # what the critical path calls a collective with all members there
KINDS = {"compute": TERMS["compute"], "comm": TERMS["comm_transfer"], "memory": TERMS["memory"]}


def term_of(kind: Any) -> Term:
    """Name and colour of a piece: a bucket of the ledger, or 'transfer'."""
    key = "comm_transfer" if kind == TRANSFER else str(kind)
    return TERMS.get(key) or Term("Other", "#444444", "")


# Why a rank is late [analyses/lateness.py]: (its name in a table, what the rank does).
CAUSES: dict[str, tuple[str, str]] = {
    "gpu_compute": ("GPU", "its GPU computes longer"),
    "host": ("Host", "its host launches later"),
    "input": ("Input", "it waits longer for its input"),
    "copy": ("Copies", "it copies longer"),
    "unknown": ("Unknown", "no single cause explains it"),
}
if tuple(CAUSES) != LATENESS_CAUSES:
    raise RuntimeError("report/terms.py and the lateness disagree on the causes")

COLUMNS: dict[str, str] = {
    "Step": "Device time of one step; on the table the median over the rank's steps.",
    "Idle, compute, non-compute": (
        "Shares of the device time from the first to the last activity, by HTA's definitions: nothing runs; compute "
        "runs; only communication or memory copies run."
    ),
    "Overlap": "Share of the communication time in which compute runs as well.",
    "Exposed": (
        "Communication with no compute at the same moment: transfer + waiting + unmatched in the ledger."
    ),
    "Wait": "Time in collectives before their last member arrived, hidden behind compute or not.",
    "Transfer": "Time in collectives after their last member arrived, hidden behind compute or not.",
    "Caused wait": (
        "What all other ranks waited in collectives that this rank entered last; can exceed the step, as it sums "
        "over ranks."
    ),
    "Share of caused": "This rank's part of all waiting that any rank caused.",
    "Bus bandwidth": (
        "Bytes ÷ median transfer × 2(n−1)/n for all-reduce, (n−1)/n for all-gather, reduce-scatter and all-to-all, "
        "1 otherwise; as nccl-tests counts. GB are 10⁹ bytes."
    ),
    "Impact": "What a finding costs a step on its worst rank; findings overlap, so impacts do not add up.",
    "Confidence": "How sure the finding is, apart from how bad it is.",
}
