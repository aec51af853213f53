"""What was allocated and freed in a training, in order, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Category(str, Enum):
    """What an allocation is for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATIONS = "activations"
    LOSS = "loss"
    CASTS = "parameter_casts"
    SHARDING = "sharding_buffers"
    BEFORE_STEPS = "before_steps"
    INPUTS = "inputs"
    BACKWARD = "backward_temporaries"
    OPTIMIZER = "optimizer_temporaries"
    WORKSPACE = "library_workspaces"


class TrainingPhase(str, Enum):
    """Where in a step something happens."""

    SETUP = "setup"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass
class Allocation:
    """One block of memory; `size` in bytes as asked for. `module` is the path of the module that ran, "" for none.

    `stream` is the one it was made on, 0 for the usual. `lingers` where a library may hold it for longer than the
    event says: the first buckets of DDP, which NCCL lets go of when its thread looks at them next.
    """

    size: int
    category: Category
    module: str
    phase: TrainingPhase
    step: int
    op: str
    stream: int = 0
    lingers: bool = False


# (allocation, True) where it was made, (allocation, False) where it was freed.
Event = tuple[Allocation, bool]
