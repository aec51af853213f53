"""Data parallel by hand: an all-reduce per parameter (after backward, in hooks, asynchronous) or per bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from traceops.train.strategies.base import Strategy


class SimpleDDP(Strategy):
    """Every rank has the whole model and its own part of the batch; gradients are averaged.

    Nothing overlaps: the devices compute, then communicate, then compute again. With gradient
    accumulation it synchronises after every micro-batch, right but wasteful; see `simple_ddp_ga`.
    """

    syncs_in_backward = False
    averages_each: ClassVar[bool] = True  # micro-batch's gradients

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if not (self.last_micro_step or self.averages_each):  # what DDP calls no_sync
            return
        for p in self.parameters:
            if p.grad is None:  # unused here, but another rank may have used it
                p.grad = torch.zeros_like(p)
            # An average that is already in .grad stays what it is: world_size times its share.
            p.grad.div_(self.world_size)
            dist.all_reduce(p.grad)


class SimpleDDPGradAccum(SimpleDDP):
    """Gradients add up locally and are averaged once per optimizer step, one parameter at a time."""

    averages_each = False


class SimpleDDPHook(Strategy):
    """Communication moves into backward, but blocks it: each hook returns when its all-reduce is done.

    All ranks must use the same parameters in the same order, or their all-reduces would not match;
    a parameter unused on all ranks keeps no gradient.
    """

    syncs_in_backward = True

    def prepare(self) -> None:
        self.optimizer = self.make_optimizer(self.parameters)
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.average)  # type: ignore[no-untyped-call]

    def average(self, p: Tensor) -> None:
        if self.last_micro_step and p.grad is not None:
            p.grad.div_(self.world_size)
            dist.all_reduce(p.grad)


class SimpleDDPAsync(Strategy):
    """Backward goes on while earlier gradients travel, but each parameter pays a collective's latency.

    All ranks must use the same parameters in the same order, or their all-reduces would not match;
    a parameter unused on all ranks keeps no gradient.
    """

    syncs_in_backward = True

    def prepare(self) -> None:
        self.optimizer = self.make_optimizer(self.parameters)
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


def make_buckets(parameters: Sequence[nn.Parameter], cap_bytes: float) -> list[list[nn.Parameter]]:
    """Split `parameters` into buckets of one dtype and at most `cap_bytes` (or a single parameter) each. Last
    parameters first: backward reaches them first, so that is about the order buckets get ready in."""
    buckets: list[list[nn.Parameter]] = []
    open_bucket: dict[torch.dtype, tuple[list[nn.Parameter], int]] = {}
    for p in reversed(parameters):
        bucket, filled = open_bucket.get(p.dtype, ([], 0))
        size = p.numel() * p.element_size()
        if not bucket or filled + size > cap_bytes:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(p)
        open_bucket[p.dtype] = (bucket, filled + size)
    return buckets


class LaunchInOrder:
    """Calls ``launch(index)`` for bucket 0, 1, 2, … as soon as it and all before it have their gradients.

    Collectives match by the order they are called in. Gradients may get ready in another order on
    another rank (a branch, an unused parameter), so a bucket that is ready early waits for those before it.
    """

    def __init__(self, buckets: Sequence[Sequence[nn.Parameter]], launch: Callable[[int], None]) -> None:
        self.enabled = True
        self._buckets, self._launch = buckets, launch
        self._start_over()
        for index, bucket in enumerate(buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(self._hook_of(index))  # type: ignore[no-untyped-call]

    def _start_over(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._next = 0

    def _hook_of(self, index: int) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            if not self.enabled:
                return
            self._missing[index] -= 1
            while self._next < len(self._buckets) and not self._missing[self._next]:
                self._launch_next()

        return ready

    def _launch_next(self) -> None:
        self._next += 1
        self._launch(self._next - 1)

    def finish(self) -> None:
        """After backward: launch what still waits for parameters that got no gradient."""
        if self.enabled:
            while self._next < len(self._buckets):
                self._launch_next()
            self._start_over()


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

    def prepare(self) -> None:
        self.optimizer = self.make_optimizer(self.parameters)
        parameters = make_buckets(self.parameters, self.options.bucket_cap_mb * 2**20)
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
