"""Data parallel with buckets: gradients travel together, a bucket at a time, while backward goes on."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions
from traceops.train.strategies.buckets import LaunchInOrder, make_buckets


class Bucket:
    """The gradients of some parameters in one buffer, followed by one flag each: some rank used it."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        sizes = [p.numel() for p in parameters]
        first = parameters[0]
        self.parameters = parameters
        self.buffer = torch.empty(sum(sizes) + len(sizes), dtype=first.dtype, device=first.device)
        *gradients, self.used = torch.split(self.buffer, [*sizes, len(sizes)])
        self.gradients = [flat.view(p.shape) for flat, p in zip(gradients, parameters, strict=True)]
        self.unused_here: list[int] = []
        self.work: dist.Work | None = None

    def start_average(self, world_size: int) -> None:
        self.unused_here = [i for i, p in enumerate(self.parameters) if p.grad is None]
        self.used.fill_(1)
        for i, (p, gradient) in enumerate(zip(self.parameters, self.gradients, strict=True)):
            if p.grad is None:
                gradient.zero_()
                self.used[i].zero_()
            else:
                gradient.copy_(p.grad)
        self.buffer.div_(world_size)
        self.work = dist.all_reduce(self.buffer, async_op=True)

    def finish_average(self) -> None:
        if self.work is None:
            return
        self.work.wait()
        self.work = None
        # Reading a flag waits for the device, so only a rank that does not know the answer reads it.
        nobody_used = {i for i in self.unused_here if not self.used[i]}
        for i, (p, gradient) in enumerate(zip(self.parameters, self.gradients, strict=True)):
            p.grad = None if i in nobody_used else gradient


class BucketDDPAsync(Strategy):
    """What DDP does inside, option names included: `bucket_cap_mb` is a bucket's size in MiB.

    Buckets have fixed sets of parameters and start in the same order on every rank. A parameter unused
    on some ranks counts as zero there; one unused on all ranks keeps no gradient, as in one process.
    """

    syncs_in_backward = True

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.optimizer = optimizer(self.parameters)
        parameters = make_buckets(self.parameters, options.bucket_cap_mb * 2**20)
        self.buckets = [Bucket(bucket) for bucket in parameters]
        self.order = LaunchInOrder(parameters, self.launch)

    def launch(self, index: int) -> None:
        self.buckets[index].start_average(self.world_size)

    def backward(self, loss: Tensor) -> None:
        self.order.enabled = self.last_micro_step
        super().backward(loss)
        self.order.finish()

    def optimizer_step(self) -> None:
        for bucket in self.buckets:
            bucket.finish_average()
        super().optimizer_step()
