"""The cases of the strategy tests; `strategy_ranks.py` runs them. Needs no torch, as tests are collected without it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from traceops.train.strategies import MESHES
from traceops.train.strategies import NAMES as ALL_NAMES


def _torch() -> tuple[int, int]:
    """The installed version."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)


FSDP2 = ("pytorch_zero2", "pytorch_zero3", "pytorch_hsdp")
FSDP2_ON_CPU = _torch() >= (2, 7)
NAMES = tuple(name for name in ALL_NAMES if name not in MESHES and (FSDP2_ON_CPU or name not in FSDP2))
OPTIMIZER_NAMES = ("sgd", "adamw")
# These give the optimizer a zero for a parameter nobody used; the others leave it without gradient.
ZERO_FOR_UNUSED = {"simple_ddp", "simple_ddp_ga", "zero1", "zero2", "zero3"}
# A parameter may be used on some ranks only.
MAY_DIFFER = [*sorted(ZERO_FOR_UNUSED), "bucket_ddp_async", "pytorch_ddp", "pytorch_zero1"]


@dataclass(frozen=True)
class Case:
    strategy: str
    optimizer: str = "sgd"
    grad_accum: int = 1
    usage: str = "always"  # of the optional layer: always, by_step, by_rank
    precision: str = "fp64"
    checkpointing: bool = False

    def uses_optional(self, step: int, rank: int) -> bool:
        if self.usage == "always":
            return True
        return step % 2 == 0 and (self.usage == "by_step" or rank == 0)


def training_cases() -> list[Case]:
    cases = [Case(s, o, accum) for s in NAMES for o in OPTIMIZER_NAMES for accum in (1, 2)]
    cases += [Case(s, "adamw", 2, "by_step") for s in NAMES]
    cases += [Case(s, "adamw", 1, "by_rank") for s in MAY_DIFFER]
    cases += [Case(s, "sgd", 1, checkpointing=True) for s in NAMES]
    return cases


def precision_cases() -> list[Case]:
    return [Case(s, "sgd", 2, precision=p) for s in NAMES for p in ("bf16", "fp16")]


@dataclass(frozen=True)
class MeshCase:
    """A strategy that shares the built-in GPT between ranks; `options` are those of StrategyOptions."""

    strategy: str
    options: tuple[tuple[str, Any], ...] = ()
    grad_accum: int = 1

    def __str__(self) -> str:
        return "-".join([self.strategy, *(f"{name}={value}" for name, value in self.options), str(self.grad_accum)])


def mesh_cases(world_size: int) -> list[MeshCase]:
    """Whole ranks as one copy of the model, and where there are four ranks also as two copies of two."""
    cases = [
        MeshCase("pytorch_tp", (), 2),
        MeshCase("pytorch_pp", (("pp_schedule", "gpipe"),), 2),
        MeshCase("pytorch_pp", (("pp_schedule", "1f1b"),)),
        MeshCase("expert_parallel", (("experts", 4),), 2),
        MeshCase("expert_parallel", (("experts", 4), ("skew", 0.75))),
    ]
    if world_size == 2:
        cases.append(MeshCase("pytorch_pp", (("pp_schedule", "interleaved"),), 2))
        cases.append(MeshCase("pytorch_pp", (("stage_layers", (3, 1)),)))
    else:
        two = ("replicas", 2)
        cases += [MeshCase("pytorch_tp", (two,), 2), MeshCase("pytorch_pp", (two,), 2)]
        cases.append(MeshCase("pytorch_pp", (two, ("pp_schedule", "interleaved"))))
        cases.append(MeshCase("expert_parallel", (two, ("experts", 4)), 2))
    return cases
