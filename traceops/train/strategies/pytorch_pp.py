"""PyTorch's own pipelines: each rank has some of the blocks, and micro-batches pass through them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.utils.checkpoint import checkpoint

from traceops.train.gpt import GPT, loss_or_logits
from traceops.train.strategies.base import OptimizerSpec, StrategyOptions
from traceops.train.strategies.mesh import MeshStrategy, gathered
from traceops.train.strategies.stages import STAGES_PER_RANK, blocks_of_stages


class PytorchPP(MeshStrategy):
    """GPipe runs all micro-batches forward, then all backward; 1F1B takes turns, so fewer activations are kept.

    Interleaved 1F1B gives each rank two stages, one from each half of the model: the pipeline fills in half the time.
    The first stage has the embeddings, the last one the head. The two share a weight: each has a copy, and the
    gradients of both are added up after the last micro-batch.
    """

    axis = "pp"

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        assert isinstance(model, GPT)
        held = STAGES_PER_RANK[options.pp_schedule]
        blocks = blocks_of_stages(len(model.blocks), held * self.axis_size, options.stage_layers)
        numbers = range(self.axis_rank, len(blocks), self.axis_size)
        stages = [Stage(model, blocks[n], n == 0, n == len(blocks) - 1, self.autocast()) for n in numbers]
        self.parts = 1  # micro-batches of a step, each of which the schedule cuts into its own
        self.schedule = self.make_schedule(
            [
                PipelineStage(stage, n, len(blocks), device, group=self.group)
                for n, stage in zip(numbers, stages, strict=True)
            ]
        )
        self.is_first, self.is_last = numbers[0] == 0, numbers[-1] == len(blocks) - 1
        self.tells = self.is_last and self.data_rank == 0
        self.tied = self.group_of_tied() if self.axis_size > 1 else None
        self.tied_weight = model.tokens.weight
        self.module = self.model = nn.ModuleList(stages)
        self.parameters = list(self.module.parameters())
        self.optimizer = optimizer(self.parameters)

    def make_schedule(self, stages: list[Any]) -> Any:
        """The schedule that runs these stages of this rank."""
        pieces = self.options.micro_batches
        if self.options.pp_schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, pieces, loss_fn=self.loss, scale_grads=False)
        schedule = ScheduleGPipe if self.options.pp_schedule == "gpipe" else Schedule1F1B
        return schedule(stages[0], pieces, loss_fn=self.loss, scale_grads=False)

    def group_of_tied(self) -> dist.ProcessGroup | None:
        """The first and the last rank of this pipeline; made by every rank for all pipelines. None: not of them."""
        own = None
        for first in range(0, self.world_size, self.axis_size):
            ends = [first, first + self.axis_size - 1]
            group = dist.new_group(ends, group_desc="embedding")
            own = group if self.rank in ends else own
        return own

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of one of its micro-batches; the schedule adds up their gradients."""
        return loss_or_logits(logits, targets) / (self.parts * self.options.micro_batches)

    def forward_backward(self, tokens: Tensor, targets: Tensor, parts: int = 1) -> Tensor | None:
        self.parts = parts
        losses: list[Tensor] | None = [] if self.is_last else None
        self.schedule.step(
            *([tokens] if self.is_first else []), target=targets if self.is_last else None, losses=losses
        )
        if self.last_micro_step and self.tied is not None:
            assert self.tied_weight.grad is not None
            dist.all_reduce(self.tied_weight.grad, group=self.tied)
        self.average_over_replicas()
        return torch.stack(losses).sum() * parts if losses else None

    def full_parameters(self) -> dict[str, Tensor]:
        own = {name: p for stage in self.model.children() for name, p in stage.named_parameters()}
        whole = gathered(own, self.group)
        whole.pop("head.weight", None)  # tokens.weight by its other name
        return whole


class Stage(nn.Module):
    """Some blocks of a GPT, the first stage with its embeddings and the last one with its head."""

    def __init__(
        self, gpt: GPT, blocks: range, is_first: bool, is_last: bool, autocast: AbstractContextManager[Any]
    ) -> None:
        super().__init__()
        self.is_first, self.is_last, self.autocast = is_first, is_last, autocast
        self.activation_checkpointing = gpt.activation_checkpointing
        if is_first:
            self.tokens, self.positions = gpt.tokens, gpt.positions
        self.blocks = nn.ModuleDict({str(number): gpt.blocks[number] for number in blocks})
        if is_last:
            self.norm, self.head = gpt.norm, gpt.head

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (batch, length), or activations (batch, length, dim), to activations, or logits."""
        with self.autocast:
            if self.is_first:
                x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
            for block in self.blocks.values():
                x = checkpoint(block, x, use_reentrant=False) if self.activation_checkpointing else block(x)
            return self.head(self.norm(x)) if self.is_last else x
