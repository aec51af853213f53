"""PyTorch's own tensor parallel: each layer cut between the ranks, as Megatron does."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from traceops.train.strategies.base import OptimizerSpec, StrategyOptions
from traceops.train.strategies.blocks import blocks_of
from traceops.train.strategies.mesh import MeshStrategy


class PytorchTP(MeshStrategy):
    """The first linear layer of attention and of the MLP is cut by columns, the second one by rows.

    So a rank has whole heads, and nothing is sent between the two. All ranks have the same tokens, and each block
    adds up its two partial results with an all-reduce in forward, and the gradients of its inputs in backward.
    Embeddings, norms and the head are whole on every rank.
    """

    axis = "tp"

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        for block in blocks_of(self.module):
            parallelize_module(
                block,
                self.mesh,
                {
                    "attention.qkv": ColwiseParallel(),
                    "attention.out": RowwiseParallel(),
                    "mlp.0": ColwiseParallel(),
                    "mlp.2": RowwiseParallel(),
                },
            )
        self.parameters = list(self.module.parameters())
        # In groups of their own: an optimizer's fused kernels take either kind of tensor, not both at once.
        cut: list[nn.Parameter] = [p for p in self.parameters if isinstance(p, DTensor)]
        whole = [p for p in self.parameters if not isinstance(p, DTensor)]
        self.optimizer = optimizer([{"params": cut}, {"params": whole}])

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.average_over_replicas()

    def full_parameters(self) -> dict[str, Tensor]:
        return {
            name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
            for name, p in self.module.named_parameters()
        }
