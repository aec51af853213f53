"""One look at a rank's process from outside, and whether it moved between two looks."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from traceops.capture.progress import Progress
from traceops.capture.responder import PULSE, STACKS_SIGNAL, ask, read_pulse, stacks_path

_ANSWER_S = 1.0
_SETTLED_S = 0.03
_STORAGE_BYTES_PER_S = 1e6
_CORES = 0.5
_LARGEST_BYTES = 1 << 20
_MAIN = re.compile(r"^# .* main thread 0x([0-9a-f]+)$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_LIBRARIES = re.compile(r"/(site-packages|dist-packages|lib/python3[^/]*|traceops/capture)/|^<")


@dataclass(frozen=True)
class Sight:
    """What a look at a rank showed.

    main: stack of its main thread as faulthandler prints it, None where it gave none. pulse: its own counters.
    storage_bytes: read and written by it and its children. cpu_s: their processor time; for a rank with a
    GPU only its children's, because waiting for a GPU takes a whole core.
    """

    rank: int
    time_s: float
    main: str | None = None
    pulse: dict[str, Any] = field(default_factory=dict)
    storage_bytes: int = 0
    cpu_s: float = 0.0

    def where(self) -> str:
        """The innermost of the training's own lines: 'evaluate (train.py:88)'; '' if the stack is unknown."""
        frames = _FRAME.findall(self.main or "")
        own = [frame for frame in frames if not _LIBRARIES.search(frame[0])]
        if not frames:
            return ""
        file, line, function = (own or frames)[0]
        return f"{function} ({Path(file).name}:{line})"

    def moved_since(self, before: Sight) -> bool:
        """Whether the rank did anything between the two looks."""
        elapsed = max(self.time_s - before.time_s, 1e-3)
        return (
            (self.main is not None and before.main is not None and self.main != before.main)
            or self.collectives_since(before)
            or self.pulse.get("gpu_allocations") != before.pulse.get("gpu_allocations")
            or (self.storage_bytes - before.storage_bytes) / elapsed > _STORAGE_BYTES_PER_S
            or (self.cpu_s - before.cpu_s) / elapsed > _CORES
        )

    def collectives_since(self, before: Sight) -> bool:
        """Whether the rank called collectives between the two looks."""
        return bool(before.pulse) and self.pulse.get("collectives") != before.pulse.get("collectives")


def look(records: Sequence[Progress], folder: Path) -> dict[int, Sight]:
    """A look at every rank that is alive, all of them at once; takes `_ANSWER_S` at most."""
    alive = [record for record in records if state(record.pid) not in ("gone", "Z")]
    for record in alive:
        ask(folder, record.rank, PULSE)
    texts = stacks_now(alive, folder)
    sights = {}
    for record in alive:
        storage, cpu = _spent(record.pid)
        sights[record.rank] = Sight(
            record.rank, time.monotonic(), _main_thread(texts.get(record.rank, "")),
            read_pulse(folder, record.rank), storage, cpu,
        )  # fmt: skip
    return sights


def stacks_now(records: Sequence[Progress], folder: Path) -> dict[int, str]:
    """The stacks of all threads as they are now, after the line that tells whose; ranks that give none miss."""
    before = {}
    for record in records:
        path = stacks_path(folder, record.rank)
        if path.exists() and _listens(record.pid):
            if path.stat().st_size > _LARGEST_BYTES:  # of many looks at a slow step
                os.truncate(path, len(_header(path)))
            before[record.rank] = path.stat().st_size
            with suppress(ProcessLookupError):
                os.kill(record.pid, STACKS_SIGNAL)
    deadline, sizes, changed = time.monotonic() + _ANSWER_S, dict(before), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(_SETTLED_S / 3)
        now = {rank: stacks_path(folder, rank).stat().st_size for rank in before}
        if now != sizes:
            sizes, changed = now, time.monotonic()
        elif all(now[rank] > before[rank] for rank in now) and time.monotonic() - changed > _SETTLED_S:
            break
    texts = {}
    for rank, size in before.items():
        if sizes[rank] > size:
            path = stacks_path(folder, rank)
            with path.open("rb") as file:
                file.seek(size)
                texts[rank] = (_header(path) + b"\n" + file.read()).decode(errors="replace")
    return texts


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline()


def state(pid: int) -> str:
    """The process's state as a letter (R, S, D, T, Z, …), or 'gone'."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def _listens(pid: int) -> bool:
    """Whether the process handles the signal; one that does not would die of it."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", text, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (STACKS_SIGNAL - 1) & 1)


def _main_thread(text: str) -> str | None:
    """The main thread's part of what faulthandler wrote."""
    main = _MAIN.search(text)
    if main is None:
        return None
    blocks = re.split(r"\n(?=(?:Current thread|Thread) 0x)", text)
    return next(
        (part for part in blocks if re.match(rf"\w+(?: thread)? 0x0*{main[1].lstrip('0')}\b", part)), None
    )


def _spent(pid: int) -> tuple[int, float]:
    """(bytes of storage, seconds of processor) of the process and its children; see `Sight`."""
    try:
        rank = psutil.Process(pid)
        family = [rank, *rank.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0, 0.0
    storage, cpu = 0, 0.0
    for process in family:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            counters = process.io_counters()
            storage += counters.read_bytes + counters.write_bytes
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process is not rank or not _uses_gpu(pid):
                times = process.cpu_times()
                cpu += times.user + times.system
    return storage, cpu


def _uses_gpu(pid: int) -> bool:
    """Whether the process has a GPU open; asked of the kernel, as the process may not be able to answer."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(descriptor.readlink()).startswith(("/dev/nvidia", "/dev/kfd", "/dev/dxg")):
                    return True
    return False
