"""What TO-O001 tells of the collectives behind it: how many they are, where in the step, and in how many passes."""

from __future__ import annotations

from traceops.across.cross_rank import CrossRank
from traceops.across.links import collective_bytes
from traceops.measure.exchanges import BACKWARD, FORWARD
from traceops.measure.phases import AFTER, UPDATED

MANY = 20  # small collectives a step
_PASSES = {FORWARD: "in forward", BACKWARD: "in backward", AFTER: "behind backward", UPDATED: "behind the optimizer"}


def in_each_pass(run: CrossRank) -> str:
    """That DDP reduces gradients in each of several backward passes that one step of the optimizer follows."""
    seen = {(times.summary.backward.passes, times.summary.backward.reduced) for times in run.ranks}
    passes, reduced = next(iter(seen))
    if len(seen) > 1 or passes < 2 or reduced < passes:
        return ""
    return (
        f" Gradients are reduced in each of the {passes} backward passes of a step: with no_sync() around all but the "
        f"last it would be 1/{passes} of that."
    )


def _where(run: CrossRank) -> str:
    """In which pass the collectives of the first rank are called, behind a colon, where backward is seen."""
    first = run.ranks[0]
    phase = first.summary.comm.phase[first.summary.comm.step >= 0]
    steps = max(len(first.duration), 1)
    parts = [
        f"{count / steps:.0f} {said}"
        for number, said in _PASSES.items()
        if (count := int((phase == number).sum())) >= steps
    ]
    return f": {', '.join(parts)}" if (phase == BACKWARD).any() and parts else ""


def of_unknown_size(run: CrossRank) -> str:
    """That it comes in many collectives, where nothing says whether they are small (TO-O002)."""
    matched = run.matching.collectives
    first = run.ranks[0]
    count = sum(first.summary.rank in c.group for c in matched) / max(len(first.duration), 1)
    if count < MANY or any(collective_bytes(c) for c in matched):
        return ""
    return (
        f" It comes in {count:.0f} collectives {run.step_words.per}{_where(run)}. The traces do not say how large they "
        "are (traceops run and record_shapes=True do): latency sets the time of small ones, and fewer, larger ones "
        "cost less."
    )
