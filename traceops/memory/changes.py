"""Changes of the options that may save memory, cheapest in time first. What each saves is found by estimating it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from traceops.train.config import TrainConfig, sizes_for
from traceops.train.strategies import FSDP2


@dataclass(frozen=True)
class Proposal:
    """A training with something changed: `options` are those of `traceops run` to give, `fields` what they set."""

    name: str
    options: tuple[str, ...]
    cost: str
    config: TrainConfig
    fields: tuple[tuple[str, Any], ...]

    def then(self, other: Proposal) -> Proposal | None:
        """Both changes; None where they set the same field."""
        if {name for name, _ in self.fields} & {name for name, _ in other.fields}:
            return None
        return Proposal(
            f"{self.name} and {other.name}",
            self.options + other.options,
            f"{self.cost}; {other.cost}",
            replace(self.config, **dict(other.fields)),
            self.fields + other.fields,
        )


def proposals(config: TrainConfig, world_size: int) -> list[Proposal]:
    """What may be tried on `config`, cheapest first."""
    found: list[Proposal] = []

    def add(name: str, cost: str, **fields: Any) -> None:
        options: list[str] = []
        for field, value in fields.items():
            options += ["--" + field.replace("_", "-"), *([] if value is True else [str(value)])]
        found.append(Proposal(name, tuple(options), cost, replace(config, **fields), tuple(fields.items())))

    if config.precision == "fp32":
        add("bf16 compute", "faster; weights stay in fp32", precision="bf16")
    batch = sizes_for(config, "cuda").batch_size
    if batch > 1:
        half = batch // 2
        if half * 2 == batch:
            add(
                "half the micro-batch, twice the accumulation",
                "same samples a step; smaller kernels, which may fill the GPU less",
                batch_size=half, grad_accum=2 * config.grad_accum,
            )  # fmt: skip
    if world_size > 1 and config.strategy in ("pytorch_ddp", "simple_ddp", "bucket_ddp_async"):
        add("ZeRO stage 1", "parameters are broadcast after each step", strategy="pytorch_zero1")
    if world_size > 1 and config.strategy in ("pytorch_ddp", "pytorch_zero1", "pytorch_zero2", "pytorch_hsdp"):
        add("FSDP2, parameters sharded", "an all-gather more in forward and backward", strategy="pytorch_zero3")
    if not config.activation_checkpointing:
        add(
            "activation checkpointing",
            "forward is computed twice: about a third more work a step",
            activation_checkpointing=True,
        )
    if config.optimizer == "adamw":
        add("8-bit Adam", "an update of lower precision; needs torchao", optimizer="adamw8bit")
    if config.precision in ("bf16", "fp32"):
        add("parameters in bf16", "small updates are rounded away: the loss may suffer", precision="bf16-params")
    if config.strategy in FSDP2 and config.offload == "none":
        add(
            "offload to the host",
            "parameters and gradients cross PCIe each step: often several times slower",
            offload="cpu",
        )
    return found
