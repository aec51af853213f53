"""The faults themselves, sized from a measured step so that they cost the same share of it everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import record_function

from benchmarks.planted.cases import Plant


@dataclass(frozen=True)
class Pace:
    """A healthy step: how long it takes, and how long the host needs to launch it (all of it on a CPU)."""

    step_ms: float
    launch_ms: float

    def host_delay_ms(self, share: float) -> float:
        """How long the host must be busy for a step to take `share` longer.

        The host runs ahead of a GPU, so that much less than this would not show at all.
        """
        return max(share * self.step_ms, (1 + share) * self.step_ms - self.launch_ms)


class Faults:
    """What this rank does wrong; `planned` says how much of it, in numbers, for the record.

    The training calls a method at each place where something may go wrong. Nothing does until `calibrate`.
    """

    def __init__(self, plants: list[Plant], device: torch.device, late_step: int) -> None:
        self.plants = {plant.kind: plant for plant in plants}
        self.device = device
        self.late_step = late_step
        self.step = 0  # of the capture; set by the training
        self.planned: dict[str, Any] = {}
        self._work: dict[str, Callable[[], None]] = {}
        self._begun = False

    def calibrate(self, pace: Pace) -> None:
        """Size the faults for a healthy step of `pace`; from now on they happen."""
        self._begun = True
        if "precision" in self.plants:
            torch.set_float32_matmul_precision("high")
        for kind, plant in self.plants.items():
            if kind == "gpu":
                self._work[kind] = self._products(plant.share * pace.step_ms)
            elif kind == "copy":
                self._work[kind] = self._copies(plant.share * pace.step_ms)
            elif kind in ("loader", "fetch", "host"):
                delay_ms = pace.host_delay_ms(plant.share)
                self.planned[f"{kind}_ms"] = delay_ms
                wait = _compute_in_python if kind == "host" else _sleep
                self._work[kind] = _later(wait, delay_ms / 1e3)

    def end(self) -> None:
        """Put back what is the process's and not the training's."""
        torch.set_float32_matmul_precision("highest")

    def batch_size(self, normal: int) -> int:
        """Samples a step of this rank."""
        plant = self.plants.get("batch")
        return normal if plant is None else round(normal * (1 + plant.share))

    def before_batch(self) -> None:
        if "fetch" in self._work:
            with record_function("dataloader_next"):
                self._do("fetch")

    def in_loader(self) -> None:
        self._do("loader")

    def before_forward(self) -> None:
        self._do("copy")

    def in_forward(self) -> None:
        self._do("gpu")

    def after_forward(self, loss: Tensor) -> None:
        if "host" in self._work:
            with record_function("user_metrics"):
                self._do("host")
        if "items" in self.plants:
            for number in range(round(self.plants["items"].share)):
                (loss.detach() * number).item()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Around forward, inside the training's own autocast."""
        if self._begun and "precision" in self.plants:
            with torch.autocast(self.device.type, enabled=False):
                yield
        elif self._begun and "attention" in self.plants:
            with sdpa_kernel([SDPBackend.MATH]):
                yield
        else:
            yield

    def _do(self, kind: str) -> None:
        work = self._work.get(kind)
        if work is not None and (not self.plants[kind].once or self.step == self.late_step):
            work()

    def _products(self, wanted_ms: float) -> Callable[[], None]:
        on_gpu = self.device.type == "cuda"
        size, dtype = (4096, torch.bfloat16) if on_gpu else (192, torch.float32)
        left = torch.randn(size, size, device=self.device, dtype=dtype)
        right, product = torch.randn_like(left), torch.empty_like(left)

        def times(count: int) -> None:
            with torch.no_grad():
                for _ in range(count):
                    torch.mm(left, right, out=product)

        times(20)
        each_ms = self._time_ms(lambda: times(50)) / 50
        count = max(1, round(wanted_ms / each_ms))
        self.planned.update(gpu_products=count, gpu_product_ms=each_ms, gpu_ms=count * each_ms)
        return lambda: times(count)

    def _copies(self, wanted_ms: float) -> Callable[[], None]:
        def copier(size: int) -> Callable[[], None]:
            pageable = torch.ones(size, dtype=torch.uint8)
            there = torch.empty(size, dtype=torch.uint8, device=self.device)

            def copy() -> None:
                there.copy_(pageable)

            return copy

        probe = 64 << 20
        copy = copier(probe)
        copy()
        probe_ms = min(self._time_ms(copy) for _ in range(3))
        size = min(4 << 30, max(1 << 16, round(probe * wanted_ms / probe_ms)))
        self.planned.update(copy_bytes=size, copy_ms=probe_ms * size / probe)
        return copier(size)

    def _time_ms(self, work: Callable[[], None]) -> float:
        synchronize(self.device)
        begin = time.perf_counter()
        work()
        synchronize(self.device)
        return (time.perf_counter() - begin) * 1e3


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if it is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _later(work: Callable[[float], None], seconds: float) -> Callable[[], None]:
    return lambda: work(seconds)


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _compute_in_python(seconds: float) -> None:
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += sum(range(100))
