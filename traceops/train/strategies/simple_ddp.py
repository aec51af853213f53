"""Data parallel as in the first chapter: after backward, one blocking all-reduce a parameter."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions


class SimpleDDP(Strategy):
    """Every rank has the whole model and its own part of the batch; gradients are averaged.

    Nothing overlaps: the devices compute, then communicate, then compute again. With gradient
    accumulation it synchronises after every micro-batch, right but wasteful; see `simple_ddp_ga`.
    """

    syncs_in_backward = False

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.optimizer = optimizer(self.parameters)

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        for p in self.parameters:
            if p.grad is None:  # unused here, but another rank may have used it
                p.grad = torch.zeros_like(p)
            # An average that is already in .grad stays what it is: world_size times its share.
            p.grad.div_(self.world_size)
            dist.all_reduce(p.grad)
