"""PyTorch's own ZeRO stage 1: DistributedDataParallel with ZeroRedundancyOptimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions
from traceops.train.strategies.pytorch_ddp import wrap


class PytorchZero1(Strategy):
    """Each rank has the optimizer state of some whole parameters, updates those and broadcasts them."""

    syncs_in_backward = True

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.ddp = wrap(self.module, device, options)
        self.model = self.ddp
        self.optimizer = ZeroRedundancyOptimizer(self.parameters, optimizer_class=optimizer.cls, **optimizer.options)

    @contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        with nullcontext() if last else self.ddp.no_sync():
            yield
