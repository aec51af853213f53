"""Crashes in logs: what a message is a case of (crashes.json), and each rank's first failure of its own."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from traceops.core.rule import Bounds
from traceops.core.text import pattern, perhaps_in
from traceops.hangs.crash_kinds import TABLE, CrashKind, Kind, Says
from traceops.hangs.evidence import Frame, LogEvent, LogKind
from traceops.hangs.stack_activity import is_own

# 'Loss is nan', 'grad_norm: inf', 'non-finite loss', 'found NaN in local grad norm'; a loss scale is no loss.
_VALUE = r"(?<!\w)(?:nan|inf|infinite|infinity|not finite|non-?finite)\b"
_WHAT = r"(?<![A-Za-z])(?:loss(?:es)?(?![ _-]?scal)|grad(?:ient)?s?(?:[ _]norms?)?)(?![A-Za-z_])"
# How programs word it that end themselves because of it: the words are any program's own.
_SAID = pattern(rf"(?P<of>{_WHAT})[^.\n]{{0,40}}{_VALUE}|{_VALUE}[^.\n]{{0,40}}(?P<to>{_WHAT})", re.IGNORECASE)
_NAN = pattern(r"(?<!\w)nan\b", re.IGNORECASE)
_INF = pattern(r"(?<!\w)inf(?:inite|inity)?\b", re.IGNORECASE)
_NORM = pattern(r"(?<![A-Za-z])norms?\b", re.IGNORECASE)
_BEHIND = 60  # characters: 'non-finite loss, ending training tensor([nan, nan], …'
_AHEAD = 40  # 'The total norm of order 2.0 for gradients from `parameters` is non-finite'


def says_not_finite(text: str) -> bool:
    """Whether a message says so of the loss or of gradients."""
    return _SAID.search(text) is not None


def what_is_not_finite(text: str) -> tuple[Literal["not_finite", "loss", "norm", "gradients"], str | None]:
    """What is not finite, and 'NaN' or 'inf': no more than the message says."""
    if (said := _SAID.search(text)) is None:
        return "not_finite", None
    value = _value(said[0]) or _value(text[said.start() : said.end() + _BEHIND])
    if (said["of"] or said["to"]).lower().startswith("loss"):
        return "loss", value
    of_norm = _NORM.search(text, max(0, said.start() - _AHEAD), said.end()) is not None
    return "norm" if of_norm else "gradients", value


def _value(told: str) -> str | None:
    """Which of both; None where neither is told, or both are."""
    nan, inf = _NAN.search(told) is not None, _INF.search(told) is not None
    return None if nan == inf else "NaN" if nan else "inf"


# The numbers in an out-of-memory message of torch, in the wordings of 1.x to 2.x, and what they come to.

MemoryCause = Literal["fragmented", "full", "others", "outside", "outside_own", "too_large", "refused"]
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(\d{1,12}(?:\.\d{1,6})?) (bytes|KiB|MiB|GiB|TiB)"
_PATTERNS = {
    "asked": (rf"Tried to allocate {_SIZE}",),
    "total": (rf"total capac(?:i)?ty of {_SIZE}", rf"; {_SIZE} total capacity"),
    "free": (rf"of which {_SIZE} is free", rf"; {_SIZE} free"),
    "process": (rf"this process has {_SIZE} memory in use",),
    "allocated": (rf"allocated memory {_SIZE} is allocated by PyTorch", rf"; {_SIZE} already allocated"),
    "unallocated": (rf"and {_SIZE} is reserved by PyTorch but unallocated", rf"; {_SIZE} cached"),
    "allowed": (rf"(?<!\d )(?<!\d\. ){_SIZE} allowed;",),  # not the end of a number that a terminal broke
    "reserved": (rf"; {_SIZE} reserved in total",),
    "pools": (rf"with {_SIZE} allocated in private pools",),
}  # fmt: skip


class CrashBounds(Bounds, frozen=True):
    """Of an out-of-memory message: `others` is more than a context, NCCL and the workspaces of libraries take, and
    less than `pieces` lies about on a full GPU."""

    words = "crashes"

    others: float = 0.15
    pieces: float = 0.05


BOUNDS = CrashBounds()


class MemoryMessage(Struct, frozen=True):
    """Bytes; None where the message does not tell. free: of the GPU. unallocated: torch holds and does not use it.
    allowed: that the process may have of the GPU, as it asked itself (set_per_process_memory_fraction). pools: of
    `allocated`, in pools of their own (CUDA graphs), which nothing else may use."""

    asked: int | None = None
    total: int | None = None
    free: int | None = None
    process: int | None = None
    allocated: int | None = None
    unallocated: int | None = None
    allowed: int | None = None
    pools: int | None = None

    @property
    def left(self) -> int | None:
        """What the process could still get: what is free, or less where it is not allowed that much."""
        if self.allowed is None or self.free is None or self.allocated is None:
            return self.free
        return min(self.free, max(self.allowed - self.allocated - (self.unallocated or 0), 0))

    @property
    def others(self) -> int | None:
        """What other processes hold; None where the message does not tell what this one does."""
        own = self._own
        if self.total is None or self.free is None or own is None:
            return None
        return max(self.total - self.free - own, 0)

    @property
    def outside(self) -> int | None:
        """What neither is free, nor of this process's torch, nor known to be of others; None where not told."""
        if None in (self.total, self.free, self.allocated, self.unallocated):
            return None
        assert self.total is not None and self.free is not None
        return max(self.total - self.free - (self.others or 0) - self._of_torch, 0)

    @property
    def cause(self) -> MemoryCause | None:
        """Why it did not fit; None where the numbers do not tell, or contradict each other."""
        if self.asked is None or self.free is None or self.total is None or self.free > self.total:
            return None
        if self.asked > self.total:
            return "too_large"
        if (self.left or 0) >= self.asked:
            return "refused" if self.allowed is None else None
        return self._held_elsewhere or self._own_pieces

    @property
    def _held_elsewhere(self) -> MemoryCause | None:
        """Whether what others hold, or what is outside of torch, decides."""
        pieces, others, outside = self.unallocated or 0, self.others or 0, self.outside or 0
        if self._decides(others) and others > pieces:
            return "others"
        if self.unallocated is not None and self._decides(outside) and outside > pieces:
            return "outside" if self._own is None else "outside_own"
        return None

    @property
    def _own_pieces(self) -> MemoryCause | None:
        """Whether what torch holds and does not use would have been enough."""
        if self.unallocated is None or self.asked is None:
            return None
        pieces, left = self.unallocated, self.left or 0
        if pieces >= self.asked or (pieces + left >= self.asked and pieces > left):
            may_have = min(self.total or 0, self.allowed or self.total or 0)
            return "fragmented" if pieces >= BOUNDS.pieces * may_have else "full"
        return "too_large" if pieces + left < self.asked else None

    @property
    def _own(self) -> int | None:
        """What this process holds; None where not told, or less than its torch does: the driver told none."""
        return None if self.process is None or self.process < self._of_torch else self.process

    @property
    def _of_torch(self) -> int:
        return (self.allocated or 0) + (self.unallocated or 0)

    def _decides(self, held: int) -> bool:
        """Whether much is held elsewhere, and would have been enough."""
        if self.total is None or self.free is None or self.asked is None or self.left != self.free:
            return False  # where it has less left than is free, its own limit was in the way
        return held >= BOUNDS.others * self.total and self.free + held >= self.asked


def memory_message(text: str) -> MemoryMessage:
    """The numbers that a message tells."""
    found: dict[str, int | None] = {}
    for name, patterns in _PATTERNS.items():
        size = next(filter(None, (re.search(pattern, text) for pattern in patterns)), None)
        found[name] = None if size is None else round(float(size[1]) * _UNITS[size[2]])
    reserved = found.pop("reserved")
    if found["unallocated"] is None and reserved is not None and found["allocated"] is not None:
        found["unallocated"] = max(reserved - found["allocated"], 0)  # torch 1.4 to 2.0 tells the sum
    return MemoryMessage(**found)


# What stands before the kernel's words: a time, a tag, a key of JSON.
_BY_KERNEL = ("] ", "kernel: ", "> ", '": "', '":"', "Z ", *(f"{digit} " for digit in range(10)))
_RECOVERED = ("Nonfatal", "Non-fatal", "nonfatal", "non-fatal")  # of an Xid: the link goes on


class Wording(Struct, frozen=True):
    """A message that holds all of `words` is a case of `kind`, unless it holds one of `but`. by_kernel: only as the
    kernel's own line: another that quotes it is none."""

    kind: CrashKind
    words: tuple[str, ...]
    but: tuple[str, ...] = ()
    by_kernel: bool = False

    def is_in(self, text: str) -> bool:
        if not all(word in text for word in self.words) or any(word in text for word in self.but):
            return False
        before = text[: text.index(self.words[0])]
        return not self.by_kernel or not before.strip() or before.endswith(_BY_KERNEL)


_XID_SAYS = (("Xid (", "): {},"), ("caused by previous Xid", " {}"))


def _wordings(kinds: Iterable[Kind]) -> Iterator[Wording]:
    for kind in kinds:
        for says in kind.says:
            told = Says((says,)) if isinstance(says, str) else says
            yield Wording(kind.kind, told.all, told.but, told.by_kernel)
        for xid in kind.xids:
            yield from (Wording(kind.kind, (says, of.format(xid)), _RECOVERED) for says, of in _XID_SAYS)
        for status in kind.ib_status:
            yield Wording(kind.kind, ("Got completion", f"status={status} "))
            yield Wording(kind.kind, ("Got completion", f"error {status},"))


# In this order: the first that fits says what a message is.
WORDINGS: tuple[Wording, ...] = tuple(_wordings(TABLE.kinds))
_perhaps_in = perhaps_in((wording.words[0], wording) for wording in WORDINGS)
# One-line messages that the log's other rules do not know, and that are a crash without a traceback too.
ALONE = frozenset(kind.kind for kind in TABLE.kinds if "alone" in kind.flags)
# What follows from another's failure as often as it is one: told only where nothing else failed.
LATER = frozenset(kind.kind for kind in TABLE.kinds if "later" in kind.flags)
# Findings though their words are those of echoes.
ANYWAY = frozenset(kind.kind for kind in TABLE.kinds if "anyway" in kind.flags)
# What no program says of itself: whoever ended it.
FROM_OUTSIDE = frozenset(kind.kind for kind in TABLE.kinds if "outside" in kind.flags)
# The kinds whose message is the news.
QUOTED = frozenset(kind.kind for kind in TABLE.kinds if "quoted" in kind.flags)
# Lines of logs: kind, text, what it must not hold.
LINES: tuple[tuple[LogKind, str, tuple[str, ...]], ...] = tuple(
    (msgspec.convert(line.kind, LogKind), line.has, line.but) for line in TABLE.lines
)
# What the name of the exception that ended a program says, where its message is of no kind above.
_BY_EXCEPTION: tuple[tuple[CrashKind, tuple[str, ...]], ...] = (
    ("import_error", ("ImportError", "ModuleNotFoundError")),
    ("assertion", ("AssertionError",)),
    ("host_memory", ("MemoryError", "_ArrayMemoryError")),
)
# More workers at the store than there are ranks: those of an attempt before count too.
_WORKERS = pattern(r"world_size=(\d{1,7}), worker_count=(\d{1,7})\b")
_IB_STATUS = pattern(r"Got completion .{0,200}?(?:status=|error )(\d{1,2})\b")
_CODE = ("raise ", "warnings.warn", "#")  # a line of a traceback, or of the program's own text
# What has not happened: 'if you see CUDA out of memory', 'to avoid NCCL errors', '--retry  on CUDA out of memory'.
_ONLY_SAID = pattern(r"\b(?i:if|unless|avoid(?:s|ing)?|prevent(?:s|ing)?|in case of)\b[^.;:!?()\[\]]{0,60}$")
_OPTION = pattern(r"\s{0,80}--?[A-Za-z][\w-]{0,60}[ ,=]")


def crash_kind(text: str, *, raised: bool = True) -> CrashKind | None:
    """What a message is a case of; None where it is no known crash. raised: it is the end of a traceback."""
    for wording in _perhaps_in(text):
        if wording.is_in(text):
            counts = _WORKERS.search(text) if wording.kind == "rendezvous" else None
            return wording.kind if counts is None or int(counts[2]) <= int(counts[1]) else "store_reused"
    if not raised:
        return None
    if says_not_finite(text):
        return "nan_loss"
    name = text.partition(":")[0].rpartition(".")[2].strip()
    return next((kind for kind, names in _BY_EXCEPTION if name in names), "exception")


def ib_status_text(text: str) -> str | None:
    """'status 12: retries exceeded', of a completion that InfiniBand verbs gave back; None without one."""
    told = _IB_STATUS.search(text)
    meaning = None if told is None else TABLE.ib_status.get(int(told[1]))
    return None if told is None or meaning is None else f"status {told[1]}: {meaning}"


def only_said(text: str, words: str) -> bool:
    """Whether a line speaks of what `words` name, and not that it happened: advice, or the help of an option."""
    before = text[: text.index(words)]
    return _ONLY_SAID.search(before[-100:]) is not None or _OPTION.match(before) is not None


def told_alone(text: str) -> bool:
    """Whether a line by itself tells of a crash."""
    alone = [wording for wording in _perhaps_in(text) if wording.kind in ALONE]
    if not alone or text.lstrip().startswith(_CODE):
        return False
    return any(wording.is_in(text) and not only_said(text, wording.words[0]) for wording in alone)


_ALONE_WORDS = (wording.words[0] for wording in WORDINGS if wording.kind in ALONE)
# A block of a log without any of these tells of no crash: a word of each message of `ALONE`, and of each line.
NEEDLES: tuple[bytes, ...] = tuple(dict.fromkeys(word.encode() for word in (*_ALONE_WORDS, *(x[1] for x in LINES))))
_FAILURES = ("error", "memory", "cuda", "nccl", "connection")
# What ranks raise because another is gone or the watchdog gave up.
_ECHOES = (
    "communicator was aborted", "Watchdog caught collective", "Broken pipe", "Connection reset", "Connection closed",
    "remote process exited", "Connection refused", "NCCL watchdog", "terminated with exception", "timed out",
    "Timed out", "Transport endpoint is not connected",
    "ProcessRaisedException", "ProcessExitedException", "EOFError", "ConnectionResetError", "DistStoreError",
    "Horovod has been shut down",
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
_RAISED = pattern(r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}(?:Error|Exception): ")
# What the machine did to a process: Slurm says it at the end, and the kernel's log is often put after the job's.
OF_MACHINE: tuple[CrashKind, ...] = ("host_memory", "gpu_hardware")
_BY_MACHINE = (
    "oom-kill", "oom_kill", "OOM Killed", "OOMKilled", "Killed process", "Xid (", "TERM_MEMLIMIT", " memory limit",
    "PBS: job killed", "systemd-oomd", "earlyoom",
)  # fmt: skip


class Crash(Struct, frozen=True):
    """One kind of failure. ranks: whose first failure it was, empty where no line tells; event: the first of it. alone:
    nothing else of its own failed on other ranks, or this is known to have come before it. events: each rank's own,
    where more than one had it."""

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
    """What failed by itself, by kind, first failure first; empty where a log tells of echoes and hangs only. late: also
    what failed behind the first collective that ran out of time, on ranks that did not wait in one."""
    if late:
        waited = {event.rank for event in log if event.kind == "timeout"} - {None}
        log = [event for event in log if event.kind != "timeout" and event.rank not in waited]
    first = _first_failures(log) or _first_failures(log, by_watchdog=True) or _first_failures(log, alone=True)
    own = {rank: told for rank, told in first.items() if told[0] not in LATER} or first
    by_kind: defaultdict[CrashKind, list[LogEvent]] = defaultdict(list)
    for kind, event in own.values():
        by_kind[kind].append(event)
    crashes = []
    for kind, events in by_kind.items():
        ranks = tuple(sorted({event.rank for event in events if event.rank is not None}))
        crashes.append(Crash(kind, ranks, _most_telling(events), events=tuple(events)))
    crashes = _by_hardware(crashes)
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


def _most_telling(events: Sequence[LogEvent]) -> LogEvent:
    return max(events, key=lambda event: (bool(event.frames), event.rank is not None))


def _first_failures(
    log: Sequence[LogEvent], *, by_watchdog: bool = False, alone: bool = False
) -> dict[tuple[str, int | None], tuple[CrashKind, LogEvent]]:
    """Of each rank, and of the lines of each file that name none, the first failure of its own."""
    # By file, the first line about a collective that timed out: what comes later follows from it.
    waited: dict[str, int] = {}
    for event in log:
        if event.kind == "timeout":
            waited[event.path] = min(event.line, waited.get(event.path, event.line))
    found: dict[tuple[str, int | None], tuple[CrashKind, LogEvent]] = {}
    for event in log:
        kind = kind_of_only_error(event) if alone else kind_of(event, by_watchdog=by_watchdog)
        if kind is None or (event.line > waited.get(event.path, event.line) and not by_machine(event, kind)):
            continue
        key = (event.path if event.rank is None else "", event.rank)
        if (known := found.get(key)) is None or (known[0] in LATER and kind not in LATER):
            found[key] = kind, event
        elif known[0] == kind and event.frames and not known[1].frames:
            found[key] = kind, event  # the same, with its traceback
    return found


def by_machine(event: LogEvent, kind: CrashKind) -> bool:
    """Whether the kernel or Slurm says it, of no rank: they may say it later than it was."""
    return event.rank is None and kind in OF_MACHINE and any(words in event.text for words in _BY_MACHINE)


def _lost_its_parent(event: LogEvent) -> bool:
    """Whether it is what multiprocessing's child says of its parent's end."""
    if not event.frames or not event.text.startswith(_HALF_HANDED_OVER):
        return False
    return event.frames[0].function == "_main" and event.frames[0].file.endswith("multiprocessing/spawn.py")


def kind_of_only_error(event: LogEvent) -> CrashKind | None:
    """The kind of crash that an event tells of in a log without any other: then it is a finding in an echo's words."""
    if event.kind == "trouble":
        kind = crash_kind(event.text, raised=False)
        return kind if kind in ANYWAY else None
    raised = event.kind == "nccl" and _RAISED.match(event.text) is not None
    return crash_kind(event.text) if raised and not any(words in event.text for words in _ECHOES) else None


def kind_of(event: LogEvent, *, by_watchdog: bool = False) -> CrashKind | None:
    """The kind of crash that one event tells of; None for echoes of others' and for what ends no program. by_watchdog:
    what ended its thread counts too."""
    if event.kind not in _FAILURES or _lost_its_parent(event):
        return None
    text = event.text.partition(_THREAD_ENDED)[2] if by_watchdog and event.kind == "cuda" else ""
    kind = crash_kind(text or event.text, raised=event.kind == "error")
    if not text and kind not in ANYWAY and any(words in event.text for words in _ECHOES):
        return None
    if kind == "exception" and event.text.startswith(_NO_WHOLE_FILE):
        loads = (frame.file for frame in event.frames[:6] if "load" in frame.function)
        return "broken_file" if any(file.endswith("torch/serialization.py") for file in loads) else kind
    if kind is None and event.kind == "memory":
        return "host_memory"
    return kind
