"""Programs that copy between host and device, each in three ways: as people write it, pinned, and ahead on a stream.

`sick`: as written. `pinned`: from pinned memory with non_blocking=True, on the stream of kernels. `ahead`: that, and
on a stream of its own beside the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from case import CUDA, DEVICE, Loop, small
from torch import nn

MB = 1 << 20
Batch = list[torch.Tensor]


def mlp(width: int, layers: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(one for _ in range(layers) for one in (nn.Linear(width, width), nn.GELU()))).to(DEVICE)


def pool(make: Callable[[], Batch], way: str, count: int = 3) -> list[Batch]:
    batches = [make() for _ in range(count)]
    if way != "sick" and CUDA:
        batches = [[one.pin_memory() for one in batch] for batch in batches]
    return batches


def fed(batches: list[Batch], way: str, steps: int) -> Iterator[Batch]:
    """The batches on the device."""

    def over(number: int) -> Batch:
        return [one.to(DEVICE, non_blocking=way != "sick") for one in batches[number % len(batches)]]

    if way != "ahead" or not CUDA:
        for number in range(steps):
            yield over(number)
        return
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        following = over(0)
    for number in range(steps):
        torch.cuda.current_stream().wait_stream(side)
        batch = following
        for one in batch:
            one.record_stream(torch.cuda.current_stream())
        if number + 1 < steps:
            with torch.cuda.stream(side):
                following = over(number + 1)
        yield batch


def training(
    model: nn.Module, batches: list[Batch], way: str, loss_of: Callable[[nn.Module, Batch], torch.Tensor]
) -> Loop:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for batch in fed(batches, way, steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def square(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch[0]).float().square().mean()


def rows(width: int, mb: float) -> Callable[[], Batch]:
    return lambda: [torch.full((small(round(mb * MB / 4 / width), 8), width), 0.5)]


def small_batches(way: str) -> Loop:
    width = small(1024, 32)
    return training(mlp(width, 8), pool(rows(width, 2), way), way, square)


def medium_batches(way: str) -> Loop:
    width = small(2048, 32)
    return training(mlp(width, 6), pool(rows(width, 24), way), way, square)


def large_batches(way: str) -> Loop:
    width = small(2048, 32)
    return training(mlp(width, 6), pool(rows(width, 160), way), way, square)


def same_stream(way: str) -> Loop:
    """Pinned already; copied on the stream of the kernels unless ahead."""
    width = small(2048, 32)
    way = "pinned" if way == "sick" else way
    return training(mlp(width, 4), pool(rows(width, 320), way), way, square)


def pictures(way: str) -> Loop:
    torch.manual_seed(1)
    wide = small(96, 4)
    model = nn.Sequential(
        nn.Conv2d(3, wide, 7, 4, 3), nn.ReLU(), nn.Conv2d(wide, wide, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(wide, wide, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000),
    ).to(DEVICE, memory_format=torch.channels_last)  # fmt: skip
    count, side = small(128, 2), small(224, 32)

    def make() -> Batch:
        return [torch.randint(0, 255, (count, 3, side, side), dtype=torch.uint8), torch.randint(0, 1000, (count,))]

    def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
        seen = (batch[0].float() / 255).contiguous(memory_format=torch.channels_last)
        return nn.functional.cross_entropy(model(seen), batch[1])

    return training(model, pool(make, way), way, loss_of)


def graph_batches(way: str) -> Loop:
    """A batch of many tensors, each copied by itself."""
    width = small(512, 32)
    model = mlp(width, 6)

    def make() -> Batch:
        return [torch.full((small(160, 4), width), 0.5) for _ in range(24)]

    return training(model, pool(make, way), way, lambda model, batch: square(model, [torch.cat(batch)]))


def host_late(way: str) -> Loop:
    """Many tiny kernels that the host launches late, and pageable batches."""
    width = small(1024, 16)
    model = mlp(width, 4)

    def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
        seen = batch[0]
        part = seen[:64]
        for _ in range(small(300, 3)):
            part = part * 1.0001 + 0.0001
        return square(model, [seen]) + part.sum()

    return training(model, pool(rows(width, 32), way), way, loss_of)


def features_out(way: str) -> Loop:
    """What a layer gives is kept on the host in each step. pinned: into such memory; ahead: on a stream of its own."""
    width = small(2048, 32)
    model = mlp(width, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    batch = torch.randn(small(8192, 8), width, device=DEVICE)
    kept = torch.empty(batch.shape, pin_memory=CUDA)
    side = torch.cuda.Stream() if CUDA else None

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                seen = model(batch).float()
            seen.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if way == "sick" or side is None:
                seen.detach().cpu()
            elif way == "pinned":
                kept.copy_(seen.detach(), non_blocking=True)
            else:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    kept.copy_(seen.detach(), non_blocking=True)
                seen.record_stream(side)
            after()

    return loop


def adam_on_host(way: str) -> Loop:
    """Gradients go to the host, Adam runs there, weights come back."""
    width = small(1536, 16)
    model = mlp(width, 6)
    batch = torch.randn(small(8192, 8), width, device=DEVICE)
    pin = CUDA and way != "sick"
    weights = [
        nn.Parameter(one.detach().cpu().pin_memory() if pin else one.detach().cpu()) for one in model.parameters()
    ]
    for one in weights:
        one.grad = torch.empty(one.shape, pin_memory=pin)
    optimizer = torch.optim.Adam(weights, lr=1e-4, fused=True)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                model(batch).float().square().mean().backward()
            for own, host in zip(model.parameters(), weights, strict=True):
                host.grad.copy_(own.grad, non_blocking=pin)
            if CUDA:
                torch.cuda.current_stream().synchronize()
            optimizer.step()
            with torch.no_grad():
                for own, host in zip(model.parameters(), weights, strict=True):
                    own.copy_(host, non_blocking=pin)
                    own.grad = None
            after()

    return loop


def saved_on_host(way: str) -> Loop:
    """Activations are saved on the host for backward, in pageable or in pinned memory."""
    width = small(2048, 32)
    model = mlp(width, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    batch = torch.randn(small(4096, 8), width, device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with (
                torch.autograd.graph.save_on_cpu(pin_memory=CUDA and way == "pinned"),
                torch.autocast(DEVICE.type, torch.bfloat16),
            ):
                loss = model(batch).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


def scalars_out(way: str) -> Loop:
    """Sound but for small values that the host reads: the loss, and a few predictions."""
    width = small(2048, 32)
    model = mlp(width, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    batch = torch.randn(small(8192, 8), width, device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                seen = model(batch).float()
            loss = seen.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if way == "sick":
                loss.item()
                seen[:256].argmax(1).cpu()
            after()

    return loop


def checkpoints(way: str) -> Loop:
    """Each third step its weights go to the host, for a checkpoint."""
    width = small(2048, 32)
    model = mlp(width, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    batch = torch.randn(small(8192, 8), width, device=DEVICE)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for number in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(batch).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if way == "sick" and number % 3 == 2:
                {name: one.cpu() for name, one in model.state_dict().items()}
            after()

    return loop


# name -> the program, the ways that are measured, the steps that are timed
PROGRAMS: dict[str, tuple[Callable[[str], Loop], tuple[str, ...], int]] = {
    "small_batches": (small_batches, ("sick", "pinned", "ahead"), 40),
    "medium_batches": (medium_batches, ("sick", "pinned", "ahead"), 30),
    "large_batches": (large_batches, ("sick", "pinned", "ahead"), 16),
    "same_stream": (same_stream, ("sick", "ahead"), 16),
    "pictures": (pictures, ("sick", "pinned", "ahead"), 30),
    "graph_batches": (graph_batches, ("sick", "pinned", "ahead"), 30),
    "host_late": (host_late, ("sick", "pinned", "ahead"), 24),
    "features_out": (features_out, ("sick", "pinned", "ahead"), 16),
    "adam_on_host": (adam_on_host, ("sick", "pinned"), 8),
    "saved_on_host": (saved_on_host, ("sick", "pinned"), 6),
    "scalars_out": (scalars_out, ("sick", "ahead"), 30),
    "checkpoints": (checkpoints, ("sick", "ahead"), 18),
}
