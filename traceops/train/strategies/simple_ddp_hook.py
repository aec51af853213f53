"""Data parallel with the all-reduce in a hook: a gradient is averaged as soon as it is there."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions


class SimpleDDPHook(Strategy):
    """Communication moves into backward, but blocks it: each hook returns when its all-reduce is done.

    All ranks must use the same parameters in the same order, or their all-reduces would not match;
    a parameter unused on all ranks keeps no gradient.
    """

    syncs_in_backward = True

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.optimizer = optimizer(self.parameters)
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.average)  # type: ignore[no-untyped-call]

    def average(self, p: Tensor) -> None:
        if self.last_micro_step and p.grad is not None:
            p.grad.div_(self.world_size)
            dist.all_reduce(p.grad)
