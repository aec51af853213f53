"""ZeRO by hand: optimizer state, gradients and parameters cut into shards of flat buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from traceops.train.strategies.base import COMPUTE_DTYPE, Strategy, blocks_of, shared_between_blocks
from traceops.train.strategies.simple_ddp import LaunchInOrder, make_buckets

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
        """Take the gradients of `flat.parameters` away and start to add their average to the shards' `.grad`. A
        parameter without gradient counts as zero."""
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


class Zero(Strategy):
    """What all three have in common."""

    def make_scaler(self, enabled: bool) -> torch.amp.GradScaler:
        # An inf is in one rank's shard only, so the ranks have to agree on skipping the step.
        return ShardedGradScaler(self.device.type, enabled=enabled, process_group=dist.group.WORLD)


class Zero1(Zero):
    """After backward: reduce-scatter the gradients, update the shard, all-gather the parameters."""

    syncs_in_backward = False

    def prepare(self) -> None:
        self.flats = [FlatParameters(same_dtype) for same_dtype in make_buckets(self.parameters, math.inf)]
        self.gradients = [torch.zeros_like(flat.full) for flat in self.flats]
        for flat, gradient in zip(self.flats, self.gradients, strict=True):
            for p, view in zip(flat.parameters, flat.split(gradient), strict=True):
                p.grad = view  # backward accumulates in place: no copy into the flat gradient
        self.optimizer = self.make_optimizer([flat.shard for flat in self.flats])

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


class ZeroInBackward(Zero):
    """Gradients are reduce-scattered while backward goes on, a bucket or a unit at a time."""

    syncs_in_backward = True
    order: LaunchInOrder
    gradients: GradientSharder

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.order.finish()
        self.gradients.finish()


class Zero2(ZeroInBackward):
    """In backward, each bucket is reduce-scattered when ready and only the shard of its average kept.

    Whole gradients are gone after every backward, so each micro-batch communicates: with gradient
    accumulation memory is saved at the price of bandwidth. `bucket_cap_mb` is a bucket's size in MiB.
    """

    def prepare(self) -> None:
        buckets = make_buckets(self.parameters, self.options.bucket_cap_mb * 2**20)
        self.flats = [FlatParameters(bucket) for bucket in buckets]
        self.gradients = GradientSharder()
        self.order = LaunchInOrder(buckets, self.launch)
        self.optimizer = self.make_optimizer([flat.shard for flat in self.flats])

    def launch(self, index: int) -> None:
        self.gradients.start(self.flats[index])

    def optimizer_step(self) -> None:
        super().optimizer_step()
        for flat in self.flats:
            all_gather(flat.full, flat.shard.detach())


class Unit(FlatParameters):
    """Parameters that are gathered and freed together."""

    def __init__(self, parameters: Sequence[nn.Parameter], compute_dtype: torch.dtype) -> None:
        super().__init__(parameters, compute_dtype)
        self.in_backward = False
        self.is_gathered = True
        self.bytes = self.full.untyped_storage().nbytes()
        self.free()

    def gather(self) -> None:
        """Fill `full` from all ranks' shards; a collective call unless it is filled already."""
        if not self.is_gathered:
            self.full.untyped_storage().resize_(self.bytes)
            all_gather(self.full, self.shard.detach().to(self.full.dtype))
            self.is_gathered = True

    def free(self) -> None:
        """Give the memory of `full` back. Only its storage shrinks: what autograd saved in forward are views of that
        storage, and they are valid again once backward has gathered it."""
        self.full.untyped_storage().resize_(0)
        self.is_gathered = False


def cast(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating-point tensors, also inside tuples, lists and dicts, in `dtype`."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(cast(item, dtype) for item in value)
    if type(value) is dict:
        return {key: cast(item, dtype) for key, item in value.items()}
    return value


class Zero3(ZeroInBackward):
    """A block's parameters are all-gathered just before its forward and again before its backward.

    What belongs to no block, or to several (tied weights), is the root: gathered for the whole forward
    and backward. Gradients are reduce-scattered a block at a time in every micro-batch; all ranks must
    run the same blocks in the same order. With bf16 and fp16 parameters travel and compute in that type
    and frozen ones are stored in it; shards, their gradients and optimizer state stay float32.
    """

    def prepare(self) -> None:
        if dtype := COMPUTE_DTYPE.get(self.options.precision):
            for p in self.module.parameters():
                if not p.requires_grad:
                    p.data = p.to(dtype)
        names = {p: name for name, p in self.module.named_parameters()}
        self.names: list[list[str]] = []  # of each unit's parameters
        self.units: list[Unit] = []
        self.root_units: list[Unit] = []
        left = dict.fromkeys(self.parameters)
        shared = shared_between_blocks(self.module)
        for block in blocks_of(self.module):
            own = [p for p in block.parameters() if p in left and p not in shared]
            for unit in self._add_units(own, names):
                self._gather_around(block, unit)
            for p in own:
                del left[p]
        self.root_units = self._add_units(list(left), names)
        self.module.register_forward_pre_hook(self._gather_root)
        # Backward goes from the last block to the first and ends in the embeddings, that is in the root.
        count = len(self.units) - len(self.root_units)
        self.reduce_order = [*reversed(self.units[:count]), *self.units[count:]]
        self.order = LaunchInOrder([unit.parameters for unit in self.reduce_order], self.launch)
        self.gradients = GradientSharder()
        self.optimizer = self.make_optimizer([unit.shard for unit in self.units])

    def _add_units(self, parameters: list[nn.Parameter], names: dict[nn.Parameter, str]) -> list[Unit]:
        added = []
        for dtype in dict.fromkeys(p.dtype for p in parameters):  # a flat buffer has one dtype
            mine = [p for p in parameters if p.dtype == dtype]
            self.names.append([names[p] for p in mine])
            added.append(Unit(mine, COMPUTE_DTYPE.get(self.options.precision, dtype)))
        self.units += added
        return added

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # parameters are in the type to compute in already

    def _gather_root(self, *_: Any) -> None:
        for unit in self.root_units:
            unit.gather()

    def _gather_around(self, block: nn.Module, unit: Unit) -> None:
        dtype = COMPUTE_DTYPE.get(self.options.precision)

        def before_forward(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
            unit.gather()
            return (args, kwargs) if dtype is None else (cast(args, dtype), cast(kwargs, dtype))

        def after_forward(*_: Any) -> None:
            if not unit.in_backward:  # activation checkpointing runs forward again inside backward
                unit.free()

        def before_backward(*_: Any) -> None:
            unit.in_backward = True
            unit.gather()

        block.register_forward_pre_hook(before_forward, with_kwargs=True)
        block.register_forward_hook(after_forward)
        block.register_full_backward_pre_hook(before_backward)

    def launch(self, index: int) -> None:
        """All gradients of a unit are there, so nothing in backward needs its parameters any more."""
        unit = self.reduce_order[index]
        self.gradients.start(unit)
        unit.free()
        unit.in_backward = False

    def optimizer_step(self) -> None:
        super().optimizer_step()
        for unit in self.units:
            unit.free()  # a forward without backward, as in evaluation, leaves the root gathered

    def full_parameters(self) -> dict[str, Tensor]:
        whole = {name: p.detach() for name, p in self.module.named_parameters() if not p.requires_grad}
        for names, unit in zip(self.names, self.units, strict=True):
            whole.update(zip(names, unit.split(unit.gathered()), strict=True))
        return {name: whole[name].clone() for name, _ in self.module.named_parameters()}
