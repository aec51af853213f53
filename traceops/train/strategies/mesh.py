"""What strategies on a mesh have in common: ranks that share a copy of the model, and copies that share the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from traceops.train.strategies.base import OptimizerSpec, Strategy, StrategyOptions
from traceops.train.strategies.buckets import make_buckets


class MeshStrategy(Strategy):
    """Ranks beside each other share a copy of the model; `replicas` copies, one behind the other, share the batch.

    Ranks 0 to 3 with two replicas: 0 and 1 share a copy (the dimension `axis` of the mesh), 2 and 3 the other one;
    gradients are averaged between 0 and 2, and between 1 and 3 (the dimension dp), after the last micro-batch.
    """

    axis: ClassVar[str]
    syncs_in_backward = False

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.axis_size = self.world_size // options.replicas
        self.axis_rank = self.rank % self.axis_size
        names = ("dp", self.axis) if options.replicas > 1 else (self.axis,)
        shape = (options.replicas, self.axis_size) if options.replicas > 1 else (self.axis_size,)
        whole = init_device_mesh(device.type, shape, mesh_dim_names=names)
        self.mesh = whole[self.axis]
        self.group = self.mesh.get_group()
        self.dp_group = whole["dp"].get_group() if options.replicas > 1 else None
        self.data_rank, self.data_size = self.rank // self.axis_size, options.replicas

    def average_over_replicas(self) -> None:
        """Make the gradients of a step those of the whole batch."""
        if self.dp_group is not None and self.last_micro_step:
            average(self.parameters, self.dp_group, self.options.bucket_cap_mb)


def average(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, cap_mb: float) -> None:
    """Average gradients over the ranks of `group`, in buckets of `cap_mb` MiB; of a DTensor, this rank's part."""
    for bucket in make_buckets(parameters, cap_mb * 2**20):
        parts = [local(p.grad) for p in bucket if p.grad is not None]
        flat = torch.cat([part.flatten() for part in parts])
        flat.div_(group.size())
        dist.all_reduce(flat, group=group)
        for part, averaged in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
            part.copy_(averaged.view_as(part))


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gathered(own: Mapping[str, Tensor], group: dist.ProcessGroup) -> dict[str, Tensor]:
    """The parameters that the ranks of `group` hold, by name, all together; a collective call."""
    parts: list[dict[str, Tensor]] = [{} for _ in range(group.size())]
    dist.all_gather_object(parts, {name: p.detach().cpu() for name, p in own.items()}, group=group)
    return {name: p for part in parts for name, p in part.items()}
