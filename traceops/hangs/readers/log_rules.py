"""The one-line messages in logs that bear on a hang: their wording, kind and what they tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypedDict

from traceops.hangs.crash_table import LINES, only_said, told_alone
from traceops.hangs.crash_table import NEEDLES as CRASH_NEEDLES
from traceops.hangs.evidence import Frame, LogKind
from traceops.hangs.readers.log_ends import IN_PASSING as IN_PASSING
from traceops.hangs.readers.log_ends import NEEDLES as END_NEEDLES
from traceops.hangs.readers.log_ends import ended, in_short, last_words
from traceops.hangs.readers.log_stalls import NEEDLES as STALL_NEEDLES
from traceops.hangs.readers.log_stalls import stalled_ranks

OPERATIONS = {  # as torch's watchdog writes them -> as its flight recorder does
    "BROADCAST": "broadcast",
    "ALLREDUCE": "all_reduce",
    "ALLREDUCE_COALESCED": "allreduce_coalesced",
    "REDUCE": "reduce",
    "ALLGATHER": "all_gather",
    "_ALLGATHER_BASE": "_all_gather_base",
    "ALLGATHER_BASE": "_all_gather_base",
    "ALLGATHER_COALESCED": "all_gather_into_tensor_coalesced",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather_into_tensor_coalesced",
    "GATHER": "gather",
    "SCATTER": "scatter",
    "REDUCE_SCATTER": "reduce_scatter",
    "_REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "REDUCE_SCATTER_BASE": "_reduce_scatter_base",
    "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter_tensor_coalesced",
    "ALLTOALL": "all_to_all",
    "ALLTOALL_BASE": "all_to_all",
    "SEND": "send",
    "RECV": "recv",
    "RECVANYSOURCE": "recv",
    "BARRIER": "barrier",
    "COALESCED": "coalesced",
}

# Every pattern starts with a literal and repeats nothing without a bound: a hostile line costs what a plain
# one of its length costs.
WORK = re.compile(
    r"Work[A-Z]{1,5}CCL\((?:SeqNum=(?P<sequence>\d{1,18}), )?OpType=(?P<op>\w{1,40})"
    r"(?:, TensorShape=\[[^\]]{0,200}\])?"
    r"(?:, NumelIn=(?P<elements_in>\d{1,18}), NumelOut=(?P<elements_out>\d{1,18}))?"
    r", Timeout\(ms\)=\d{1,18}\) (?:ran for \d{1,18} milliseconds|timed out in blocking wait)"
)
STATUS = re.compile(
    r"ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,18}), last completed (?:NCCL )?work: (?P<completed>-?\d{1,18})"
)
# [PG ID 0 PG GUID 0(default_pg) Rank 2]; torch 2.4: [PG 0 (default_pg) Rank 2], 2.3: [PG 0 Rank 2]
GROUP = re.compile(
    r"\[PG (?:ID \d{1,9} PG GUID )?(?P<group>[^\s()\]]{1,80}) ?(?:\((?P<description>[^()\]]{0,80})\))? "
    r"Rank (?P<rank>\d{1,7})\]"
)
RANK_IN_GROUP = re.compile(r"\[Rank (\d{1,7})\]")
# What an exception says of whose it is: 'AssertionError: Rank 3: found NaN', 'aborted on rank 7', 'barrier on rank: 2'.
RANK_OF_MESSAGE = re.compile(r"(?:Error: Rank |aborted on rank |store based barrier on rank: )(\d{1,7})\b")
_LOOSE_WORK = re.compile(r"Work[A-Z]{1,5}CCL\([^)]{0,200}?OpType=(?P<op>\w{1,40})")
_SEQUENCE = re.compile(r"SeqNum=(\d{1,18})")
_AROUND_RANK = re.compile(r"Mismatched collective detected.{0,80}? rank (\d{1,7})\b")
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running (?:inconsistent )?collective: (?:CollectiveFingerPrint\()?"
    r"(?:SequenceNumber=(?P<sequence>\d{1,18}),? ?)?(?:OpType=)?(?P<op>[A-Z_]{1,40})"
    r"(?:, TensorShape=\[(?P<shape>[^\]]{0,400})\])?(?:, TensorDtypes=(?P<dtype>\w{1,40}))?"
)
_GLOO_WAIT = re.compile(r"imed out waiting \d{1,18}ms for (?:recv|send) operation")
_XID = re.compile(r"Xid \((?:PCI:)?[0-9A-Fa-f:.]{1,20}\): \d{1,4}")
_KILLED = re.compile(r"Killed process (\d{1,10})")
DIFFERENT = "Different collectives: "
_NCCL_WARNING = "NCCL WARN "
_NCCL_NOTE = " NCCL INFO "


class ToldFields(TypedDict, total=False):
    """Fields of a LogEvent that a line may tell; `enqueued` and `completed` are numbers of operations."""

    op: str | None
    sequence: int
    elements_in: int
    elements_out: int
    enqueued: int
    completed: int
    accused: tuple[int, ...]
    group: str
    group_description: str | None
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Told:
    """What a line tells, without who said it and where. pid: of a process it names."""

    kind: LogKind
    text: str
    fields: ToldFields
    pid: int | None = None


def canonical_op(name: str) -> str:
    return OPERATIONS.get(name, name.lower())


def told_by(body: str) -> Told | None:
    """What a line without its prefixes tells; None if nothing."""
    if "Watchdog caught" in body or "WorkNCCL(" in body:
        work = WORK.search(body)
        if work is not None:
            return Told("timeout", body, _operation(work))
        cut = " ran for " in body or "Watchdog caught" in body  # or it is of another torch
        if "WorkNCCL(" in body and cut and (told := _LOOSE_WORK.search(body)) is not None:
            number = _SEQUENCE.search(body)
            fields: ToldFields = {"op": canonical_op(told["op"])}
            if number is not None:
                fields["sequence"] = int(number[1])
            return Told("timeout", body, fields)
        if "Watchdog caught collective operation timeout" in body:  # cut off within the operation
            return Told("timeout", body, {})
    if "ast enqueued" in body and (status := STATUS.search(body)) is not None:
        enqueued, completed = (max(int(status[name]), 0) for name in ("enqueued", "completed"))  # -1: none yet
        return Told("status", body, {"enqueued": enqueued, "completed": completed})
    if "mismatch between collectives" in body:
        return _mismatch(body)
    if "monitoredBarrier" in body:
        return _barrier(body)
    if (stalled := stalled_ranks(body)) is not None:
        return Told("missing", body, {"accused": stalled})
    if _NCCL_WARNING in body:
        return _nccl_warning(body)
    if _NCCL_NOTE in body:  # healthy jobs have them: a connection refused and tried again, closed at the end
        return None
    if "imed out waiting" in body and _GLOO_WAIT.search(body) is not None:
        return Told("timeout", body, {})
    if "Killed process" in body and ("ut of memory" in body or "oom" in body):
        killed = _KILLED.search(body)
        return Told("memory", body, {}, None if killed is None else int(killed[1]))
    if "Xid (" in body and _XID.search(body) is not None:
        return Told("cuda", body, {})
    for kind, needle, exceptions in LINES:
        if needle in body and not any(map(body.__contains__, exceptions)) and not only_said(body, needle):
            return Told(kind, body, {})
    if told_alone(body):
        return Told("error", body, {})
    end = ended(body)
    if end is None:
        return None
    return Told("error", f"{end} ({last_words(body)})", {}) if end else Told("exit", in_short(body), {})


# What Ray says of a process that ended, and does not know why.
OF_RAY = ("its worker process has died", "A worker died or was killed while executing", "Raylet is terminated: ip=")


def _operation(match: re.Match[str]) -> ToldFields:
    told: ToldFields = {"op": canonical_op(match["op"])}
    if match["sequence"] is not None:
        told["sequence"] = int(match["sequence"])
    if match["elements_in"] is not None:
        told["elements_in"] = int(match["elements_in"])
    if match["elements_out"] is not None:
        told["elements_out"] = int(match["elements_out"])
    return told


def _mismatch(body: str) -> Told:
    """Both calls in short; the full text lists layouts and devices at length."""
    calls = list(_FINGERPRINT.finditer(body))
    if not calls:
        return Told("mismatch", body, {})
    text = ", but ".join(f"rank {call['rank']} is running {_call(call)}" for call in calls[:8])
    first = calls[0]
    fields: ToldFields = {
        "accused": tuple(sorted({int(call["rank"]) for call in calls})),
        "op": canonical_op(first["op"]),
    }
    if first["sequence"] is not None:
        fields["sequence"] = int(first["sequence"])
    return Told("mismatch", f"{DIFFERENT}{text}", fields)


def _call(call: re.Match[str]) -> str:
    number = "" if call["sequence"] is None else f" number {call['sequence']}"
    size = "" if call["shape"] is None else f" of [{call['shape']}]"
    dtype = "" if call["dtype"] is None else f" {call['dtype']}"
    return f"{canonical_op(call['op'])}{number}{size}{dtype}"


def _barrier(body: str) -> Told | None:
    before, failed, _ = body.partition(" failed to pass monitoredBarrier")
    if failed:
        ranks = before.rpartition("Rank")[2]
        accused = tuple(sorted({int(number) for number in re.findall(r"\d{1,7}", ranks)}))
        return Told("missing", body, {"accused": accused, "op": "monitored_barrier"})
    if "timed out in monitoredBarrier" in body:
        return Told("timeout", body, {"op": "monitored_barrier"})
    if "No ranks successfully processed" in body:
        return Told("missing", body, {"op": "monitored_barrier"})
    if "received errors while waiting" in body:
        return Told("connection", body, {"op": "monitored_barrier"})
    return None


def _nccl_warning(body: str) -> Told:
    said = body.partition(_NCCL_WARNING)[2]
    if "Message truncated" in said or "Mismatched collective" in said:
        around = _AROUND_RANK.search(said)
        return Told("mismatch", body, {} if around is None else {"accused": (int(around[1]),)})
    if "Cuda failure" in said or "CUDA failure" in said:
        return Told("memory" if "out of memory" in said else "cuda", body, {})
    lost = (
        "Connection closed", "Connection reset", "Connection refused", "connection abort", "No route to host",
        "Network is unreachable", "Connection timed out", "Broken pipe",
        "Got completion", "socketProgress", "remote peer", "remote error", "Timeout waiting",
    )  # fmt: skip
    if any(words in said for words in lost):
        return Told("connection", body, {})
    return Told("nccl", body, {})


# Torchrun begins another attempt; or Slurm ended a job, and what follows in the file is another's.
RESTARTS = (
    "slurmstepd: error: *** JOB ",
    "will restart worker group",
    "; restarting worker group",
    "] Restarting worker group",
)

# A block of a log that holds none of these tells nothing, and its lines are not looked at.
NEEDLES: tuple[bytes, ...] = (
    b"Watchdog caught", b"WorkNCCL(", b"ast enqueued", b"[PG ", b"mismatch between collectives", b"monitoredBarrier",
    b"NCCL WARN ", b"imed out waiting", b"Killed process", b"Xid (", b"Traceback (most recent call last)",
    b"Fatal Python error", b"Stack trace of the failed", b"exitcode", b"srun: error: ", b"exited on signal",
    b" first, exit code ", b" died from signal ", b" crashed with exit code ", b" exit with status code ",
    b"terminated with ", b"exitcode ", b"terminate called after", b"Process name: ",
    *(words.encode() for words in RESTARTS),
    *CRASH_NEEDLES, *END_NEEDLES, *STALL_NEEDLES,
)  # fmt: skip
