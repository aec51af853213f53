"""What the options say of optimizer and strategy, made of torch's classes."""

from __future__ import annotations

from importlib import import_module

import torch

from traceops.core.errors import UsageError
from traceops.train.config import Sizes, TrainConfig
from traceops.train.mesh_options import stage_layers_of
from traceops.train.options import shard_group_size
from traceops.train.strategies.base import OptimizerSpec, StrategyOptions


def optimizer_spec(config: TrainConfig) -> OptimizerSpec:
    """The optimizer of ``--optimizer`` and ``--lr``. Raises UsageError where its library is missing."""
    if config.optimizer == "adamw8bit":
        try:
            low_bit = import_module("torchao.optim")
        except ImportError as error:
            raise UsageError(
                f"--optimizer adamw8bit: needs torchao: pip install torchao (traceops's extra [lowbit]): {error}"
            ) from error
        return OptimizerSpec(low_bit.AdamW8bit, {"lr": config.lr})
    if config.optimizer == "sgd":
        return OptimizerSpec(torch.optim.SGD, {"lr": config.lr, "momentum": 0.9})
    return OptimizerSpec(torch.optim.AdamW, {"lr": config.lr})


def strategy_options(config: TrainConfig, sizes: Sizes, world_size: int, local_world_size: int) -> StrategyOptions:
    """What `config` asks of its strategy, for `world_size` ranks with `local_world_size` on each host."""
    return StrategyOptions(
        precision=config.precision,
        bucket_cap_mb=sizes.bucket_mb,
        shard_group_size=shard_group_size(config, world_size, local_world_size),
        find_unused_parameters=config.find_unused_parameters,
        replicas=config.replicas,
        pp_schedule=config.pp_schedule,
        micro_batches=config.micro_batches,
        stage_layers=stage_layers_of(config),
        experts=config.experts,
        skew=config.skew,
        offload=config.offload,
    )
