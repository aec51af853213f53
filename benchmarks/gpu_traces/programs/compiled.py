"""Programs of make.py that torch.compile compiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from case import CUDA, DEVICE, Case, Loop, around, by_schedule, small
from models import GPT, tokens


def compiled(
    mode: str | None, layers: int = 3, width: int = 512, many: int = 16, lengths: bool = False
) -> Callable[[bool, Path], Loop]:
    """A compiled GPT. lengths: from a loop's fifth step on, batches have another length, and it compiles again."""

    def make(cured: bool, _folder: Path) -> Loop:
        model = GPT(layers, width, 8).to(DEVICE)
        how = {"mode": mode} if CUDA and mode else {} if CUDA else {"backend": "eager"}
        fast = torch.compile(model, dynamic=False, **how)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
        first = tokens(many)
        calls = [0]

        def loop(steps: int, after: Callable[[], None]) -> None:
            calls[0] += 1
            for number in range(steps):
                shorter = small(512, 16) - small(32, 1) * calls[0]
                ids = first[:, :shorter] if lengths and not cured and number >= 4 else first
                with torch.autocast(DEVICE.type, torch.bfloat16):
                    loss = fast(ids.contiguous())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                after()

        return loop

    return make


CASES = (
    Case("compile_reduce_overhead", compiled("reduce-overhead"), by_schedule(1, 1, 4), ahead="sick"),
    Case("compile_default", compiled(None, 2, 1024, 32), around(4, record_shapes=True), ahead="sick"),
    Case("compile_again", compiled(None, 1, 256, 8, lengths=True), by_schedule(1, 1, 6), cure=True, steps=8),
)
