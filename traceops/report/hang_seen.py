"""What logs tell of failures, whether or not it is a cause: nothing that was read and classified is "
"left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceops.hangs.evidence import LogEvent
from traceops.hangs.job import how_to_bring
from traceops.hangs.model import Diagnosis, Root
from traceops.hangs.readers.messages import OF_RAY

_MOST_LINES = 8
# Warnings of NCCL, RCCL and their plugins that healthy jobs print.
_HARMLESS = (
    "NET/OFI Only EFA provider is supported", "aws-ofi-nccl initialization failed", "Failed to open libibverbs.so",
    "NUMA auto balancing enabled", 'Missing "iommu=pt"', "Unable to open device mlx5", "MSCCL++: Cannot initialize",
)  # fmt: skip
# What a launcher says and does once something else has failed.
_AFTERWARDS = ("closing signal", "ChildFailedError")


def seen_events(diagnosis: Diagnosis) -> list[LogEvent]:
    """Lines that tell of trouble: all that were classified but how far ranks have come and what the "
    "causes quote."""
    crashes = [root.crash for root in diagnosis.roots if root.crash is not None]
    told = {
        event for crash in crashes for event in crash.events if _without_numbers(event) == _without_numbers(crash.event)
    }
    quoted = {what for root in diagnosis.roots for what, _ in root.evidence}
    return [
        event
        for event in diagnosis.evidence.log
        if event.kind not in ("status", "said")
        and event not in told
        and f"{event.path}:{event.line}" not in quoted
        and not any(_is_end_of(event, root) for root in diagnosis.roots)
    ]


def is_harmless(event: LogEvent) -> bool:
    """Whether it is NCCL's warning of what healthy jobs have too, or one after which the program went on."""
    known = any(words in event.text for words in _HARMLESS)
    return (event.kind == "nccl" and known) or (event.was == "nccl" and "NCCL WARN" in event.text)


def was_logged_only(event: LogEvent) -> bool:
    """Whether it is a line that calls itself an error, after which its logger goes on."""
    return event.kind == "outlived" and event.was == "trouble"


def _without_numbers(event: LogEvent) -> str:
    return "".join(char for char in event.text if not char.isdecimal())


def _is_end_of(event: LogEvent, root: Root) -> bool:
    """Whether a launcher's line on the end of ranks says what the cause says of them already."""
    code = str(event.exit_code)
    return bool(event.accused) and set(event.accused) <= set(root.ranks) and ("exit code", code) in root.evidence


def timed_out(diagnosis: Diagnosis) -> LogEvent | None:
    """The collective that timed out, where the logs tell of one only, whatever its number on each rank."""
    events = [event for event in diagnosis.evidence.log if event.kind == "timeout" and event.op is not None]
    calls = {(event.op, event.sequence) for event in events}
    return events[0] if len(calls) == 1 else None


def seen_groups(events: Sequence[LogEvent]) -> list[tuple[LogEvent, tuple[int, ...]]]:
    """The first event of each text, with the ranks that say the same, numbers in it aside."""
    groups: dict[tuple[str, str], list[LogEvent]] = {}
    for event in events:
        groups.setdefault((event.kind, _without_numbers(event)), []).append(event)
    return [
        (same[0], tuple(sorted({event.rank for event in same if event.rank is not None}))) for same in groups.values()
    ]


def most_telling(groups: Sequence[tuple[LogEvent, tuple[int, ...]]]) -> tuple[LogEvent, tuple[int, ...]]:
    """The first line that is not what follows from another's end, the first of all where each is, and who says it."""
    return next((group for group in groups if not _follows(group[0])), groups[0])


def _follows(event: LogEvent) -> bool:
    return event.kind in ("connection", "monitor", "exit") or any(words in event.text for words in _AFTERWARDS)


def seen_lines(diagnosis: Diagnosis) -> Iterator[tuple[LogEvent, tuple[int, ...]]]:
    """The lines to list, the first event of each message and the ranks that say it (none where no line tells).

    Beside hangs none: their causes tell what the lines mean.
    """
    if any(root.crash is None for root in diagnosis.roots):
        return
    yield from seen_groups(seen_events(diagnosis))[:_MOST_LINES]


def seen_left_out(diagnosis: Diagnosis) -> int:
    """How many kinds of messages `seen_lines` leaves to hang.json."""
    if any(root.crash is None for root in diagnosis.roots):
        return 0
    return max(len(seen_groups(seen_events(diagnosis))) - _MOST_LINES, 0)


_WENT_ON = (
    "If the job went wrong all the same, bring how its last start ended: the lines behind these, and its exit code "
    "(echo $?, sacct, kubectl describe pod)."
)
_CUT_OFF = "To decide, bring the lines behind these: the traceback is cut off before its error. traceops diagnose FILE."
# What Kubernetes and shells say, and where it says more.
_TELLS_MORE = (
    (
        ("command not found", "sh: 1: ", "executable file not found"),
        "If that command was to start the job: command -v NAME in the same shell shows whether it is found. sudo, ssh, "
        "cron and containers have a PATH of their own: activate the environment there, or give the whole path.",
    ),
    (
        ("waitForInput: ", "got error: Socket Timeout"),
        "The rank waited in torch's store for another one, most often rank 0: its output shows what it did meanwhile. "
        "A download, a tokenization or a checkpoint that takes longer than the timeout belongs before the launch; or "
        "raise the timeout (ddp_timeout of Trainer, init_process_group(timeout=…)).",
    ),
    (
        ("resource_tracker: ",),
        "Python's resource tracker speaks of a process that is gone: it ended in the middle of this bar. Its exit code "
        "(echo $?, sacct, kubectl describe pod) and dmesg tell who ended it: the kernel for its memory, or a signal.",
    ),
    (
        ("0/1 Error", "0/2 Error", "1/2 Error"),
        "To decide, bring the pod's own lines (kubectl logs POD, with --previous if it was restarted) and how it ended "
        "(kubectl describe pod POD): traceops diagnose FILE.",
    ),
    (
        ("BackOff", "ack-off restarting"),
        "To decide, bring the container's last lines (kubectl logs --previous POD) and how it ended (kubectl describe "
        "pod POD): traceops diagnose FILE.",
    ),
    (
        ("FailedScheduling", "Insufficient nvidia.com/gpu"),
        "The pod has not started: kubectl describe pod POD shows what it asks for, kubectl describe nodes what is "
        "free.",
    ),
)


def what_would_decide(diagnosis: Diagnosis) -> str:
    """The evidence to bring where no cause is told, with the command that gets it; '' where there is one."""
    seen = seen_events(diagnosis)
    if any(event.kind == "idle" for event in seen):
        return (
            "Train in bf16 or fp32 instead of fp16. If every step was skipped, gradients are inf or NaN from the first "
            "step on: check the batches, the learning rate and the weights that were loaded."
        )
    if diagnosis.evidence.lone and not diagnosis.roots:
        return (
            "To see who waits for whom, dump every rank (py-spy dump --pid PID > stacks_rank_N.txt), then: traceops "
            "diagnose FOLDER."
        )
    if diagnosis.roots or all(is_harmless(event) or was_logged_only(event) for event in seen):
        return ""  # of NCCL's warnings the rules of the fabric say what would tell more
    kinds = {event.kind for event in seen}
    ranks = {event.rank for event in diagnosis.evidence.log if event.rank is not None}
    if "ras" in kinds:
        return (
            "To decide, ask again ten seconds later (ncclras): counts that grow are a job that runs; "
            "where they stand still, "
            "the ranks ahead wait for those behind, and py-spy dump --pid PID of a rank behind shows "
            "what it does instead."
        )
    if kinds == {"outlived"}:
        return _WENT_ON
    if kinds <= {"inspector", "nccl"}:
        return "To decide, bring that rank's own output and how its process ended, or py-spy dump --pid PID if it runs."
    if "timeout" in kinds:
        of = "the other ranks' logs" if len(ranks) == 1 else "a flight-recorder dump of every rank"
        return (
            f"To decide, bring {of}. With TORCH_NCCL_TRACE_BUFFER_SIZE=2000 (TORCH_FR_BUFFER_SIZE from "
            f"torch 2.9) and "
            "TORCH_NCCL_DUMP_ON_TIMEOUT=1 every rank leaves a dump of what it was in; traceops diagnose "
            "reads them."
        )
    for words, more in _TELLS_MORE:
        if any(word in event.text for event in seen for word in words):
            return more
    setting = "ray" if any(words in event.text for event in seen for words in OF_RAY) else diagnosis.evidence.setting
    if kinds & {"connection", "monitor", "exit"}:
        return (
            "To decide, bring every rank's own output: such lines often follow from something earlier. For that, "
            f"{how_to_bring(setting)}. Then: traceops diagnose DIR."
        )
    if any(event.cut_off for event in seen):
        return _CUT_OFF
    return "To decide, bring the whole log, with the lines before these: traceops diagnose FILE."
