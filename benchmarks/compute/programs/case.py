"""What a case is: a program that wastes the device, and the same work done well. SMALL=1 DEVICE=cpu: tiny, on a CPU."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

DEVICE = os.environ.get("DEVICE", "cuda")
SMALL = os.environ.get("SMALL") == "1"

Step = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A program and its fix. labels: the causes an expert accepts. recorded: as `measured.record` knows.

    compiled: what it compiles is made before anything is timed. clean: nothing to find, so only `make(True)` runs.
    """

    name: str
    module: str
    make: Callable[[bool], Step]
    group: str
    labels: tuple[str, ...]
    fix: str
    expert: str
    work: str = "same"
    recorded: str = "shapes"
    compiled: bool = False
    clean: bool = False


CASES: dict[str, Case] = {}
_ROWS = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text().splitlines()]
RECORDS = {row.pop("name"): row | {"labels": tuple(row["labels"])} for row in _ROWS}


def pair(make: Callable[[bool], Step]) -> Callable[[bool], Step]:
    """Registers what makes a step, of the sick program (True) or of the fixed one, with its line in cases.jsonl."""
    CASES[make.__name__] = Case(make.__name__, make.__module__, make, **RECORDS[make.__name__])
    return make


def tuned(make: Callable[[], Step]) -> Callable[[], Step]:
    """Registers what makes the step of a program with nothing to find."""
    CASES[make.__name__] = Case(make.__name__, make.__module__, lambda sick: make(), **RECORDS[make.__name__])
    return make


def set_aside(name: str) -> bool:
    """Whether a case belongs to the half that is scored once, at the end. Drawn by its name, before any recording."""
    return hashlib.sha256(f"compute {name}".encode()).digest()[0] % 2 == 1


def size(full: int, small: int) -> int:
    return small if SMALL else full


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape, device=DEVICE)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype)


def layout(channels_last: bool) -> torch.memory_format:
    return torch.channels_last if channels_last else torch.contiguous_format


def images(batch: int, side: int, channels_last: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return normal(batch, 3, side, side, dtype=dtype).contiguous(memory_format=layout(channels_last))


def amp(enabled: bool = True, **more: Any) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(DEVICE, torch.bfloat16, **more) if enabled else contextlib.nullcontext()


def adamw(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **(more or {"fused": True}))


def training(
    loss: Callable[[], torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    autocast: bool = True,
    after_backward: Callable[[], Any] | None = None,
    after_step: Callable[[], Any] | None = None,
) -> Step:
    """A step of training: loss, backward, whatever the program does to gradients, the optimizer, and what follows."""

    def step() -> None:
        with amp(autocast):
            value = loss()
        value.backward()
        if after_backward is not None:
            after_backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if after_step is not None:
            after_step()

    return step


def inference(forward: Callable[[], Any]) -> Step:
    @torch.no_grad()
    def step() -> None:
        forward()

    return step


def captured(step: Step) -> Step:
    """The same step as a CUDA graph."""
    if DEVICE == "cpu":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
