"""What torchao's AdamW8bit allocates, without its kernels: on fake tensors its quantisation reads values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LEAST = 4096  # elements of a parameter whose state is quantised
_BLOCK = 256  # elements with a scale in common; a parameter that is no multiple keeps its type


class AdamW8bitSizes(torch.optim.Optimizer):
    """Two states of a byte an element with a float32 scale for each block, updated in one compiled kernel."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                local = getattr(parameter, "_local_tensor", parameter)
                state = self.state[parameter]
                if not state:
                    small = local.numel() < _LEAST or local.numel() % _BLOCK
                    for name in ("exp_avg", "exp_avg_sq"):
                        if small:
                            state[name] = torch.empty_like(local)
                            continue
                        state[name] = torch.empty(local.numel(), dtype=torch.uint8)
                        state[f"{name}_scale"] = torch.empty(-(-local.numel() // _BLOCK))
