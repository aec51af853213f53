"""The strategies, data-parallel, sharded and on meshes, by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from traceops.core.errors import UsageError

if TYPE_CHECKING:
    from traceops.train.strategies.base import Strategy

# name -> (module, class). Modules import torch, so they are loaded by `strategy_class` only.
REGISTRY: dict[str, tuple[str, str]] = {
    "simple_ddp": ("traceops.train.strategies.simple_ddp", "SimpleDDP"),
    "simple_ddp_ga": ("traceops.train.strategies.simple_ddp", "SimpleDDPGradAccum"),
    "simple_ddp_hook": ("traceops.train.strategies.simple_ddp", "SimpleDDPHook"),
    "simple_ddp_async": ("traceops.train.strategies.simple_ddp", "SimpleDDPAsync"),
    "bucket_ddp_async": ("traceops.train.strategies.simple_ddp", "BucketDDPAsync"),
    "pytorch_ddp": ("traceops.train.strategies.pytorch_ddp", "PytorchDDP"),
    "zero1": ("traceops.train.strategies.zero", "Zero1"),
    "zero2": ("traceops.train.strategies.zero", "Zero2"),
    "zero3": ("traceops.train.strategies.zero", "Zero3"),
    "pytorch_zero1": ("traceops.train.strategies.pytorch_ddp", "PytorchZero1"),
    "pytorch_zero2": ("traceops.train.strategies.pytorch_ddp", "PytorchZero2"),
    "pytorch_zero3": ("traceops.train.strategies.pytorch_ddp", "PytorchZero3"),
    "pytorch_hsdp": ("traceops.train.strategies.pytorch_ddp", "PytorchHSDP"),
    "pytorch_tp": ("traceops.train.strategies.meshes", "PytorchTP"),
    "pytorch_pp": ("traceops.train.strategies.meshes", "PytorchPP"),
    "pytorch_cp": ("traceops.train.strategies.meshes", "PytorchCP"),
    "expert_parallel": ("traceops.train.strategies.meshes", "ExpertParallel"),
}
NAMES: tuple[str, ...] = tuple(REGISTRY)

# They reduce-scatter and all-gather, which not every backend does for every device.
SHARDED: frozenset[str] = frozenset({"zero1", "zero2", "zero3", "pytorch_zero2", "pytorch_zero3", "pytorch_hsdp"})

# torch's fully_shard, which can keep what a rank owns in the host's memory.
FSDP2: frozenset[str] = frozenset({"pytorch_zero2", "pytorch_zero3", "pytorch_hsdp"})

# Ranks share a copy of the built-in GPT, and copies share the batch.
MESHES: frozenset[str] = frozenset({"pytorch_tp", "pytorch_pp", "pytorch_cp", "expert_parallel"})


def strategy_class(name: str) -> type[Strategy]:
    """Import and return the class of the strategy called `name`; UsageError when there is none."""
    if name not in REGISTRY:
        raise UsageError(f"--strategy {name}: no such strategy; choose one of {', '.join(NAMES)}")
    module, attribute = REGISTRY[name]
    found: type[Strategy] = getattr(import_module(module), attribute)
    return found
