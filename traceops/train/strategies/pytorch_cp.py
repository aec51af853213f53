"""PyTorch's own context parallel: each sequence cut between the ranks, attention passed around a ring."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.experimental import context_parallel

from traceops.train.strategies.base import OptimizerSpec, StrategyOptions
from traceops.train.strategies.mesh import MeshStrategy, average


class PytorchCP(MeshStrategy):
    """A rank has a part of every sequence: everything but attention needs no other token.

    In attention, keys and values go around a ring of the ranks, in backward their gradients too. Each rank takes a
    piece of the sequence's beginning and one of its end, because later tokens look back at more. Every rank has the
    whole model, so gradients are averaged over all ranks. torch has the ring for its attention kernels on GPUs only.
    """

    axis = "cp"

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.optimizer = optimizer(self.parameters)

    def forward_backward(self, tokens: Tensor, targets: Tensor, parts: int = 1) -> Tensor | None:
        positions = torch.arange(tokens.shape[1], device=self.device)
        buffers = [tokens.clone(), targets.clone(), positions]  # whole, cut in place while the context is open
        with context_parallel(self.mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0]):
            with self.autocast():
                loss: Tensor = self.model(*buffers)
            self.backward(loss / parts)
        if self.last_micro_step:
            everybody = dist.group.WORLD
            assert everybody is not None
            average(self.parameters, everybody, self.options.bucket_cap_mb)
        return loss
