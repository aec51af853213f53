"""One rank of a job inside its process group: its device, its reports, and what the tests share."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch
import torch.distributed as dist
from msgspec import Struct

from traceops.doctor.job import Reporter

FAULT_ENV = "TRACEOPS_DOCTOR_FAULT"
_SLOW_S = 0.05


class Fault(Struct, frozen=True):
    """A fault to test the doctor with: ``stage:device:hang|die|fail|wrong|slow``, and ``:VARIABLE`` that cures it."""

    stage: str
    kind: str

    @staticmethod
    def of(text: str | None, device: int) -> Fault | None:
        """That of this device, numbered as in its job."""
        if not text:
            return None
        stage, faulty, kind, *cure = text.split(":")
        cured = any(name in os.environ for name in cure)
        return None if cured or int(faulty) != device else Fault(stage, kind)


class WorkerContext(Struct):
    """A rank of the job. device: of its tensors. stage: the one it is in. store: once it has met the others."""

    rank: int
    world_size: int
    device: torch.device
    reporter: Reporter
    fault: Fault | None
    stage: str = "start"
    store: Any = None  # torch's, which has no types to name

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def enter(self, stage: str) -> None:
        """Begin a stage, unless a fault keeps this rank from it."""
        self.stage = stage
        if self._has("hang"):
            while True:
                time.sleep(60)
        self.reporter.say("begin", stage=stage)
        if self._has("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._has("fail"):
            raise RuntimeError("a fault that was asked for")

    def at(self, what: str) -> None:
        """Note what this rank is about to do, in case it never returns from it."""
        self.reporter.say("at", stage=self.stage, what=what)
        self.pace()

    def pace(self) -> None:
        """Before each operation: a fault may slow it down."""
        if self._has("slow"):
            time.sleep(_SLOW_S)

    def finish(self) -> None:
        """End the stage once the device has done all of it."""
        self.synchronize()
        self.reporter.say("end", stage=self.stage)

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def pattern(self, count: int, dtype: torch.dtype, ranks: Sequence[int]) -> torch.Tensor:
        """The sum of what `ranks` send: small whole numbers, exact in every type, that differ by place and rank."""
        places = torch.arange(count, device=self.device) % 5
        return (places * len(ranks) + sum(rank % 8 for rank in ranks)).to(dtype)

    def check(self, what: str, got: torch.Tensor, expected: torch.Tensor) -> bool:
        """Compare; where they differ report how many elements and the first of them."""
        if self._has("wrong"):
            got = got.clone()
            got[-1] += 1
        differs = got != expected
        wrong = int(differs.sum())
        if wrong:
            first = int(differs.to(torch.int32).argmax())
            self.wrong(
                f"{what}: {wrong} of {got.numel()} elements wrong, the first is element {first}: "
                f"{got[first].item():g} instead of {expected[first].item():g}"
            )
        return not wrong

    def wrong(self, text: str) -> None:
        self.reporter.say("wrong", stage=self.stage, text=text)

    def most(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [float(value) for value in tensor.tolist()]

    def free_bytes(self) -> int:
        """Memory of the device that nobody uses."""
        if self.on_gpu:
            return int(torch.cuda.mem_get_info(self.device)[0])
        return int(psutil.virtual_memory().available) // self.world_size

    def _has(self, kind: str) -> bool:
        return self.fault == Fault(self.stage, kind)


def share_port(folder: str, port: int) -> None:
    """Tell the other ranks of this machine where the store listens."""
    part = Path(folder) / "port.part"
    part.write_text(json.dumps(port))
    part.rename(Path(folder) / "port")


def shared_port(folder: str) -> int:
    """Where the store listens, once rank 0 has said so; who waits too long is ended from outside."""
    path = Path(folder) / "port"
    while not path.exists():
        time.sleep(0.01)
    port: Any = json.loads(path.read_text())
    return int(port)
