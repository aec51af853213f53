"""Data parallel by hand: an all-reduce per parameter, after backward, accumulated, in hooks, or asynchronous."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

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
