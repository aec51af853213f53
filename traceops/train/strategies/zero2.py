"""ZeRO stage 2 by hand: whole parameters, gradients and optimizer state for one shard a rank."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions
from traceops.train.strategies.buckets import LaunchInOrder, make_buckets
from traceops.train.strategies.flat import FlatParameters, GradientSharder, all_gather


class Zero2(Strategy):
    """In backward, each bucket is reduce-scattered when ready and only the shard of its average kept.

    Whole gradients are gone after every backward, so each micro-batch communicates: with gradient
    accumulation memory is saved at the price of bandwidth. `bucket_cap_mb` is a bucket's size in MiB.
    """

    syncs_in_backward = True

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        buckets = make_buckets(self.parameters, options.bucket_cap_mb * 2**20)
        self.flats = [FlatParameters(bucket) for bucket in buckets]
        self.gradients = GradientSharder()
        self.order = LaunchInOrder(buckets, self.launch)
        self.optimizer = optimizer([flat.shard for flat in self.flats])

    def make_scaler(self, enabled: bool) -> torch.amp.GradScaler:
        # An inf is in one rank's shard only, so the ranks have to agree on skipping the step.
        return ShardedGradScaler(self.device.type, enabled=enabled, process_group=dist.group.WORLD)

    def launch(self, index: int) -> None:
        self.gradients.start(self.flats[index])

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.order.finish()
        self.gradients.finish()

    def optimizer_step(self) -> None:
        super().optimizer_step()
        for flat in self.flats:
            all_gather(flat.full, flat.shard.detach())
