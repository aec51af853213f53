"""Crashes in logs: each rank's first failure of its own, and which of them came first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from traceops.hangs.crash_messages import MemoryMessage, memory_message
from traceops.hangs.crash_table import ANYWAY, LATER, CrashKind, crash_kind
from traceops.hangs.evidence import Frame, LogEvent
from traceops.hangs.stack_activity import is_own

_FAILURES = ("error", "memory", "cuda", "nccl", "connection")
# What ranks raise because another is gone or the watchdog gave up.
_ECHOES = (
    "communicator was aborted", "Watchdog caught collective", "Broken pipe", "Connection reset", "Connection closed",
    "remote process exited", "Connection refused", "NCCL watchdog", "terminated with exception", "timed out",
    "Timed out", "Transport endpoint is not connected",
    "ProcessRaisedException", "ProcessExitedException", "EOFError", "ConnectionResetError", "DistStoreError",
)  # fmt: skip


# What torch.load raises in a file that was cut, where it does not say so itself.
_NO_WHOLE_FILE = (
    "OSError: [Errno 22]", "ValueError: negative seek", "_pickle.UnpicklingError", "zipfile.BadZipFile", "EOFError",
)  # fmt: skip
# What a program sees of a GPU that fails.
_OF_GPU: tuple[CrashKind, ...] = ("illegal_access", "launch_failure", "nccl_gpu")
# What a child raises in its first lines whose parent ended before it had handed over what is to run.
_HALF_HANDED_OVER = ("_pickle.UnpicklingError: pickle data was truncated", "EOFError")
# The watchdog asks the GPU, and so is told of an error that a kernel of this process made.
_THREAD_ENDED = "thread terminated with exception: "


# An exception's own line, of what a rule for lines took first: 'RuntimeError: NCCL error in: …'.
_RAISED = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}(?:Error|Exception): ")
# What the machine did to a process: Slurm says it at the end, and the kernel's log is often put after the job's.
OF_MACHINE: tuple[CrashKind, ...] = ("host_memory", "gpu_hardware")
_BY_MACHINE = (
    "oom-kill", "oom_kill", "OOM Killed", "OOMKilled", "Killed process", "Xid (", "TERM_MEMLIMIT", " memory limit",
    "PBS: job killed", "systemd-oomd", "earlyoom",
)  # fmt: skip


class Crash(Struct, frozen=True):
    """One kind of failure. ranks: whose first failure it was, empty where no line tells; event: the first of it.

    alone: nothing else of its own failed on other ranks, or this is known to have come before it.
    events: each rank's own, where more than one had it.
    """

    kind: CrashKind
    ranks: tuple[int, ...]
    event: LogEvent
    alone: bool = True
    events: tuple[LogEvent, ...] = ()

    def of(self, ranks: Sequence[int]) -> Crash:
        """The same of these ranks only, with what they said of it."""
        own = [event for event in self.events if event.rank in ranks]
        event = _most_telling(own) if own else self.event
        return replace(self, ranks=tuple(sorted(ranks)), event=event, events=tuple(own))

    @property
    def memory(self) -> MemoryMessage | None:
        """The numbers of an out-of-memory message; None of other kinds."""
        return memory_message(self.event.text) if self.kind == "gpu_memory" else None

    @property
    def cause(self) -> str:
        """The kind, of memory what its numbers come to where they do."""
        memory = self.memory
        return self.kind if memory is None or memory.cause is None else memory.cause

    @property
    def own_frame(self) -> Frame | None:
        """The innermost frame of the program's own code."""
        return next((frame for frame in self.event.frames if is_own(frame)), None)


def find_crashes(log: Sequence[LogEvent], *, late: bool = False) -> list[Crash]:
    """What failed by itself, by kind, first failure first; empty where a log tells of echoes and hangs only.

    late: also what failed behind the first collective that ran out of time, on ranks that did not wait in one.
    """
    if late:
        waited = {event.rank for event in log if event.kind == "timeout"} - {None}
        log = [event for event in log if event.kind != "timeout" and event.rank not in waited]
    first = _first_failures(log) or _first_failures(log, by_watchdog=True) or _first_failures(log, alone=True)
    own = {rank: told for rank, told in first.items() if told[0] not in LATER} or first
    by_kind: defaultdict[CrashKind, list[LogEvent]] = defaultdict(list)
    for kind, event in own.values():
        by_kind[kind].append(event)
    crashes = _by_hardware([_crash(kind, events) for kind, events in by_kind.items()])
    crashes.sort(key=lambda crash: crash.kind == "exception")
    one_file = len({crash.event.path for crash in crashes}) == 1
    if one_file:
        crashes.sort(key=lambda crash: crash.event.line)
    return [replace(crash, alone=one_file or len(crashes) == 1) for crash in crashes]


def _by_hardware(crashes: list[Crash]) -> list[Crash]:
    """What the driver says of a GPU that failed, as the cause of the only rank that had an error on its GPU."""
    said = next((crash for crash in crashes if crash.kind == "gpu_hardware" and not crash.ranks), None)
    seen = [crash for crash in crashes if crash.kind in _OF_GPU]
    if said is None or len(seen) != 1 or len(seen[0].ranks) != 1:
        return crashes
    told = Crash("gpu_hardware", seen[0].ranks, said.event)
    return [told, *(crash for crash in crashes if crash not in (said, seen[0]))]


def _crash(kind: CrashKind, events: Sequence[LogEvent]) -> Crash:
    ranks = tuple(sorted({event.rank for event in events if event.rank is not None}))
    return Crash(kind, ranks, _most_telling(events), events=tuple(events))


def _most_telling(events: Sequence[LogEvent]) -> LogEvent:
    return max(events, key=lambda event: (bool(event.frames), event.rank is not None))


def _first_failures(
    log: Sequence[LogEvent], *, by_watchdog: bool = False, alone: bool = False
) -> dict[tuple[str, int | None], tuple[CrashKind, LogEvent]]:
    """Of each rank, and of the lines of each file that name none, the first failure of its own."""
    waited = _first_timeouts(log)
    found: dict[tuple[str, int | None], tuple[CrashKind, LogEvent]] = {}
    for event in log:
        kind = kind_of_only_error(event) if alone else kind_of(event, by_watchdog=by_watchdog)
        if kind is None or (event.line > waited.get(event.path, event.line) and not by_machine(event, kind)):
            continue
        key = (event.path if event.rank is None else "", event.rank)
        known = found.get(key)
        if known is None or (known[0] in LATER and kind not in LATER):
            found[key] = kind, event
        elif known[0] == kind and event.frames and not known[1].frames:
            found[key] = kind, event  # the same, with its traceback
    return found


def _first_timeouts(log: Sequence[LogEvent]) -> dict[str, int]:
    """The line in which each file first tells of a collective that ran out of time: what is later follows."""
    lines: dict[str, int] = {}
    for event in log:
        if event.kind == "timeout":
            lines[event.path] = min(event.line, lines.get(event.path, event.line))
    return lines


def by_machine(event: LogEvent, kind: CrashKind) -> bool:
    """Whether the kernel or Slurm says it, of no rank: they may say it later than it was."""
    return event.rank is None and kind in OF_MACHINE and any(words in event.text for words in _BY_MACHINE)


def _reads_weights(frame: Frame) -> bool:
    return frame.file.endswith("torch/serialization.py") and "load" in frame.function


def _lost_its_parent(event: LogEvent) -> bool:
    """Whether it is what multiprocessing's child says of its parent's end."""
    where = event.frames[0] if event.frames else None
    return (
        where is not None
        and where.function == "_main"
        and where.file.endswith("multiprocessing/spawn.py")
        and event.text.startswith(_HALF_HANDED_OVER)
    )


def kind_of_only_error(event: LogEvent) -> CrashKind | None:
    """The kind of crash that an event tells of in a log without any other: then it is a finding in an echo's words."""
    if event.kind == "trouble":
        kind = crash_kind(event.text, raised=False)
        return kind if kind in ANYWAY else None
    raised = event.kind == "nccl" and _RAISED.match(event.text) is not None
    return crash_kind(event.text) if raised and not any(words in event.text for words in _ECHOES) else None


def kind_of(event: LogEvent, *, by_watchdog: bool = False) -> CrashKind | None:
    """The kind of crash that one event tells of; None for echoes of others' and for what ends no program.

    by_watchdog: what ended its thread counts too.
    """
    if event.kind not in _FAILURES or _lost_its_parent(event):
        return None
    text = event.text.partition(_THREAD_ENDED)[2] if by_watchdog and event.kind == "cuda" else ""
    kind = crash_kind(text or event.text, raised=event.kind == "error")
    if not text and kind not in ANYWAY and any(words in event.text for words in _ECHOES):
        return None
    if kind == "exception" and event.text.startswith(_NO_WHOLE_FILE) and any(map(_reads_weights, event.frames[:6])):
        return "broken_file"
    if kind is None and event.kind == "memory":
        return "host_memory"
    return kind
