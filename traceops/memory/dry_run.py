"""The built-in training on fake tensors, with a fake process group in place of the other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from msgspec import Struct
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore

from traceops.memory.allocator import Category, Event, TrainingPhase
from traceops.memory.fakes import faked, parameters_of
from traceops.memory.gpu_kernels import AdamW8bitSizes, dropout_on, rms_norm_on
from traceops.memory.tracker import Tracker
from traceops.train.build import optimizer_spec, strategy_options
from traceops.train.config import Sizes, TrainConfig, sizes_for
from traceops.train.model import make_model
from traceops.train.strategies import strategy_class
from traceops.train.strategies.base import OptimizerSpec

_OWN = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)
_GPUS_A_HOST = 8
_STEPS = 2  # the second has the optimizer's state, and the buckets that DDP makes anew


class DryRun(Struct, frozen=True):
    """What one rank would allocate. `values_read` counts reads of values, which fake tensors do not have."""

    events: list[Event]
    parameters: int
    values_read: int


def dry_run(config: TrainConfig, rank: int, world_size: int, workspaces: Mapping[str, int]) -> DryRun:
    """Two optimizer steps of `config` on a GPU, as `rank` of `world_size`. Raises what the training raises."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        tracker = Tracker(workspaces)
        # float64 has no fused attention on a GPU.
        attention = [SDPBackend.MATH] if config.precision == "fp64" else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with faked(tracker), kernels_of_gpus(), mode, tracker, sdpa_kernel(attention):
            parameters = _train(config, sizes_for(config, "cuda"), rank, world_size, tracker)
            return DryRun(on_device(config, tracker.events), parameters, tracker.values_read)
    finally:
        dist.destroy_process_group()


@contextmanager
def kernels_of_gpus() -> Iterator[None]:
    """While it is open, dropout and RMSNorm keep for backward what they keep on a GPU."""
    functional = torch.nn.functional
    with ExitStack() as stack:
        for owner, name, value in (
            (functional, "dropout", dropout_on(functional.dropout, "cpu")),
            (functional, "rms_norm", rms_norm_on(functional.rms_norm, "cpu")),
            (torch, "rms_norm", rms_norm_on(torch.rms_norm, "cpu")),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield


def _optimizer(config: TrainConfig) -> OptimizerSpec:
    if config.optimizer == "adamw8bit":
        return OptimizerSpec(AdamW8bitSizes, {"lr": config.lr})
    return optimizer_spec(config)


def on_device(config: TrainConfig, events: list[Event]) -> list[Event]:
    """The events of the GPU: with ``--offload cpu``, what a rank owns is in the host's memory."""
    if config.offload == "none":
        return events
    return [(one, new) for one, new in events if one.category not in _OWN and one.phase is not TrainingPhase.OPTIMIZER]


def _train(config: TrainConfig, sizes: Sizes, rank: int, world_size: int, tracker: Tracker) -> int:
    device = torch.device("cpu")
    model = make_model(config, sizes)
    parameters = sum(p.numel() for p in model.parameters())
    options = strategy_options(config, sizes, world_size, min(world_size, _GPUS_A_HOST))
    strategy = strategy_class(config.strategy)(model, _optimizer(config), device, options)
    tracker.label([*strategy.module.parameters(), *strategy.module.buffers()], Category.PARAMETERS)
    tracker.label(parameters_of(strategy.optimizer), Category.PARAMETERS)
    tracker.follow(strategy.module)
    tracker.begin_steps()
    for _ in range(_STEPS):
        for number in range(1, config.grad_accum + 1):
            tokens = torch.zeros((sizes.batch_size, sizes.seq_len), dtype=torch.int64)
            targets = torch.zeros_like(tokens)
            tracker.label((tokens, targets), Category.INPUTS)
            with strategy.micro_step(number == config.grad_accum):
                loss = strategy.forward_backward(tokens, targets, config.grad_accum)
        strategy.optimizer_step()
        strategy.zero_grad()
    del loss  # as the training keeps it until the next one
    return parameters + strategy.added_parameters
