"""PyTorch's own data parallel: DistributedDataParallel, its ZeRO-1 optimizer, and fully_shard (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from traceops.core.errors import UsageError
from traceops.train.strategies.base import COMPUTE_DTYPE, Strategy, StrategyOptions, blocks_of, shared_between_blocks
from traceops.words.catalogue import fill


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

    def prepare(self) -> None:
        self.ddp = wrap(self.module, self.device, self.options)
        self.model = self.ddp
        self.optimizer = self.make_optimizer(self.parameters)

    @contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        with nullcontext() if last else self.ddp.no_sync():
            yield


class PytorchZero1(PytorchDDP):
    """Each rank has the optimizer state of some whole parameters, updates those and broadcasts them."""

    def prepare(self) -> None:
        self.ddp = wrap(self.module, self.device, self.options)
        self.model = self.ddp
        own = self.make_optimizer
        self.optimizer = ZeroRedundancyOptimizer(self.parameters, optimizer_class=own.cls, **own.options)


class _FSDP(Strategy):
    """`fully_shard` on every block, then on the model for the rest.

    With gradient accumulation gradients stay whole until the last micro-batch, then are reduce-scattered.
    bf16 and fp16 gather and compute in that type and reduce in float32. A parameter unused on all ranks
    keeps no gradient; one unused on some ranks only is not supported by FSDP2.
    """

    syncs_in_backward = True
    reshard_after_forward: ClassVar[bool]

    def prepare(self) -> None:
        if self.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
            raise UsageError(fill("train", "old_fsdp", "refused", version=torch.__version__))
        blocks = blocks_of(self.module)
        if shared_between_blocks(self.module) & {p for block in blocks for p in block.parameters()}:
            raise UsageError(fill("train", "shared_parameter", "refused"))
        dtype = COMPUTE_DTYPE.get(self.options.precision)
        policy = MixedPrecisionPolicy(dtype, torch.float32) if dtype else MixedPrecisionPolicy()
        # Without a GPU all is in the host's memory already.
        offload = self.options.offload == "cpu" and self.device.type != "cpu"
        own = CPUOffloadPolicy() if offload else OffloadPolicy()
        mesh = self.make_mesh()
        for block in blocks:
            fully_shard(
                block, mesh=mesh, reshard_after_forward=self.reshard_after_forward, mp_policy=policy, offload_policy=own
            )
        # The rest is needed until the end of forward and again when backward starts: freeing gains nothing.
        fully_shard(self.module, mesh=mesh, reshard_after_forward=False, mp_policy=policy, offload_policy=own)
        self.fsdp = cast(FSDPModule, self.module)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = self.make_optimizer(self.parameters)

    def make_mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("shard",))

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()  # the mixed-precision policy casts

    @contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        self.fsdp.set_requires_gradient_sync(last)
        yield

    def full_parameters(self) -> dict[str, Tensor]:
        return {
            name: p.full_tensor().detach().clone() if isinstance(p, DTensor) else p.detach().clone()
            for name, p in self.module.named_parameters()
        }


class PytorchZero2(_FSDP):
    """Parameters stay gathered between forward and backward: more memory, one all-gather less."""

    reshard_after_forward = False


class PytorchZero3(_FSDP):
    """Parameters are freed after forward and gathered again in backward."""

    reshard_after_forward = True


class PytorchHSDP(_FSDP):
    """Sharded inside groups of `shard_group_size` ranks, replicated between groups.

    The heavy all-gathers stay inside a group (a node, usually); only shards of gradients cross groups.
    """

    reshard_after_forward = True

    def make_mesh(self) -> DeviceMesh:
        shard = self.options.shard_group_size or self.world_size
        if self.world_size % shard:
            raise UsageError(f"--shard-group-size {shard} does not divide {self.world_size} ranks")
        return init_device_mesh(
            self.device.type, (self.world_size // shard, shard), mesh_dim_names=("replicate", "shard")
        )
