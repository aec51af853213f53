"""TO-V008 and TO-V009: traces that hold no GPU activity, or none that is known as communication."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.rank_text import who_first
from traceops.core.rule import Verdict, described
from traceops.core.step_words import StepWords
from traceops.core.units import stored
from traceops.measure.summary import RankSummary

KERNELS_MISSING = described("validity", "TO-V008")

NO_COMMUNICATION_SEEN = described("validity", "TO-V009")

_MOST_KERNELS = 5  # named where none is known as communication


def judge_kernels(ranks: Sequence[RankSummary]) -> Verdict:
    """TO-V008: operators of the host stand in for the device's work, so nothing is known of the device."""
    lost = [summary.rank for summary in ranks if summary.kernels_lost]
    if not lost:
        return KERNELS_MISSING.clear("no trace launches kernels that it does not hold")
    return KERNELS_MISSING.verdict(
        KERNELS_MISSING.finding(
            "warning",
            "high",
            f"{who_first(lost)} launched kernels, and the trace{'s hold' if len(lost) > 1 else ' holds'} none of "
            "them. What is called compute here is the time of the host's operators; nothing is known of the GPU.",
            [Evidence(Fact.RANKS_WITHOUT_GPU_ACTIVITY, len(lost), "ranks", 0)],
            ranks=lost,
        )
    )


def judge_communication(ranks: Sequence[RankSummary], world: int, words: StepWords) -> Verdict:
    """TO-V009: communication that nobody recognises looks like compute. words: what to call the step."""
    if world < 2:
        return NO_COMMUNICATION_SEEN.not_evaluated("there is only one rank")
    on_gpu = [summary for summary in ranks if summary.on_gpu]
    if not on_gpu:
        return NO_COMMUNICATION_SEEN.not_evaluated("the traces hold no GPU activity")
    if any(len(summary.comm.start) for summary in ranks):
        return NO_COMMUNICATION_SEEN.clear("the traces hold communication")
    if any(summary.through_host for summary in ranks):
        return NO_COMMUNICATION_SEEN.not_evaluated("gloo's collectives launch nothing on a GPU")
    first = on_gpu[0]
    steps = max(len(first.step_numbers), 1)
    return NO_COMMUNICATION_SEEN.verdict(
        NO_COMMUNICATION_SEEN.finding(
            "info",
            "medium",
            f"No kernel is known as communication, though the run has {world} ranks. Communication may be among the "
            "kernels that count as compute here.",
            [
                Evidence(
                    Fact.KERNEL,
                    stored(kernel.total_us / 1e3 / steps),
                    words.unit("ms"),
                    rank=first.rank,
                    subject=kernel.name,
                )
                for kernel in first.kernels[:_MOST_KERNELS]
            ]
            or [Evidence(Fact.KERNELS_KNOWN_AS_COMMUNICATION, 0, "kernels", 1)],
            ranks=[summary.rank for summary in on_gpu],
        )
    )
