"""ZeRO stage 1 by hand: whole parameters and gradients, optimizer state for one shard a rank."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions
from traceops.train.strategies.buckets import make_buckets
from traceops.train.strategies.flat import FlatParameters, all_gather, reduce_scatter


class Zero1(Strategy):
    """After backward: reduce-scatter the gradients, update the shard, all-gather the parameters."""

    syncs_in_backward = False

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.flats = [FlatParameters(same_dtype) for same_dtype in make_buckets(self.parameters, math.inf)]
        self.gradients = [torch.zeros_like(flat.full) for flat in self.flats]
        for flat, gradient in zip(self.flats, self.gradients, strict=True):
            for p, view in zip(flat.parameters, flat.split(gradient), strict=True):
                p.grad = view  # backward accumulates in place: no copy into the flat gradient
        self.optimizer = optimizer([flat.shard for flat in self.flats])

    def make_scaler(self, enabled: bool) -> torch.amp.GradScaler:
        # An inf is in one rank's shard only, so the ranks have to agree on skipping the step.
        return ShardedGradScaler(self.device.type, enabled=enabled, process_group=dist.group.WORLD)

    def optimizer_step(self) -> None:
        for flat, gradient in zip(self.flats, self.gradients, strict=True):
            gradient.div_(self.world_size)
            flat.shard.grad = torch.empty_like(flat.shard, requires_grad=False)
            reduce_scatter(flat.shard.grad, gradient)
        super().optimizer_step()
        for flat in self.flats:
            all_gather(flat.full, flat.shard.detach())

    def zero_grad(self) -> None:
        for flat, gradient in zip(self.flats, self.gradients, strict=True):
            gradient.zero_()
            flat.shard.grad = None
