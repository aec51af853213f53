"""Words for why a rank is late, the same in reports, rules and comparisons. Literal maps, no logic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CauseWords:
    """One cause of a rank's lateness.

    label: its name in a table. clause: what the rank does, after a colon or in brackets. subject: how a sentence about
    rank {} begins. why: in brackets behind a rank, in few words. changed: the same for a rank that was not late before;
    changed_several: for several ranks.
    """

    label: str
    clause: str
    subject: str
    why: str
    changed: str
    cured: str = "at its peers' pace"
    changed_several: str = ""


# The keys are those of traceops.across.lateness.CAUSES.
CAUSES: Mapping[str, CauseWords] = {
    "gpu_compute": CauseWords(
        label="GPU",
        clause="its GPU computes longer",
        subject="Rank {}'s GPU computes longer",
        why="its GPU computes longer",
        changed="it computes longer",
        changed_several="they compute longer",
    ),
    "host": CauseWords(
        label="Host",
        clause="its host launches later",
        subject="Rank {}'s host launches late",
        why="its host launches late",
        changed="its host launches later",
        changed_several="their hosts launch later",
    ),
    "input": CauseWords(
        label="Input",
        clause="it waits longer for its input",
        subject="Rank {}'s input comes late",
        why="its input comes late",
        changed="it waits longer for its input",
        changed_several="they wait longer for their input",
    ),
    "copy": CauseWords(
        label="Copies",
        clause="it copies longer",
        subject="Rank {}'s memory copies take longer",
        why="its copies take longer",
        changed="it copies longer",
        changed_several="they copy longer",
    ),
    "unknown": CauseWords(
        label="Unknown",
        clause="no single cause explains it",
        subject="Rank {} is late",
        why="no single cause",
        changed="for no single reason",
        changed_several="for no single reason",
    ),
}

# The keys are those of traceops.core.findings.ComputesLonger: what is behind the cause gpu_compute;
# without GPUs, behind host.
COMPUTES_LONGER: Mapping[str, CauseWords] = {
    "slower": CauseWords(
        label="Slower GPU",
        clause="its GPU takes longer for the same work",
        subject="Rank {}'s GPU takes longer for the same work",
        why="slower at the same work",
        changed="its GPU takes longer for the same work",
    ),
    "more_work": CauseWords(
        label="More work",
        clause="it has more to compute than its peers",
        subject="Rank {} has more to compute than its peers",
        why="more to compute",
        changed="it has more to compute",
        cured="with the work shared evenly",
    ),
    "extra_kernels": CauseWords(
        label="Kernels of its own",
        clause="it runs kernels that its peers do not run",
        subject="Rank {} runs kernels that its peers do not run",
        why="kernels of its own",
        changed="it runs kernels that it did not run before",
        cured="without them",
    ),
    "more_calls": CauseWords(
        label="More launches",
        clause="it launches some kernels more often than its peers",
        subject="Rank {} launches some kernels more often than its peers",
        why="more launches of some kernels",
        changed="it launches some kernels more often",
        cured="without these launches",
    ),
    "on_cpu": CauseWords(
        label="Host",
        clause="its host takes longer",
        subject="Rank {}'s host takes longer",
        why="its host takes longer",
        changed="its host takes longer",
    ),
}

IN_OPERATORS = "of it in operators"
"""The evidence that most of what a rank's host takes longer is in operators, which is no other work of the host."""

OPERATORS_LONGER = CauseWords(
    label="Host",
    clause="its operators take longer",
    subject="Rank {}'s operators take longer",
    why="its operators take longer",
    changed="its operators take longer",
)
