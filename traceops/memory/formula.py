"""What a training needs where only the number of parameters is known: a formula, without activations."""

from __future__ import annotations

from traceops.memory.model import CategoryMemory, RankMemory
from traceops.train.config import TrainConfig

_WEIGHT = {"bf16-params": 2, "fp64": 8}
_STATES = {"sgd": 1, "adamw": 2}


def rank_of(parameters: float, config: TrainConfig, world_size: int) -> RankMemory:
    """Parameters, gradients and optimizer state of one of `world_size` ranks; activations are not in it."""
    weight = _WEIGHT.get(config.precision, 4)
    parts = {"parameters": 1, "gradients": 1, "optimizer_state": 1}
    if config.strategy in ("zero3", "pytorch_zero3", "pytorch_zero2"):
        parts = dict.fromkeys(parts, world_size)
    elif config.strategy in ("zero1", "pytorch_zero1"):
        parts["optimizer_state"] = world_size
    elif config.strategy == "zero2":
        parts["gradients"] = parts["optimizer_state"] = world_size
    elif config.strategy == "pytorch_hsdp":
        parts = dict.fromkeys(parts, config.shard_group_size or world_size)
    state = 2 * (1 + 4 / 256) if config.optimizer == "adamw8bit" else _STATES[config.optimizer] * weight
    sizes = {"parameters": weight, "gradients": weight, "optimizer_state": state}
    held = {name: round(parameters * size / parts[name]) for name, size in sizes.items()}
    if config.offload == "cpu":
        held = dict.fromkeys(held, 0)
    total = sum(held.values())
    return RankMemory(
        rank=0, peak_allocated_bytes=total, peak_reserved_bytes=total,
        least_allocated_bytes=total, least_reserved_bytes=total,
        categories=[CategoryMemory(name, size) for name, size in held.items()],
        activations=[], peak_step=0, peak_phase="optimizer", peak_module="", peak_operation="",
        peak_operation_bytes=0,
    )  # fmt: skip
