"""PyTorch's own data parallel: DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions


def wrap(module: nn.Module, device: torch.device, options: StrategyOptions) -> DistributedDataParallel:
    return DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=options.bucket_cap_mb,
        find_unused_parameters=options.find_unused_parameters,
        gradient_as_bucket_view=True,  # no second copy of the gradients
    )


class PytorchDDP(Strategy):
    """DDP; `find_unused_parameters` for a model that leaves parameters out, which then keep no gradient."""

    syncs_in_backward = True

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.ddp = wrap(self.module, device, options)
        self.model = self.ddp
        self.optimizer = optimizer(self.parameters)

    @contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        with nullcontext() if last else self.ddp.no_sync():
            yield
