"""Data parallel with overlap: all-reduces start in backward and are waited for before the step."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions


class SimpleDDPAsync(Strategy):
    """Backward goes on while earlier gradients travel, but each parameter pays a collective's latency.

    All ranks must use the same parameters in the same order, or their all-reduces would not match;
    a parameter unused on all ranks keeps no gradient.
    """

    syncs_in_backward = True

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.optimizer = optimizer(self.parameters)
        self.pending: list[dist.Work] = []
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.start_average)  # type: ignore[no-untyped-call]

    def start_average(self, p: Tensor) -> None:
        if self.last_micro_step and p.grad is not None:
            p.grad.div_(self.world_size)
            work = dist.all_reduce(p.grad, async_op=True)
            assert work is not None  # None is for ranks outside the group
            self.pending.append(work)

    def optimizer_step(self) -> None:
        for work in self.pending:
            work.wait()
        self.pending.clear()
        super().optimizer_step()
