"""What every strategy offers the training loop, and the parts they have in common."""

from __future__ import annotations

from abc import ABC
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

# What forward and backward compute in; weights and optimizer state stay float32 (float64 for fp64).
COMPUTE_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer class and its options, so that each strategy decides which tensors it gets."""

    cls: type[torch.optim.Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]]) -> torch.optim.Optimizer:
        return self.cls(parameters, **self.options)


@dataclass(frozen=True)
class StrategyOptions:
    """Settings of the strategies; each takes the ones it has a use for.

    `bucket_cap_mb` is in MiB; `shard_group_size` (HSDP) in ranks, None for one group of all ranks. `replicas` is
    how many copies of the model the ranks of a mesh hold. Of pipelines: `pp_schedule`, one of PP_SCHEDULES,
    `micro_batches`, and `stage_layers`, the blocks of each stage, () for as many each. Of experts: how many there
    are (None: one a rank), and the share of the tokens that the last one gets (`skew`, None: as the router decides).
    `offload` "cpu": FSDP2 keeps what a rank owns in the host's memory.
    """

    precision: str = "fp32"
    bucket_cap_mb: float = 25.0
    shard_group_size: int | None = None
    find_unused_parameters: bool = False
    replicas: int = 1
    pp_schedule: str = "1f1b"
    micro_batches: int = 4
    stage_layers: tuple[int, ...] = ()
    experts: int | None = None
    skew: float | None = None
    offload: str = "none"


class Strategy(ABC):
    """A model shared between the ranks of the default process group, and how to train it.

    One optimizer step is::

        strategy.zero_grad()
        for number, (tokens, targets) in enumerate(micro_batches):
            with strategy.micro_step(last=number == len(micro_batches) - 1):
                strategy.forward_backward(tokens, targets, len(micro_batches))
        strategy.optimizer_step()

    It equals a step of one process on the micro-batches of all ranks together when the loss is a mean
    and every rank has as many samples. A parameter that gets no gradient counts as one with gradient
    zero unless the strategy's docstring says otherwise. "All ranks" are those that have a batch of their own: of the
    `data_size` shares of a batch this rank trains share `data_rank`.
    """

    # Whether gradients are communicated while backward computes (run.json; rule TO-V004).
    syncs_in_backward: ClassVar[bool]

    model: nn.Module  # what forward calls
    optimizer: torch.optim.Optimizer

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.data_rank, self.data_size = self.rank, self.world_size
        self.tells = self.rank == 0  # the loss, which it sees
        self.added_parameters = 0  # to those of the model
        self.device, self.options = device, options
        self.module = model.to(device)  # the model itself, whatever wraps it
        self.model = self.module
        self.make_optimizer = optimizer
        self.last_micro_step = True
        # Make parameters and buffers of all ranks those of rank 0
        for tensor in chain(self.module.parameters(), self.module.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        # Tied weights come once. Frozen parameters need nothing: they are equal everywhere and stay so.
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.scaler = self.make_scaler(enabled=options.precision == "fp16")
        self.prepare()

    def prepare(self) -> None:
        """Wrap or cut the model, and make the optimizer of what this rank updates."""
        self.optimizer = self.make_optimizer(self.parameters)

    def make_scaler(self, enabled: bool) -> torch.amp.GradScaler:
        """The loss scaler for fp16; every rank has all reduced gradients, so all find the same inf."""
        return torch.amp.GradScaler(self.device.type, enabled=enabled)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of the forward pass that computes in `options.precision`."""
        dtype = COMPUTE_DTYPE.get(self.options.precision)
        return torch.autocast(self.device.type, dtype) if dtype else nullcontext()

    @contextmanager
    def micro_step(self, last: bool) -> Iterator[None]:
        """Forward and backward of one micro-batch; gradients need to be synchronised after the last only."""
        self.last_micro_step = last
        yield

    def forward_backward(self, tokens: Tensor, targets: Tensor, parts: int = 1) -> Tensor | None:
        """Forward and backward of one of `parts` micro-batches; its loss, None where this rank does not see it."""
        with self.autocast():
            loss: Tensor = self.model(tokens, targets)
        self.backward(loss / parts)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Backward of a scalar `loss`, already divided by the number of micro-batches."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def optimizer_step(self) -> None:
        """Update the parameters; with fp16, skip the update on all ranks if any gradient is not finite."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def full_parameters(self) -> dict[str, Tensor]:
        """All parameters by name, whole, as copies; a collective call, made by every rank."""
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks: entries of the outermost `nn.ModuleList`s that have parameters."""
    found: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            found += [block for block in child if any(True for _ in block.parameters())]
        else:
            found += blocks_of(child)
    return list(dict.fromkeys(found))


def shared_between_blocks(model: nn.Module) -> set[nn.Parameter]:
    """Parameters used in more than one block, or in a block and outside."""
    blocks = blocks_of(model)
    uses = Counter(p for block in blocks for p in set(block.parameters()))
    inside = {module for block in blocks for module in block.modules()}
    outside = [module for module in model.modules() if module not in inside]
    uses.update({p for module in outside for p in module.parameters(recurse=False)})
    return {p for p, count in uses.items() if count > 1}
