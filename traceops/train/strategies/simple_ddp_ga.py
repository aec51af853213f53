"""Simple data parallel with gradient accumulation: only the last micro-batch synchronises."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions


class SimpleDDPGradAccum(Strategy):
    """Gradients add up locally and are averaged once an optimizer step, one parameter at a time."""

    syncs_in_backward = False

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.optimizer = optimizer(self.parameters)

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if not self.last_micro_step:  # what DDP calls no_sync
            return
        for p in self.parameters:
            if p.grad is None:  # unused here, but another rank may have used it
                p.grad = torch.zeros_like(p)
            p.grad.div_(self.world_size)
            dist.all_reduce(p.grad)
