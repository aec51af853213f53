"""Programs of the second set with data made in the main thread, copies, or an allocator that is emptied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from case import CUDA, DEVICE, Case, Loop, around, by_schedule, small
from models import GPT, endless, tokens
from second_models import down_and_up
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

SIDE = small(64, 8)


class Volumes(Dataset):
    """Scans of a body, turned and blurred by numpy."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = np.random.default_rng(index)
        scan = drawn.random((1, SIDE, SIDE, SIDE), dtype=np.float32)
        for axis in (1, 2, 3):
            scan = 0.5 * scan + 0.25 * (np.roll(scan, 1, axis) + np.roll(scan, -1, axis))
        scan = np.rot90(scan, index % 4, (1, 2))
        labels = np.digitize(scan[0], (0.3, 0.5, 0.7))
        return torch.from_numpy(np.ascontiguousarray(scan)), torch.from_numpy(labels)


def volumes(cured: bool, _folder: Path) -> Loop:
    """A UNet of three dimensions: scans made in the main process, and overlaps counted by numpy in each step."""
    model = down_and_up("3d", 32, 2, 1, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    fed = endless(DataLoader(Volumes(), batch_size=small(4, 1)))
    kept = [part.to(DEVICE) for part in next(fed)]
    seen: list[float] = []

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            scans, labels = kept if cured else [part.to(DEVICE) for part in next(fed)]
            with torch.autocast(DEVICE.type, torch.bfloat16):
                out = model(scans)
                loss = functional.cross_entropy(out, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not cured:
                guess, true = out.detach().argmax(1).cpu().numpy(), labels.cpu().numpy()
                for kind in range(4):
                    a, b = guess == kind, true == kind
                    seen.append(2 * float((a & b).sum()) / max(1.0, float(a.sum() + b.sum())))
            after()

    return loop


def recommender(cured: bool, _folder: Path) -> Loop:
    """Words hashed in Python within the loop, no DataLoader; sparse tables that are updated one by one."""
    rows, tables, many = small(200_000, 100), small(26, 3), small(2048, 8)
    bags = nn.ModuleList(nn.EmbeddingBag(rows, 32, sparse=True, mode="sum") for _ in range(tables)).to(DEVICE)
    top = nn.Sequential(nn.Linear(32 * tables, 256), nn.ReLU(), nn.Linear(256, 1)).to(DEVICE)
    optimizers = [torch.optim.SparseAdam(list(bags.parameters())), torch.optim.Adam(top.parameters())]
    words = [[f"user{n % 977}:{table}" for n in range(many)] for table in range(tables)]

    def hashed(number: int) -> torch.Tensor:
        return torch.tensor([[hash(word + str(number)) % rows for word in of] for of in words])

    kept = hashed(0).to(DEVICE) if cured else None

    def loop(steps: int, after: Callable[[], None]) -> None:
        for number in range(steps):
            ids = kept if kept is not None else hashed(number).to(DEVICE)
            seen = torch.cat([bag(one[:, None]) for bag, one in zip(bags, ids, strict=True)], 1)
            loss = functional.binary_cross_entropy_with_logits(top(seen)[:, 0], torch.ones(many, device=DEVICE))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            after()

    return loop


def per_sample(cured: bool, _folder: Path) -> Loop:
    """Gradients of each sample by torch.func, clipped, with noise; empty_cache() behind each second step."""
    from torch.func import functional_call, grad, vmap

    wide = small(64, 4)
    net = nn.Sequential(
        nn.Conv2d(3, wide, 5, 2), nn.GroupNorm(4, wide), nn.ReLU(), nn.Conv2d(wide, 2 * wide, 3, 2), nn.ReLU(),
        nn.Conv2d(2 * wide, 4 * wide, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * wide, 10),
    ).to(DEVICE)  # fmt: skip
    weights = {name: p.detach() for name, p in net.named_parameters()}
    x = torch.randn(small(512, 2), 3, small(64, 40), small(64, 40), device=DEVICE)
    y = torch.randint(0, 10, (small(512, 2),), device=DEVICE)

    def loss_of(given: dict[str, torch.Tensor], one: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(net, given, (one[None],)), label[None])

    each = vmap(grad(loss_of), in_dims=(None, 0, 0))

    def loop(steps: int, after: Callable[[], None]) -> None:
        for number in range(steps):
            grads = each(weights, x, y)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
            part = (1.0 / (norms + 1e-6)).clamp(max=1.0)
            for name, g in grads.items():
                mean = torch.einsum("n,n...->...", part, g) / len(x)
                weights[name].sub_(0.01 * (mean + 0.01 * torch.randn_like(mean)))
            del grads, g, mean
            if CUDA and not cured and number % 2:
                torch.cuda.empty_cache()
            after()

    return loop


def offloaded(cured: bool, _folder: Path) -> Loop:
    """A GPT whose activations wait in the host's memory for the backward pass (save_on_cpu, pinned)."""
    model = GPT(6, 1024).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    ids = tokens(8)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            if cured:
                with torch.autocast(DEVICE.type, torch.bfloat16):
                    loss = model(ids)
            else:
                with torch.autograd.graph.save_on_cpu(pin_memory=CUDA), torch.autocast(DEVICE.type, torch.bfloat16):
                    loss = model(ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            after()

    return loop


CASES = (
    Case("volumes_numpy", volumes, around(4, "volumes.json"), cure=True, ahead="cured", steps=8, warm=4),
    Case("recommender_hash", recommender, around(4, with_stack=True), cure=True, ahead="cured"),
    Case("per_sample_emptied", per_sample, by_schedule(1, 1, 4, profile_memory=True), cure=True, ahead="cured"),
    Case("offloaded_activations", offloaded, by_schedule(1, 1, 3), cure=True, ahead="cured", steps=8, warm=4),
)
