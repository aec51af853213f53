"""Words for why a rank is late, the same in reports, rules and comparisons. Literal maps, no logic."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class CauseWords(Struct, frozen=True):
    """One cause of a rank's lateness.

    label: its name in a table. clause: what the rank does. changed: the same of a rank that was not late before;
    changed_several: of several ranks. What is said of a late rank itself lies in words/late.ini.
    """

    label: str
    clause: str
    changed: str
    changed_several: str = ""


# The keys are those of traceops.across.lateness.CAUSES.
CAUSES: Mapping[str, CauseWords] = {
    "gpu_compute": CauseWords(
        label="GPU",
        clause="its GPU computes longer",
        changed="it computes longer",
        changed_several="they compute longer",
    ),
    "host": CauseWords(
        label="Host",
        clause="its host launches later",
        changed="its host launches later",
        changed_several="their hosts launch later",
    ),
    "input": CauseWords(
        label="Input",
        clause="it waits longer for its input",
        changed="it waits longer for its input",
        changed_several="they wait longer for their input",
    ),
    "copy": CauseWords(
        label="Copies", clause="it copies longer", changed="it copies longer", changed_several="they copy longer"
    ),
    "unknown": CauseWords(
        label="Unknown",
        clause="no single cause explains it",
        changed="for no single reason",
        changed_several="for no single reason",
    ),
}

# Words for each part of a step, the same in reports, rules and comparisons. Literal maps, no logic.


class BucketWords(Struct, frozen=True):
    """One bucket of the step ledger.

    label: in a table or legend. metric: as a metric of a comparison, inside a sentence. definition: one line.
    longer, shorter: what more and less of it means; {device} stands for CPU or GPU. of_rank, of_several: on the
    critical path, behind "rank 3's" and before "on ranks 2, 3"; empty where that time is no rank's own.
    """

    label: str
    metric: str
    definition: str
    longer: str
    shorter: str
    of_rank: str = ""
    of_several: str = ""


# The keys and their order are those of traceops.measure.ledger.BUCKETS.
BUCKETS: Mapping[str, BucketWords] = {
    "compute": BucketWords(
        label="Compute",
        metric="compute",
        definition="A compute kernel (on a CPU: an operator) runs.",
        of_rank="computation",
        of_several="computation",
        longer="compute grew",
        shorter="compute shrank",
    ),
    "comm_transfer": BucketWords(
        label="Transfer",
        metric="exposed transfer",
        definition="A collective runs with every member there, and no compute beside it.",
        longer="communication that nothing hides takes longer",
        shorter="less communication is exposed",
    ),
    "comm_wait": BucketWords(
        label="Waiting for ranks",
        metric="waiting for ranks",
        definition="A collective runs but still waits for a member; no compute beside it.",
        longer="ranks wait longer for each other",
        shorter="ranks wait less for each other",
    ),
    "comm_unmatched": BucketWords(
        label="Communication, unmatched",
        metric="communication, unmatched",
        definition=("A collective runs that could not be matched across ranks: waiting or transfer, not known which."),
        longer="communication, unmatched grew",
        shorter="communication, unmatched shrank",
    ),
    "memory": BucketWords(
        label="Memory copies",
        metric="memory copies",
        definition="A memcpy or memset runs, and nothing else.",
        of_rank="memory copies",
        of_several="memory copies",
        longer="copies take longer",
        shorter="copies take less",
    ),
    "idle_input": BucketWords(
        label="Idle: input",
        metric="idle: input",
        definition="Nothing runs; the thread that launches next is inside data loading.",
        of_rank="input",
        of_several="waiting for input",
        longer="the {device} waits longer for input",
        shorter="the {device} waits less for input",
    ),
    "idle_sync": BucketWords(
        label="Idle: host blocked",
        metric="idle: host blocked",
        definition=(
            "Nothing runs; the launching thread was waiting for the device (.item(), synchronize) when it ran dry."
        ),
        of_rank="host, which blocks on the device",
        of_several="blocked hosts",
        longer="the host blocks on the {device} longer",
        shorter="the host blocks on the {device} less",
    ),
    "idle_host": BucketWords(
        label="Idle: launched late",
        metric="idle: launched late",
        definition="Nothing runs; the next kernel was launched after the gap began.",
        of_rank="host, which launches late",
        of_several="late launches",
        longer="the host launches later, the {device} starves",
        shorter="the host launches earlier",
    ),
    "idle_dependency": BucketWords(
        label="Idle: dependency",
        metric="idle: dependency",
        definition=(
            "Nothing runs; the next kernel had been launched. It waited for an event, another stream, or work that the "
            "trace does not show."
        ),
        of_rank="kernels that wait for an event or another stream",
        of_several="waiting for events or other streams",
        longer="idle: dependency grew",
        shorter="idle: dependency shrank",
    ),
    "idle_unknown": BucketWords(
        label="Idle: cause unknown",
        metric="idle: cause unknown",
        definition="Nothing runs; the trace does not hold the call that launched the next kernel.",
        of_rank="idle time of unknown cause",
        of_several="idle time of unknown cause",
        longer="idle: cause unknown grew",
        shorter="idle: cause unknown shrank",
    ),
    "idle_gap": BucketWords(
        label="Idle: gaps",
        metric="idle: gaps",
        definition=(
            "Between kernels, the device's own: shorter than 1 µs, or up to 20 µs before one that was queued in the "
            "same stream."
        ),
        of_rank="gaps between kernels",
        of_several="gaps between kernels",
        longer="idle: gaps grew",
        shorter="idle: gaps shrank",
    ),
}
