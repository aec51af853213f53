"""Training engines that step torch's optimizers in ways of their own: what ends a step of theirs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """A method that is called once a training step; optimizer steps inside it are parts of that.

    module, owner, method: where it is. label: what it is called in run.json.
    """

    module: str
    owner: str
    method: str
    label: str


ENGINES = (
    # ZeRO 1 and 2 call torch's optimizer once a parameter group, ZeRO-3 once a group of parameters.
    Engine("deepspeed.runtime.engine", "DeepSpeedEngine", "_take_model_step", "DeepSpeedEngine.step"),
    # One optimizer for the dense and one for the experts' parameters; none of them steps where gradients overflow.
    Engine("megatron.core.optimizer.optimizer", "ChainedOptimizer", "step", "ChainedOptimizer.step"),
    # Of torch's RPC: it steps a functional optimizer, or torch's own in another thread or process.
    Engine("torch.distributed.optim.optimizer", "DistributedOptimizer", "step", "DistributedOptimizer.step"),
)
