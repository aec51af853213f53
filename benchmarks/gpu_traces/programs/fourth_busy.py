"""Programs of the fourth set that the GPU bounds, and to which nothing that costs is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from case import CUDA, DEVICE, Case, Loop, around, by_schedule, looped, small
from models import GPT, Pictures, convolutions, endless, tokens, wide
from torch import nn
from torch.nn import functional
from torch.profiler import record_function
from torch.utils.data import DataLoader


def small_graph(_cured: bool, _folder: Path) -> Loop:
    """A whole training step of some 3 ms in one CUDA graph; the batch is copied into it from pinned memory."""
    width, many = small(2048, 32), small(4096, 8)
    net = wide(2048, 5).to(torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=True)
    x = torch.randn(many, width, device=DEVICE, dtype=torch.bfloat16)
    y = torch.randint(0, 10, (many,), device=DEVICE)
    made = [torch.randn(many, width, dtype=torch.bfloat16) for _ in range(4)]
    made = [one.pin_memory() for one in made] if CUDA else made

    def one() -> None:
        functional.cross_entropy(net(x).float(), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    replay: Callable[[], object] = one
    kept = [one]  # a graph does not keep what it reads
    if CUDA:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                one()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            one()
        replay = graph.replay

    def loop(steps: int, after: Callable[[], None]) -> None:
        assert kept
        for number in range(steps):
            x.copy_(made[number % 4], non_blocking=True)
            replay()
            after()

    return loop


def compiled_gpt(_cured: bool, _folder: Path) -> Loop:
    """A compiled GPT, gradients clipped, a schedule of the rate; the loss is summed on the device."""
    model = GPT(6, 1024).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=1000)
    fast = torch.compile(model, dynamic=False, **({} if CUDA else {"backend": "eager"}))
    ids = tokens(32)
    total = torch.zeros((), device=DEVICE)

    def step(_: int) -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = fast(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad(set_to_none=True)
        total.add_(loss.detach())

    return looped(step)


class Mixer(nn.Module):
    """Products over patches, then over channels."""

    def __init__(self, width: int, places: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.over = nn.ModuleList(
            nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n))
            for _ in range(layers)
            for n in (places, width)
        )
        self.last = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at in range(0, len(self.norms), 2):
            x = x + self.over[at](self.norms[at](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.over[at + 1](self.norms[at + 1](x))
        return self.last(x.mean(1))


def mixer(_cured: bool, _folder: Path) -> Loop:
    """A mixer with a running mean of its weights, made at once; the loss is read every tenth step."""
    model = Mixer(small(768, 16), small(196, 4), small(10, 1)).to(DEVICE)
    mean = [part.detach().clone() for part in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    x = torch.randn(small(160, 2), small(196, 4), small(768, 16), device=DEVICE)
    y = torch.randint(0, 100, (len(x),), device=DEVICE)

    def step(step: int) -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch._foreach_lerp_(mean, [part.detach() for part in model.parameters()], 1e-3)
        if step % 10 == 9:
            print(f"{loss.item():.3f}", flush=True)

    return looped(step)


def embedded(_cured: bool, _folder: Path) -> Loop:
    """Vectors of many pictures: no training; two workers keep up, pinned batches, all vectors stay on the device."""
    net = convolutions(512, 10).to(memory_format=torch.channels_last).eval()
    data = DataLoader(
        Pictures(96, 0), batch_size=small(256, 2), num_workers=2, pin_memory=CUDA, persistent_workers=True,
        prefetch_factor=4,
    )  # fmt: skip
    fed = endless(data)
    found: list[torch.Tensor] = []

    def loop(steps: int, after: Callable[[], None]) -> None:
        found.clear()
        with torch.inference_mode(), torch.autocast(DEVICE.type, torch.bfloat16):
            for _ in range(steps):
                with record_function("embed_batch"):
                    x = next(fed)[0].to(DEVICE, non_blocking=True).to(memory_format=torch.channels_last)
                    found.append(functional.normalize(net(x).float()))
                after()

    return loop


CASES = (
    Case("small_graph", small_graph, by_schedule(3, 2, 8), steps=60, warm=10),
    Case("mixer_mean", mixer, by_schedule(2, 1, 3, record_shapes=True, profile_memory=True)),
    Case("embedded_pictures", embedded, around(6, "embed.json", with_stack=True), steps=16, warm=8),
)
COMPILED = (Case("compiled_clipped", compiled_gpt, by_schedule(1, 1, 3, with_modules=True), ahead="sick"),)
