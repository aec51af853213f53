"""The verdicts on crashes in a job's logs: a finding for each that is a cause, and for each rank that died of one.

What to do about each kind of crash is in `hangs/crashes.json`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.rule import Rule, Verdict
from traceops.hangs.crashes import ADVICE, ADVICE_IN, MEMORY_CAUSES, RULE_OF

if TYPE_CHECKING:
    from traceops.hangs.crashes import Crash
    from traceops.hangs.model import Diagnosis, Root
    from traceops.rules.inputs import Inputs


def _rule(rule: str, title: str, fires: str, advice: str) -> Rule:
    """A rule with the advice for each kind of crash that is a case of it."""
    kinds = MEMORY_CAUSES if rule == "TO-E001" else [kind for kind, its in RULE_OF.items() if its == rule]
    return Rule(rule, title, fires, advice, tuple((kind, ADVICE[kind]) for kind in kinds if kind in ADVICE))


GPU_MEMORY = _rule(
    "TO-E001",
    "Out of GPU memory",
    "A log has torch's out-of-memory message. Its numbers say why, where they do: 15 % of the GPU or more is "
    "held by other processes or outside of torch, and would have been enough; or what is reserved but "
    "unallocated would have been enough (fragmented, or full where it is less than 5 % of the GPU); or all of "
    "that would not (too large); or more was free (refused). Where the numbers contradict each other, none is told.",
    "Use a smaller batch per GPU with accumulation, activation checkpointing, or sharding (FSDP). traceops run "
    "records memory over a step; torch.cuda.memory._record_memory_history() shows who holds it.",
)
HOST_MEMORY = _rule(
    "TO-E002",
    "Out of the host's memory or of /dev/shm",
    "A log tells that an allocation on the host failed, that the kernel, the batch system or a daemon killed a "
    "process for its memory, or that data-loader workers ran out of shared memory.",
    "Use fewer data-loader workers, less prefetching, no copy of the data set in every worker, or raise the limit "
    "of the job or container (--mem, resources.limits.memory). dmesg tells which process was killed.",
)
GPU_ERROR = _rule(
    "TO-E003",
    "A GPU reported an error",
    "The first failure in a log is a CUDA error: an illegal access, a failed assertion on the device, a failed "
    "kernel, hardware, or a device that is not there.",
    "CUDA errors are reported late, so the line of the traceback may not be the one at fault. Run again with "
    "CUDA_LAUNCH_BLOCKING=1: then it is.",
)
NCCL_ERROR = _rule(
    "TO-E004",
    "NCCL failed",
    "A log has an NCCL error, and no failure of another kind that it may follow from. Errors that tell of a "
    "peer that is gone are not counted.",
    "Run again with NCCL_DEBUG=INFO: the first WARN line before the error says what failed.",
)
SCRIPT_ERROR = _rule(
    "TO-E005",
    "The program raised an error",
    "The first failure in a log is an exception of the program: an import, an assertion, or another that is of no "
    "other rule's kind.",
    "Read the traceback at the line given: this is an error of the program, and errors of other ranks about lost "
    "connections follow from it.",
)
MISUSE = _rule(
    "TO-E006",
    "torch was used in a way that it refuses",
    "The first failure in a log is a message of torch that has one known cause and fix.",
    "See the cause.",
)
REFUSED = _rule(
    "TO-E007",
    "The machine refused: port, network, disk or a limit",
    "The first failure in a log is a port that is in use, a file that could not be written or opened, a thread or "
    "a job that could not be started, or ranks that did not find each other when the process group was made.",
    "Free what the message names, then start again.",
)
ENDED = _rule(
    "TO-E008",
    "The job was ended from outside",
    "The first failure in a log is a scheduler or a terminal that ended the job: a time limit, preemption, a node "
    "that was lost, SIGHUP, SIGTERM or a cancellation that nothing else explains.",
    "The log shows no failure of the program itself.",
)
RULES = (GPU_MEMORY, HOST_MEMORY, GPU_ERROR, NCCL_ERROR, SCRIPT_ERROR, MISUSE, REFUSED, ENDED)
BY_ID = {rule.id: rule for rule in RULES}
_KILLED_ADVICE = (
    "Nothing in the log says who sent SIGKILL; most often it is the kernel, because the host's memory ran out: "
    "dmesg -T | grep -i -E 'oom|killed process' on that host, sacct -j JOB -o State,MaxRSS, or kubectl describe pod "
    "(OOMKilled). Fewer data-loader workers and no copy of the data set in every worker need less."
)


def advice_for(crash: Crash, setting: str | None = None) -> str:
    """What to do about a crash, whichever rule its rank is a case of. setting: in which the job runs."""
    own = ADVICE_IN.get(crash.kind, {}).get(setting or "")
    if own is not None:
        return own
    rule = BY_ID.get(RULE_OF[crash.kind])
    return _KILLED_ADVICE if rule is None else rule.advice_for(crash.cause)


def judge(inputs: Inputs) -> list[Verdict]:
    """The verdicts on crashes in the run's logs, or why there are none."""
    if inputs.hang is None:
        return [rule.not_evaluated(inputs.no_hang) for rule in RULES]
    return judge_crashes(inputs.hang)


def judge_crashes(diagnosis: Diagnosis) -> list[Verdict]:
    """One verdict for each of these rules, in their order."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for root in diagnosis.roots:
        if root.rule in BY_ID:
            found[root.rule].append(_finding(root))
    if not diagnosis.evidence.log:
        return [rule.not_evaluated("no log has an error") for rule in RULES]
    return [rule.verdict(*found[rule.id], clear="no such error is the cause in these files") for rule in RULES]


def _finding(root: Root) -> Finding:
    proof = [Evidence(Fact.CLUE, value, subject=metric) for metric, value in root.evidence]
    found = BY_ID[root.rule].finding("error", root.confidence, root.message, proof, ranks=root.ranks, cause=root.cause)
    return found if root.crash is None else replace(found, advice=advice_for(root.crash, root.setting))
