"""Programs of make.py in plain torch that their host holds up."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import torch
from case import CUDA, DEVICE, Case, Loop, around, by_schedule, looped, small
from models import convolutions, deep, wide
from torch.nn import functional
from torch.profiler import ProfilerActivity

_KINDS_CUDA = [ProfilerActivity.CUDA] if CUDA else [ProfilerActivity.CPU]


def small_layers(item: bool = False, pause: bool = False) -> Callable[[bool, Path], Loop]:
    """Many small layers and an optimizer that takes them one by one; cured: a fused optimizer.

    item: the norms of all gradients are read on the host in each step. pause: a gc.collect() over a large heap in
    every fourth step.
    """

    def make(cured: bool, _folder: Path) -> Loop:
        model = deep()
        fast = {"fused": True} if CUDA else {"foreach": True}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **(fast if cured else {"foreach": False}))
        x = torch.randn(small(64, 4), small(256, 16), device=DEVICE)
        y = torch.randint(0, 10, (small(64, 4),), device=DEVICE)
        norms: list[float] = []

        def loop(steps: int, after: Callable[[], None]) -> None:
            heap = [{"a": [n]} for n in range(small(1_000_000, 1000))] if pause else []
            for number in range(steps):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                if item and not cured:
                    norms[:] = [p.grad.norm().item() for p in model.parameters()]
                optimizer.step()
                if pause and not cured and number % 4 == 3:
                    gc.collect()
                after()
            heap.clear()

        return loop

    return make


def item_loss(rows: int) -> Callable[[bool, Path], Loop]:
    """Layers of 2048; the losses of four parts of a batch, `rows` each, are read between them, at a cost or at none."""

    def make(cured: bool, _folder: Path) -> Loop:
        model = wide(2048, 12)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        parts = [torch.randn(small(rows, 4), small(2048, 32), device=DEVICE) for _ in range(4)]
        total: list[float] = []

        def step(_: int) -> None:
            running = torch.zeros((), device=DEVICE) if cured else 0.0
            for x in parts:
                loss = model(x).square().mean()
                loss.backward()
                running += loss.detach() if cured else loss.item()
            optimizer.step()
            optimizer.zero_grad()
            if not cured:
                total.append(running)

        return looped(step)

    return make


def emptied(cured: bool, _folder: Path) -> Loop:
    """torch.cuda.empty_cache() and synchronize() in each step, to save memory and to time the parts."""
    model = convolutions(128, 6).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x = torch.randn(small(64, 2), 3, small(128, 16), small(128, 16), device=DEVICE)
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 100, (small(64, 2),), device=DEVICE)

    def sync() -> None:
        if CUDA and not cured:
            torch.cuda.synchronize()

    def step(_: int) -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        sync()
        loss.backward()
        sync()
        optimizer.step()
        optimizer.zero_grad()
        sync()
        if CUDA and not cured:
            torch.cuda.empty_cache()

    return looped(step)


CASES = (
    Case("host_bound", small_layers(), by_schedule(1, 1, 4, record_shapes=True), cure=True, ahead="cured"),
    Case("host_bound_cuda_only", small_layers(), by_schedule(1, 1, 4, kinds=_KINDS_CUDA), cure=True, ahead="cured"),
    Case("item_cpu_only", item_loss(256), by_schedule(1, 1, 3, kinds=[ProfilerActivity.CPU]), cure=True, ahead="cured"),
    Case("item_parts", item_loss(256), by_schedule(2, 2, 5), cure=True, ahead="cured"),
    Case("item_large", item_loss(4096), around(3), cure=True, ahead="cured"),
    Case("host_bound_norms", small_layers(item=True), around(5, "trace.json.gz"), cure=True, ahead="cured"),
    Case("gc_pause", small_layers(pause=True), by_schedule(1, 1, 8), cure=True, ahead="cured"),
    Case(
        "empty_cache", emptied, by_schedule(1, 1, 3, profile_memory=True, record_shapes=True), cure=True, ahead="cured"
    ),
)
