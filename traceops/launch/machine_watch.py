"""The machine while the ranks train: about once a second clocks, power, other processes; once its topology."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from traceops.capture.environment import host
from traceops.capture.progress import Progress, read_progress
from traceops.core.files import write_whole
from traceops.core.rank_files import machine_file
from traceops.core.redaction import redact_text
from traceops.fabric.reference import references_here
from traceops.machine import usage
from traceops.machine.files import output

_OTHERS_EVERY = 10  # looks; at each look while a rank waits for a core
_EACH = 30  # looks that all ask what was read
_TRIED, _MOST_TRIES = (0, 3), 10  # looks of ten at open files, and how many tens
_WAITS = 0.05  # of the time
_MUCH_PCT = 10.0  # of a core: a process that is worth a line
_MOST_OTHERS = 8
_JOIN_S = 1.0
_OF_A_RANK = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_RANK")  # in its environment


class MachineWatch:
    """A thread of the launcher's; what it cannot see or write it leaves out, and the run never waits for it. progress:
    folder of the ranks' records. gpus: whether the ranks run on them."""

    def __init__(
        self,
        out: Path,
        progress: Path,
        *,
        gpus: bool,
        nvml: Callable[[], usage.Nvml] = usage.Nvml,
        every_s: float = 1.0,
    ) -> None:
        self._file = out / machine_file(host())
        self._progress, self._gpus, self._open, self._every_s = progress, gpus, nvml, every_s
        self._nvml: usage.Nvml | None = None
        self._ended = threading.Event()
        self._looks = 0
        self._read: dict[int, dict[int, tuple[int, int]]] = {}  # by rank and process
        self._stored: set[int] = set()  # ranks whose storage is known
        self._waited: dict[int, tuple[int, float]] = {}
        self._cpu: tuple[int, dict[int, usage.Stat]] | None = None
        self._pressed = False
        self._thread = threading.Thread(target=self._run, name="traceops-machine", daemon=True)

    def start(self) -> None:
        """Begin, with a new file."""
        self._file.write_bytes(b"")
        self._thread.start()

    def finish(self) -> None:
        """End; a driver that does not answer is left behind."""
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            if self._gpus:
                self._write(self._begin())
            while not self._ended.wait(self._every_s):
                self._write(self.look(time.time_ns() // 1_000_000))
        except Exception:  # a full disk, a driver that goes away: the training is not affected
            return
        finally:
            if self._nvml is not None:
                self._nvml.close()

    def _begin(self) -> list[list[Any]]:
        try:
            self._nvml = self._open()
        except OSError:
            return []
        return [["g", g.index, g.uuid, g.name, g.most_mhz, g.limit_w] for g in self._nvml.gpus()]

    def look(self, now_ms: int) -> list[list[Any]]:
        """The lines of one look."""
        ranks = read_progress(self._progress)
        lines = self._ranks(now_ms, ranks)
        if ranks:
            stolen, wanted = usage.cores_ms()
            refused, used = usage.quota_ms(ranks[0].pid)
            lines.append(["h", now_ms, *map(_rounded, (stolen, refused, wanted, used))])
            if (moved := usage.network_bytes()) is not None:
                lines.append(["n", now_ms, *moved])
            if self._looks < _EACH or self._looks % _OTHERS_EVERY == 0:
                lines += self._reading(now_ms, ranks)
        if ranks and (self._pressed or self._looks % _OTHERS_EVERY == 0):
            lines += self._others(now_ms, ranks)
        self._looks += 1
        return lines + self._devices(now_ms)

    def _ranks(self, now_ms: int, ranks: list[Progress]) -> list[list[Any]]:
        lines: list[list[Any]] = []
        self._pressed = False
        for record in ranks:
            if (used := usage.process_time(record.pid)) is None:
                continue
            if used.wait_ms is not None:
                then, waited = self._waited.get(record.pid, (now_ms, used.wait_ms))
                self._pressed |= used.wait_ms - waited > _WAITS * max(now_ms - then, 1)
                self._waited[record.pid] = (now_ms, used.wait_ms)
            lines.append(
                ["r", now_ms, record.rank, record.pid, _rounded(used.cpu_ms), _rounded(used.wait_ms), used.faults,
                 used.core, _rounded(used.ran_ms)]
            )  # fmt: skip
        return lines

    def _reading(self, now_ms: int, ranks: list[Progress]) -> list[list[Any]]:
        """What the ranks have read until now, with the workers of their loaders that have ended; and from where."""
        lines: list[list[Any]] = []
        for record in ranks:
            seen = self._read.setdefault(record.rank, {})
            seen |= usage.bytes_read(record.pid)
            if seen:
                lines.append(["d", now_ms, record.rank, *map(sum, zip(*seen.values(), strict=True))])
            known = record.rank in self._stored or self._looks > _MOST_TRIES * _OTHERS_EVERY
            if (
                not known
                and self._looks % _OTHERS_EVERY in _TRIED
                and (found := usage.storage_of(record.pid)) is not None
            ):
                self._stored.add(record.rank)
                lines.append(["m", record.rank, *found])
        return lines

    def _others(self, now_ms: int, ranks: Sequence[Progress]) -> list[list[Any]]:
        """Processes that are not of this run and take a good part of a core. Of the run are also another launcher's
        ranks on this machine."""
        now = usage.all_processes()
        before, self._cpu = self._cpu, (now_ms, now)
        if before is None:
            return []
        then_ms, then = before
        ours = usage.descendants(now, os.getpid())
        met = {_meeting(record.pid) for record in ranks} - {None}
        busy = []
        for pid, stat in now.items():
            if pid in then and pid not in ours:
                pct = 100 * (stat.cpu_ms - then[pid].cpu_ms) / max(now_ms - then_ms, 1)
                if pct >= _MUCH_PCT and _meeting(pid) not in met:
                    busy.append((pct, pid, stat))
        busy = sorted(busy, key=lambda one: -one[0])[:_MOST_OTHERS]
        return [["p", now_ms, pid, redact_text(stat.name), round(pct, 1), stat.core] for pct, pid, stat in busy]

    def _devices(self, now_ms: int) -> list[list[Any]]:
        lines: list[list[Any]] = []
        if self._nvml is None:
            return lines
        for index in range(len(self._nvml)):
            one = self._nvml.now(index)
            lines.append(
                ["G", now_ms, index, one.mhz, one.reasons, _rounded(one.power_w), one.celsius, one.busy_pct,
                 one.used_bytes, [list(p) for p in one.processes], [list(p) for p in one.active]]
            )  # fmt: skip
        return lines

    def _write(self, lines: list[list[Any]]) -> None:
        if lines:
            text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
            with self._file.open("ab", buffering=0) as file:
                file.write(text.encode())


def _meeting(pid: int) -> tuple[str, ...] | None:
    """Where a rank, or a process that it started, meets the others of its run; None for what no launcher started."""
    variables = usage.started_with(pid, _OF_A_RANK)
    return variables[:-1] if variables else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


_PROGRAM_S = 20.0  # 1 to 3 s with eight GPUs whose driver has to wake up
_FINISH_S = 1.0


class FabricEvidence:
    """Collects it beside the training, which it neither delays nor fails. gpus: whether the ranks run on them. A run on
    the CPU leaves nothing, unless the doctor measured this machine."""

    def __init__(self, evidence: Path, *, gpus: bool) -> None:
        self._evidence, self._gpus = evidence, gpus
        self._work = threading.Thread(target=self._collect, daemon=True)
        self._work.start()

    def finish(self) -> None:
        """Wait a moment for what is not there yet; what comes later is lost."""
        self._work.join(_FINISH_S)

    def _collect(self) -> None:
        name = host()
        try:
            # Those of this machine for what the run uses, all its topologies: which it has now is for the reader.
            contents = [
                json.loads(Path(reference.source).read_bytes())
                for reference in references_here()
                if reference.host == name
                and reference.source is not None
                and any((row.backend == "gloo") != self._gpus for row in reference.measured)
            ]
            if contents:
                document = json.dumps({"references": contents}, indent=1)
                write_whole(self._evidence / f"reference.{name}.json", document.encode())
            program = shutil.which("nvidia-smi") if self._gpus else None
            if program is not None and (topology := output([program, "topo", "-m"], _PROGRAM_S).text):
                write_whole(self._evidence / f"topo.{name}.txt", topology.encode())
        except Exception:  # a full disk, a folder that is gone: the run says so itself, if it matters to it
            return
