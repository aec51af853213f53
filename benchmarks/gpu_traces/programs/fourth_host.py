"""Programs of the fourth set that the host holds up: by what it does, and by waiting for the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from case import BOTH, CUDA, DEVICE, Case, Loop, around, by_schedule, looped, nothing, small, wait
from models import GPT, Pictures, Residual, convolutions, deep, endless, tokens
from torch import nn
from torch.nn import functional
from torch.profiler import profile, record_function
from torch.utils.data import DataLoader


def two_slow_workers(cured: bool, _folder: Path) -> Loop:
    """Two workers are too slow, and each step's loss is read; cured: batches wait in pinned memory, nothing is read.
    Both copy a batch over in each step."""
    model = convolutions(192, 8).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    many = small(96, 2)
    data = DataLoader(Pictures(128, 6), batch_size=many, num_workers=2, pin_memory=CUDA, persistent_workers=True)
    fed = endless(data)
    kept = next(fed)

    def step(_: int) -> None:
        x, y = (part.to(DEVICE, non_blocking=True) for part in (kept if cured else next(fed)))
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = functional.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not cured:
            loss.item()

    return looped(step)


def stopped_prefetch(cured: bool, _folder: Path) -> Loop:
    """The next batch is made by numpy in the main thread. The loss is read before that, so the GPU stands meanwhile;
    cured: it is read one step later, when the next one is launched."""
    model = convolutions(256, 8).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    many, side = small(96, 2), small(112, 16)
    drawn = np.random.default_rng(0)
    base = drawn.random((many, 3, side, side), dtype=np.float32)
    y = torch.randint(0, 100, (many,), device=DEVICE)
    told: list[float] = []

    def made() -> torch.Tensor:
        picture = base * drawn.random((many, 1, 1, 1), dtype=np.float32)
        for _ in range(small(2, 1)):
            picture = np.roll(picture, 3, axis=-1)[..., ::-1] + 0.1
        batch = torch.from_numpy(np.ascontiguousarray(picture))
        return batch.pin_memory() if CUDA else batch

    def loop(steps: int, after: Callable[[], None]) -> None:
        coming, before = made(), None
        for _ in range(steps):
            x = coming.to(DEVICE, non_blocking=True).to(memory_format=torch.channels_last)
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not cured:
                told.append(loss.item())
            coming = made()
            if cured and before is not None:
                told.append(before.item())
            before = loss.detach()
            after()

    return loop


class Trace:
    """A step of an experiment that knows its neighbours."""

    def __init__(self, before: Trace | None) -> None:
        self.before, self.after, self.values = before, self, list(range(8))


def cycles(cured: bool, _folder: Path) -> Loop:
    """Many small layers whose step leaves 3,000 objects in rings behind, beside a heap of a million: Python's collector
    runs by itself; cured: no rings."""
    net = deep(60, 384)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=True)
    x = torch.randn(small(512, 8), small(384, 16), device=DEVICE)
    heap = [] if cured else [{"id": at, "near": [at, at + 1]} for at in range(small(500_000, 1000))]
    kept: list[list[Trace]] = []

    def step(_: int) -> None:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not cured and heap:
            ring: list[Trace] = []
            for _ in range(small(12_000, 20)):
                ring.append(Trace(ring[-1] if ring else None))
            kept.append(ring)
            del kept[:-6]

    return looped(step)


def waits_behind_each(cured: bool, _folder: Path) -> Loop:
    """A step whose launches take about as long as its kernels; synchronize() behind each for a timer; cured: none."""
    model = GPT(12, 768, 12).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    ids = tokens(16)
    took: list[float] = []

    def step(_: int) -> None:
        began = time.perf_counter()
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not cured:
            wait()
            took.append(time.perf_counter() - began)

    return looped(step)


def padded_texts(cured: bool, _folder: Path) -> Loop:
    """Python pads lists of numbers in the main process, and masks of 50 MB are copied from pageable memory; cured:
    batches and masks are on the device."""
    model = GPT(4, 768, 12).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    many, length = small(48, 2), small(512, 16)
    texts = [list(range(1, length - at % 7)) for at in range(many)]
    kept = tokens(48)
    allowed = torch.ones(many, length, length)
    there = allowed.to(DEVICE)

    def padded() -> torch.Tensor:
        rows = []
        for text in texts:
            row = [word % 100 for word in text]
            rows.append(row + [0] * (length - len(row)))
        return torch.tensor(rows)

    def step(_: int) -> None:
        ids = kept if cured else padded().to(DEVICE)
        mask = there if cured else allowed.to(DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model(ids) + 0.0 * mask.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return looped(step)


def histograms(cured: bool, _folder: Path) -> Loop:
    """Every weight is copied to the host in each step, where numpy makes a histogram of it; cured: none is made."""
    model = GPT(6, 512, 8).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    ids = tokens(16)
    written: list[str] = []

    def step(_: int) -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model(ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not cured:
            with record_function("log_histograms"):
                for name, part in model.named_parameters():
                    counts, _ = np.histogram(part.detach().flatten()[:20_000].cpu().numpy(), 30)
                    written.append(f"{name} {counts.tolist()}")

    return looped(step)


def checked_norms(cured: bool, _folder: Path) -> Loop:
    """Many small layers: gradients are clipped with error_if_nonfinite, and an Adam takes its weights one by one;
    cured: no check, all at once in one kernel."""
    net = deep(70, 512)
    fast = {"fused": True} if cured and CUDA else {"foreach": False}
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, **fast)
    x = torch.randn(small(1024, 8), small(512, 16), device=DEVICE)

    def step(_: int) -> None:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=not cured)
        optimizer.step()

    return looped(step)


def guided_sampler(cured: bool, _folder: Path) -> Loop:
    """A sampler of a diffusion model: each time is read on the host, small pictures, two passes a time; cured: times
    are known beforehand, both passes are one. Inference."""
    width = small(96, 8)
    body = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1), *(Residual(width) for _ in range(small(10, 1))), nn.Conv2d(width, 3, 3, 1, 1)
    ).to(DEVICE).eval()  # fmt: skip
    times = torch.linspace(1, 0.05, 12, device=DEVICE)
    known = times.tolist()
    start = torch.randn(small(4, 1), 3, small(64, 16), small(64, 16), device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        with torch.inference_mode():
            for _ in range(steps):
                x = start
                for at in range(len(times)):
                    t = known[at] if cured else times[at].item()
                    if cured:
                        with_text, without = body(torch.cat([x, x * 0.9])).chunk(2)
                    else:
                        with_text, without = body(x), body(x * 0.9)
                    x = x - 0.05 * t * (without + 3.0 * (with_text - without))
                after()

    return loop


def some_pictures(loop: Loop, folder: Path) -> None:
    """Behind two pictures that warm it up, with stacks."""
    loop(2, nothing)
    with profile(activities=BOTH, with_stack=True, record_shapes=True) as prof:
        loop(small(4, 2), prof.step)
    prof.export_chrome_trace(str(folder / "sample.json.gz"))


CASES = (
    Case("collected_by_itself", cycles, by_schedule(3, 1, 6), cure=True, steps=24, warm=8),
    Case("timer_waits", waits_behind_each, by_schedule(1, 1, 4), cure=True, ahead="cured", steps=20),
    Case("checked_norms", checked_norms, around(5, "norms.json", record_shapes=True), cure=True, ahead="cured"),
    Case("guided_sampler", guided_sampler, some_pictures, cure=True, ahead="cured"),
    Case("histograms_each_step", histograms, by_schedule(2, 1, 3), cure=True, ahead="cured", steps=8, warm=3),
)
INPUT = (
    Case("two_slow_workers", two_slow_workers, by_schedule(4, 2, 5), cure=True, steps=16, warm=8),
    Case("stopped_prefetch", stopped_prefetch, by_schedule(2, 1, 4), cure=True),
    Case("padded_masks", padded_texts, by_schedule(1, 1, 3, profile_memory=True), cure=True),
)
