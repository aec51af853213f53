"""What the programs of several ranks share: a profiler as people write it, data made in code, and their own count."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from costs import next_step
from torch.profiler import profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, DistributedSampler

RANK = int(os.environ.get("RANK", "0"))


def options(**more: Any) -> argparse.Namespace:
    """--profile FOLDER: torch.profiler with a schedule; with --plain one window whose steps are not marked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    for name, default in more.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    return parser.parse_args()


def begin(seed: int = 0, **more: Any) -> argparse.Namespace:
    """The options, of a rank that has joined the others; with the same seed they draw the same weights."""
    given = options(**more)
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    return given


class Window:
    """The profiler of the script's own, or none."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.folder, self.plain, self.steps, self.profile = given.profile, given.plain, 0, None
        if self.folder and not self.plain:
            self.profile = profile(
                schedule=schedule(wait=9, warmup=1, active=6, repeat=1),
                on_trace_ready=tensorboard_trace_handler(str(self.folder), worker_name=f"rank{dist.get_rank()}"),
            )
            self.profile.start()

    def step(self) -> None:
        self.steps += 1
        next_step()
        if self.plain and self.folder and self.steps == 10:
            self.profile = profile()
            self.profile.start()
        elif self.plain and self.profile and self.steps == 16:
            self.profile.stop()
            self.folder.mkdir(parents=True, exist_ok=True)
            self.profile.export_chrome_trace(str(self.folder / f"trace_rank{dist.get_rank()}.json"))
            self.profile = None
        elif self.profile and not self.plain:
            self.profile.step()


@contextlib.contextmanager
def window(given: argparse.Namespace) -> Iterator[Window]:
    own = Window(given)
    yield own
    if own.profile:
        own.profile.stop()


def steps(given: argparse.Namespace, module: torch.nn.Module, first: int = 0) -> Iterator[int]:
    """Numbers of the steps, within the profiler; behind the last one the rank says what it counted, and leaves."""
    with window(given) as own:
        for step in range(first, first + given.steps):
            yield step
            own.step()
    tell(given.steps, module)
    dist.destroy_process_group()


def blocks(width: int, depth: int, out: int | None = None) -> torch.nn.Sequential:
    layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, out or width))


def samples(count: int, width: int, classes: int = 8) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, width, generator=generator)
    return torch.utils.data.TensorDataset(x, torch.randint(0, classes, (count,), generator=generator))


def for_ever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def sharded(data: Any, rows: int, **more: Any) -> Iterator[Any]:
    """Batches of each rank's part, for ever."""
    return for_ever(DataLoader(data, rows, sampler=DistributedSampler(data), **more))


def tell(steps: int, module: torch.nn.Module) -> None:
    digest = hashlib.sha256()
    for parameter in module.parameters():
        whole = parameter.detach()
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        digest.update(whole.float().contiguous().numpy().tobytes())
    if RANK == 0:
        print(f"steps {steps} weights {digest.hexdigest()[:16]}", flush=True)
