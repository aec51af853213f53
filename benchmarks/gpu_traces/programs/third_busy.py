"""Programs of the third set that the GPU bounds, and to which nothing that costs is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from case import BOTH, CUDA, DEVICE, Case, Loop, around, by_schedule, nothing, small
from models import GPT, VOCAB, convolutions, tokens, wide
from second_models import Tower
from torch.nn import functional
from torch.profiler import profile, schedule, tensorboard_trace_handler
from torch.utils.checkpoint import checkpoint_sequential


def long_loop(_cured: bool, _folder: Path) -> Loop:
    """Four large layers and SGD, the whole training of 300 steps in one window."""
    net = wide(4096, 4).to(torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=True)
    x = torch.randn(small(8192, 8), small(4096, 32), device=DEVICE, dtype=torch.bfloat16)
    y = torch.randint(0, 10, (small(8192, 8),), device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            loss = functional.cross_entropy(net(x).float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            after()

    return loop


def with_ddp(_cured: bool, _folder: Path) -> Loop:
    """A GPT in DDP, started for a single rank."""
    if not dist.is_initialized():
        dist.init_process_group("nccl" if CUDA else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(GPT(6, 1024).to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    ids = tokens(32)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            after()

    return loop


def by_rank_0(loop: Loop, folder: Path) -> None:
    """Only rank 0 profiles, and marks its steps."""
    prof = profile(
        activities=BOTH, schedule=schedule(skip_first=4, wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=tensorboard_trace_handler(str(folder), worker_name="rank0"),
    ) if dist.get_rank() == 0 else None  # fmt: skip
    if prof is not None:
        prof.start()
    loop(10, prof.step if prof is not None else nothing)
    if prof is not None:
        prof.stop()
    dist.destroy_process_group()


def augmented(_cured: bool, _folder: Path) -> Loop:
    """A vision transformer: pictures are turned on the GPU, activations computed again, two micro-batches a step."""
    tower = Tower(768, 8, small(768, 16)).to(DEVICE)
    many, side, patch = small(96, 2), small(224, 16), small(16, 4)
    pictures = torch.rand(many, 3, side, side, device=DEVICE)
    cut = torch.nn.Linear(3 * patch * patch, small(768, 16)).to(DEVICE)
    optimizer = torch.optim.AdamW([*tower.parameters(), *cut.parameters()], lr=1e-4, weight_decay=0.05)
    y = torch.randint(0, small(256, 16), (many,), device=DEVICE)

    def turned(x: torch.Tensor) -> torch.Tensor:
        angle = torch.randn(len(x), device=DEVICE) * 0.1
        flat = torch.zeros_like(angle)
        way = torch.stack(
            [torch.stack([angle.cos(), -angle.sin(), flat], 1), torch.stack([angle.sin(), angle.cos(), flat], 1)], 1
        )
        grid = functional.affine_grid(way, list(x.shape), align_corners=False)
        return functional.grid_sample(x, grid, align_corners=False)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            for _ in range(2):
                with torch.no_grad():
                    x = functional.unfold(turned(pictures), patch, stride=patch).transpose(1, 2)
                with torch.autocast(DEVICE.type, torch.bfloat16):
                    seen = checkpoint_sequential(
                        tower.blocks, min(2, len(tower.blocks)), tower.first(cut(x)),
                        use_reentrant=False,
                    )  # fmt: skip
                    loss = functional.cross_entropy(tower.last(seen.mean(1)).float(), y) / 2
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def prefetched(_cured: bool, _folder: Path) -> Loop:
    """Convolutions; the next batch comes from pinned memory on a stream of its own while this one is computed."""
    model = convolutions(256, 8).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
    many, side = small(128, 2), small(160, 16)
    made = [torch.rand(many, 3, side, side) for _ in range(4)]
    made = [one.pin_memory() for one in made] if CUDA else made
    y = torch.randint(0, 100, (many,), device=DEVICE)
    stream = torch.cuda.Stream() if CUDA else None

    def fetched(number: int) -> torch.Tensor:
        if stream is None:
            return made[number % 4]
        with torch.cuda.stream(stream):
            return made[number % 4].to(DEVICE, non_blocking=True)

    def loop(steps: int, after: Callable[[], None]) -> None:
        coming = fetched(0)
        for number in range(steps):
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)
                coming.record_stream(torch.cuda.current_stream())
            x = coming.to(memory_format=torch.channels_last)
            coming = fetched(number + 1)
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after()

    return loop


def replayed(_cured: bool, _folder: Path) -> Loop:
    """A whole training step in one CUDA graph, made by hand; each batch is copied into it from pinned memory."""
    model = GPT(4, 768, 12).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"capturable": True} if CUDA else {}))
    ids = tokens(16)
    batches = [torch.randint(0, VOCAB, tuple(ids.shape)).pin_memory() if CUDA else ids.clone() for _ in range(4)]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, torch.bfloat16, cache_enabled=False):
            loss = model(ids)
        loss.backward()
        optimizer.step()

    replay = step
    if CUDA:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        replay = graph.replay

    def loop(steps: int, after: Callable[[], None]) -> None:
        for number in range(steps):
            ids.copy_(batches[number % 4], non_blocking=True)
            replay()
            after()

    return loop


CASES = (
    Case("long_loop_300", long_loop, around(small(300, 12), "run.json"), ahead="sick"),
    Case("prefetched_stream", prefetched, by_schedule(2, 2, 4, profile_memory=True), ahead="sick"),
    Case("graph_by_hand", replayed, around(12, "graph.json.gz"), ahead="sick"),
    Case("augmented_on_gpu", augmented, by_schedule(3, 1, 2, with_stack=True, with_modules=True), ahead="sick"),
    Case("ddp_of_one", with_ddp, by_rank_0, ahead="sick"),
)  # fmt: skip
