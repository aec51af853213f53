"""Flat parameters: several parameters in one padded buffer that divides evenly between the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

# torch 2.13 renamed them and warns at every call of the old names.
all_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor


class FlatParameters:
    """Parameters laid end to end in `full`, of which this rank owns the contiguous `shard`.

    `full` has shape (shard size × world size,), the end being padding; the parameters become views of it.
    `shard` has shape (shard size,) and is what the optimizer gets. It is a view of `full`, or, if
    `compute_dtype` is given, a copy in the parameters' own dtype, and `full` is in `compute_dtype`.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], compute_dtype: torch.dtype | None = None) -> None:
        world_size, rank = dist.get_world_size(), dist.get_rank()
        first = parameters[0]
        self.parameters = list(parameters)
        self.shapes = [p.shape for p in parameters]
        self.sizes = [p.numel() for p in parameters]
        shard_size = -(-sum(self.sizes) // world_size)
        self.full = torch.zeros(shard_size * world_size, dtype=first.dtype, device=first.device)
        for p, view in zip(self.parameters, self.split(self.full), strict=True):
            view.copy_(p.detach())
        mine = self.full[rank * shard_size : (rank + 1) * shard_size]
        if compute_dtype is not None:
            mine = mine.clone()
            self.full = self.full.to(compute_dtype)
        self.shard = nn.Parameter(mine)
        for p, view in zip(self.parameters, self.split(self.full), strict=True):
            p.data = view

    def split(self, full: Tensor) -> list[Tensor]:
        """The views of a tensor laid out like `full` that belong to the parameters, in their shapes."""
        flat = torch.split(full[: sum(self.sizes)], self.sizes)
        return [part.view(shape) for part, shape in zip(flat, self.shapes, strict=True)]

    def gathered(self) -> Tensor:
        """The shards of all ranks, in a new tensor laid out like `full`; a collective call."""
        full = self.shard.new_empty(self.full.shape)
        all_gather(full, self.shard.detach())
        return full


@dataclass
class _Reduction:
    work: dist.Work | None
    source: Tensor  # must live until the collective is done
    result: Tensor
    shard: nn.Parameter


class GradientSharder:
    """Reduce-scatters gradients in the background, so that each rank keeps only its shard of the average.

    At most `in_flight` buffers of whole gradients exist at a time.
    """

    def __init__(self, in_flight: int = 2) -> None:
        self._in_flight = in_flight
        self._running: list[_Reduction] = []

    def start(self, flat: FlatParameters) -> None:
        """Take the gradients of `flat.parameters` away and start to add their average to the shards' `.grad`.

        A parameter without gradient counts as zero.
        """
        while len(self._running) >= self._in_flight:
            self._finish_oldest()
        source = torch.zeros(flat.full.shape, dtype=flat.shard.dtype, device=flat.full.device)
        for p, view in zip(flat.parameters, flat.split(source), strict=True):
            if p.grad is not None:
                view.copy_(p.grad)
                p.grad = None
        source.div_(dist.get_world_size())
        result = torch.empty_like(flat.shard, requires_grad=False)
        work = reduce_scatter(result, source, async_op=True)
        self._running.append(_Reduction(work, source, result, flat.shard))

    def _finish_oldest(self) -> None:
        done = self._running.pop(0)
        if done.work is not None:
            done.work.wait()  # on CUDA the stream waits, not the host
        if done.shard.grad is None:
            done.shard.grad = done.result
        else:
            done.shard.grad.add_(done.result)

    def finish(self) -> None:
        """Wait for all; every shard then has its gradient."""
        while self._running:
            self._finish_oldest()
