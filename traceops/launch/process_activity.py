"""One look at a rank's process from outside, and whether it moved between two looks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
from msgspec import Struct, field

from traceops.capture.progress import Progress
from traceops.capture.responder import PULSE, STACKS, STACKS_SIGNAL, ask, read_pulse, stacks_path
from traceops.core.installation import stat_fields
from traceops.core.text import is_compiled_code

STARTING = -1
_ANSWER_S = 1.0
_SETTLED_S = 0.03
_PAUSE_S = 0.01
_STORAGE_BYTES_PER_S = 1e6
_CORES = 0.1  # a rank that waits takes none; one that works may have to share them
_LEAST_WAKEUPS, _WAKEUPS_PER_S = 2, 1.0  # a loader that never delivers is asked every 5 s
_SPINNING_CORES = 3.0  # one that waits for a GPU takes a core, and NCCL's network thread another
_HAS_PROC = Path("/proc/self/stat").exists()
_LIBRARIES = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*|traceops/capture)/|^<")


class ProcessSample(Struct, frozen=True):
    """What a look at a rank showed.

    pulse: what it said itself, see `traceops.capture.responder.pulse`; {} if it did not answer, because its
    main thread is inside a call that lets no other thread run. storage_bytes: read and written by it and its
    children. cpu_s: their processor time; for a rank with a GPU only its children's, because waiting for a
    GPU takes a whole core: its own are spinning_s. wakeups: how often the main thread has gone
    on after it waited: a loop that waits for a loader or sleeps shows one place in every look, and wakes up.
    """

    rank: int
    time_s: float
    pulse: dict[str, Any] = field(default_factory=dict)
    storage_bytes: int = 0
    cpu_s: float = 0.0
    spinning_s: float = 0.0
    wakeups: int = 0

    def where(self) -> str:
        """The innermost of the training's own lines: 'evaluate (train.py:88)'; '' if the stack is unknown."""
        frames = self.pulse.get("main") or []
        own = [frame for frame in frames if not (_LIBRARIES.search(frame[0]) or is_compiled_code(frame[0]))]
        if not frames:
            return ""
        file, line, function, _ = (own or frames)[0]
        return f"{function} ({Path(file).name}:{line})"

    def moved_since(self, before: ProcessSample) -> bool:
        """Whether the rank did anything between the two looks."""
        elapsed = max(self.time_s - before.time_s, 1e-3)
        return (
            (bool(self.pulse and before.pulse) and self.pulse != before.pulse)
            or (self.storage_bytes - before.storage_bytes) / elapsed > _STORAGE_BYTES_PER_S
            or (self.cpu_s - before.cpu_s) / elapsed > _CORES
            or (self.spinning_s - before.spinning_s) / elapsed > _SPINNING_CORES
        )

    def woken_since(self, earlier: ProcessSample) -> bool:
        """Whether the main thread kept waking up; one that waits for good does so every few seconds at most."""
        elapsed = self.time_s - earlier.time_s
        return self.wakeups - earlier.wakeups > max(_LEAST_WAKEUPS, _WAKEUPS_PER_S * elapsed)

    def collectives_since(self, before: ProcessSample) -> bool:
        """Whether the rank called collectives between the two looks."""
        return bool(self.pulse and before.pulse) and self.pulse["collectives"] != before.pulse["collectives"]


def look(alive: Sequence[Progress], folder: Path) -> dict[int, ProcessSample]:
    """A look at every one of these ranks, all of them at once; takes `_ANSWER_S` at most. Before there is any, at
    torchrun and what it starts, as rank `STARTING`."""
    if not alive:
        return {STARTING: ProcessSample(STARTING, time.monotonic(), {}, *spent(os.getpid()))}
    asked = {record.rank: read_pulse(folder, record.rank)[0] for record in alive}
    waited = {rank for rank in asked if ask(folder, rank, PULSE)}
    pulses: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + _ANSWER_S
    while waited - set(pulses) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        for rank in waited - set(pulses):
            answered, pulse = read_pulse(folder, rank)
            if answered != asked[rank]:
                pulses[rank] = pulse
    sights = {}
    for record in alive:
        storage, cpu, spinning = spent(record.pid)
        pulse = pulses.get(record.rank, {})
        sights[record.rank] = ProcessSample(
            record.rank, time.monotonic(), pulse, storage, cpu, spinning, _wakeups(record.pid)
        )
    return sights


def stacks_now(records: Sequence[Progress], folder: Path) -> dict[int, str]:
    """The stacks of all threads as they are now, after the line that tells whose; ranks that give none miss. Ranks
    whose threads can run are asked. The signal is for those that do not answer, whose main thread lets no other run:
    where another ran Python, it could crash the rank."""
    files = {record.rank: stacks_path(folder, record.rank) for record in records}
    before = {rank: path.stat().st_size for rank, path in files.items() if path.exists()}
    grown = _grown(files, {rank: size for rank, size in before.items() if ask(folder, rank, STACKS)})
    silent = {rank: size for rank, size in before.items() if rank not in grown}
    for record in records:
        if record.rank in silent and STACKS_SIGNAL is not None and listens(record.pid, STACKS_SIGNAL):
            with suppress(ProcessLookupError):
                os.kill(record.pid, STACKS_SIGNAL)
    if silent and STACKS_SIGNAL is not None:
        grown |= _grown(files, silent)
    texts = {}
    for rank in grown:
        with files[rank].open("rb") as file:
            header = file.readline()
            file.seek(before[rank])
            texts[rank] = (header + b"\n" + file.read()).decode(errors="replace")
    return texts


def _grown(files: Mapping[int, Path], before: Mapping[int, int]) -> set[int]:
    """The ranks whose file has grown and grows no more, `_ANSWER_S` later at most."""
    deadline, sizes, changed = time.monotonic() + _ANSWER_S, dict(before), time.monotonic()
    while before and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        now = {rank: files[rank].stat().st_size for rank in before}
        if now != sizes:
            sizes, changed = now, time.monotonic()
        elif all(now[rank] > size for rank, size in before.items()) and time.monotonic() - changed > _SETTLED_S:
            break
    return {rank for rank, size in before.items() if sizes[rank] > size}


def state(pid: int) -> str:
    """The process's state as a letter (R, S, D, T, Z, …), or 'gone'."""
    if fields := stat_fields(pid):
        return fields[0]
    if _HAS_PROC:
        return "gone"
    # A system without /proc needs another source.
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "gone"
    return {psutil.STATUS_STOPPED: "T", psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_RUNNING: "R"}.get(status, "S")


def is_alive(record: Progress) -> bool:
    """Whether the rank's process is still there."""
    return state(record.pid) not in ("gone", "Z")


def listens(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal; one that has not may die of it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", text, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def spent(pid: int) -> tuple[int, float, float]:
    """(bytes of storage, seconds of processor, seconds that may be spinning) of a process; see `ProcessSample`. Those
    that it has started are in the first two."""
    try:
        rank = psutil.Process(pid)
        family = [rank, *rank.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0, 0.0, 0.0
    storage, cpu, spinning = 0, 0.0, 0.0
    for process in family:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            counters = process.io_counters()
            storage += counters.read_bytes + counters.write_bytes
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times = process.cpu_times()
            if process is rank and _uses_gpu(pid):
                spinning = times.user + times.system
            else:
                cpu += times.user + times.system
    return storage, cpu, spinning


def _wakeups(pid: int) -> int:
    """Voluntary context switches of the main thread; 0 where the system does not tell."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
        if (found := re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", status, re.M)) is not None:
            return int(found[1])
    return 0


def _uses_gpu(pid: int) -> bool:
    """Whether the process has a GPU open; asked of the kernel, as the process may not be able to answer."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()).startswith(("/dev/nvidia", "/dev/kfd", "/dev/dxg")):
                    return True
    return False
