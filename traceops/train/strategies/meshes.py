"""Strategies whose ranks share a copy of the model: tensor, pipeline, context and expert parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

from traceops.train.config import STAGES_PER_RANK, blocks_of_stages
from traceops.train.model import GPT, loss_or_logits
from traceops.train.strategies.base import Strategy, blocks_of
from traceops.train.strategies.simple_ddp import make_buckets


class MeshStrategy(Strategy):
    """Ranks beside each other share a copy of the model; `replicas` copies, one behind the other, share the batch.

    Ranks 0 to 3 with two replicas: 0 and 1 share a copy (the dimension `axis` of the mesh), 2 and 3 the other one;
    gradients are averaged between 0 and 2, and between 1 and 3 (the dimension dp), after the last micro-batch.
    """

    axis: ClassVar[str]
    syncs_in_backward = False

    def prepare(self) -> None:
        self.axis_size = self.world_size // self.options.replicas
        self.axis_rank = self.rank % self.axis_size
        names = ("dp", self.axis) if self.options.replicas > 1 else (self.axis,)
        shape = (self.options.replicas, self.axis_size) if self.options.replicas > 1 else (self.axis_size,)
        whole = init_device_mesh(self.device.type, shape, mesh_dim_names=names)
        self.mesh = whole[self.axis]
        self.group = self.mesh.get_group()
        self.dp_group = whole["dp"].get_group() if self.options.replicas > 1 else None
        self.data_rank, self.data_size = self.rank // self.axis_size, self.options.replicas

    def average_over_replicas(self) -> None:
        """Make the gradients of a step those of the whole batch."""
        if self.dp_group is not None and self.last_micro_step:
            average(self.parameters, self.dp_group, self.options.bucket_cap_mb)


def average(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup, cap_mb: float) -> None:
    """Average gradients over the ranks of `group`, in buckets of `cap_mb` MiB; of a DTensor, this rank's part."""
    for bucket in make_buckets(parameters, cap_mb * 2**20):
        parts = [local(p.grad) for p in bucket if p.grad is not None]
        flat = torch.cat([part.flatten() for part in parts])
        flat.div_(group.size())
        dist.all_reduce(flat, group=group)
        for part, averaged in zip(parts, torch.split(flat, [part.numel() for part in parts]), strict=True):
            part.copy_(averaged.view_as(part))


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gathered(own: Mapping[str, Tensor], group: dist.ProcessGroup) -> dict[str, Tensor]:
    """The parameters that the ranks of `group` hold, by name, all together; a collective call."""
    parts: list[dict[str, Tensor]] = [{} for _ in range(group.size())]
    dist.all_gather_object(parts, {name: p.detach().cpu() for name, p in own.items()}, group=group)
    return {name: p for part in parts for name, p in part.items()}


class PytorchTP(MeshStrategy):
    """The first linear layer of attention and of the MLP is cut by columns, the second one by rows.

    So a rank has whole heads, and nothing is sent between the two. All ranks have the same tokens, and each block
    adds up its two partial results with an all-reduce in forward, and the gradients of its inputs in backward.
    Embeddings, norms and the head are whole on every rank.
    """

    axis = "tp"

    def prepare(self) -> None:
        super().prepare()
        for block in blocks_of(self.module):
            parallelize_module(
                block,
                self.mesh,
                {
                    "attention.qkv": ColwiseParallel(),
                    "attention.out": RowwiseParallel(),
                    "mlp.0": ColwiseParallel(),
                    "mlp.2": RowwiseParallel(),
                },
            )
        self.parameters = list(self.module.parameters())
        # In groups of their own: an optimizer's fused kernels take either kind of tensor, not both at once.
        cut: list[nn.Parameter] = [p for p in self.parameters if isinstance(p, DTensor)]
        whole = [p for p in self.parameters if not isinstance(p, DTensor)]
        self.optimizer = self.make_optimizer([{"params": cut}, {"params": whole}])

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.average_over_replicas()

    def full_parameters(self) -> dict[str, Tensor]:
        return {
            name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
            for name, p in self.module.named_parameters()
        }


class PytorchCP(MeshStrategy):
    """A rank has a part of every sequence: everything but attention needs no other token.

    In attention, keys and values go around a ring of the ranks, in backward their gradients too. Each rank takes a
    piece of the sequence's beginning and one of its end, because later tokens look back at more. Every rank has the
    whole model, so gradients are averaged over all ranks. torch has the ring for its attention kernels on GPUs only.
    """

    axis = "cp"

    def prepare(self) -> None:
        super().prepare()
        self.optimizer = self.make_optimizer(self.parameters)

    def forward_backward(self, tokens: Tensor, targets: Tensor, parts: int = 1) -> Tensor | None:
        from torch.distributed.tensor.experimental import context_parallel

        positions = torch.arange(tokens.shape[1], device=self.device)
        buffers = [tokens.clone(), targets.clone(), positions]  # whole, cut in place while the context is open
        with context_parallel(self.mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0]):
            with self.autocast():
                loss: Tensor = self.model(*buffers)
            self.backward(loss / parts)
        if self.last_micro_step:
            everybody = dist.group.WORLD
            assert everybody is not None
            average(self.parameters, everybody, self.options.bucket_cap_mb)
        return loss


class PytorchPP(MeshStrategy):
    """GPipe runs all micro-batches forward, then all backward; 1F1B takes turns, so fewer activations are kept.

    Interleaved 1F1B gives each rank two stages, one from each half of the model: the pipeline fills in half the time.
    The first stage has the embeddings, the last one the head. The two share a weight: each has a copy, and the
    gradients of both are added up after the last micro-batch.
    """

    axis = "pp"

    def prepare(self) -> None:
        super().prepare()
        model = self.module
        assert isinstance(model, GPT)
        held = STAGES_PER_RANK[self.options.pp_schedule]
        blocks = blocks_of_stages(len(model.blocks), held * self.axis_size, self.options.stage_layers)
        numbers = range(self.axis_rank, len(blocks), self.axis_size)
        stages = [Stage(model, blocks[n], n == 0, n == len(blocks) - 1, self.autocast()) for n in numbers]
        self.parts = 1  # micro-batches of a step, each of which the schedule cuts into its own
        self.schedule = self.make_schedule(
            [
                PipelineStage(stage, n, len(blocks), self.device, group=self.group)
                for n, stage in zip(numbers, stages, strict=True)
            ]
        )
        self.is_first, self.is_last = numbers[0] == 0, numbers[-1] == len(blocks) - 1
        self.tells = self.is_last and self.data_rank == 0
        self.tied = self.group_of_tied() if self.axis_size > 1 else None
        self.tied_weight = model.tokens.weight
        self.module = self.model = nn.ModuleList(stages)
        self.parameters = list(self.module.parameters())
        self.optimizer = self.make_optimizer(self.parameters)

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


class ExpertParallel(MeshStrategy):
    """A router sends each token to one expert: an all-to-all dispatches tokens, another one brings results back.

    Every rank has a batch of its own and the whole model but for the experts, of which it holds its share. So the
    gradients of an expert are there after backward, from the tokens of all ranks, and the others are averaged over
    all ranks. Experts start as copies of the block's MLP, and routers at random. With `skew` the tokens are dealt
    out: that share of them to the last expert. The model is not the one that other strategies train,
    but the same for any number of ranks.
    """

    axis = "ep"

    def prepare(self) -> None:
        super().prepare()
        self.data_rank, self.data_size = self.rank, self.world_size
        count = self.options.experts or self.axis_size
        generator = torch.Generator().manual_seed(0)
        for block in blocks_of(self.module):
            own: Any = block
            self.added_parameters += count * own.mlp[0].weight.shape[1]  # the router
            self.added_parameters += (count - 1) * sum(p.numel() for p in own.mlp.parameters())
            own.mlp = Experts(own.mlp, count, self.group, self.options.skew, generator)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.experts = [p for name, p in self.module.named_parameters() if ".experts." in name]
        of_experts = set(self.experts)
        self.shared = [p for p in self.parameters if p not in of_experts]
        self.optimizer = self.make_optimizer(self.parameters)

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if not self.last_micro_step:
            return
        for p in self.experts:  # the sum over ranks whose losses are means
            if p.grad is not None:
                p.grad.div_(self.axis_size)
        everybody = dist.group.WORLD
        assert everybody is not None
        average(self.shared, everybody, self.options.bucket_cap_mb)
        if self.dp_group is not None:
            average(self.experts, self.dp_group, self.options.bucket_cap_mb)

    def full_parameters(self) -> dict[str, Tensor]:
        return gathered(dict(self.module.named_parameters()), self.group)


class Experts(nn.Module):
    """Takes the place of an MLP: `count` experts, of which this rank of `group` holds an equal share."""

    def __init__(
        self, mlp: nn.Sequential, count: int, group: dist.ProcessGroup, skew: float | None, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.count, self.group, self.skew = count, group, skew
        self.own = count // group.size()
        first = mlp.get_parameter("0.weight")
        self.router = nn.Linear(first.shape[1], count, bias=False).to(first)
        with torch.no_grad():
            self.router.weight.copy_(torch.randn(self.router.weight.shape, generator=generator))
        here = range(group.rank() * self.own, (group.rank() + 1) * self.own)
        self.experts = nn.ModuleDict({str(number): deepcopy(mlp) for number in here})

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (batch, length, dim) through the expert of each."""
        tokens = x.flatten(0, 1)
        scores = self.router(tokens).softmax(dim=-1)
        chosen = scores.argmax(dim=-1) if self.skew is None else self.dealt_out(x)
        order = chosen.argsort(stable=True)  # by expert, and so by rank
        sends = chosen.bincount(minlength=self.count)
        receives = torch.empty_like(sends)  # from each rank, for each of the own experts
        dist.all_to_all_single(receives, sends, group=self.group)
        to, of = (counts.view(-1, self.own).sum(dim=1).tolist() for counts in (sends, receives))
        arrived = exchange(tokens[order], to, of, self.group)
        back = exchange(self.computed(arrived, receives), of, to, self.group)
        result = torch.empty_like(back).index_copy(0, order, back)
        weighted: Tensor = result * scores.gather(1, chosen[:, None])
        return weighted.view_as(x)

    def computed(self, arrived: Tensor, receives: Tensor) -> Tensor:
        """Tokens by the rank they came from, each through its expert, in the same order."""
        experts = list(self.experts.values())
        if len(experts) == 1:
            whole: Tensor = experts[0](arrived)
            return whole
        numbers = torch.arange(self.own, device=arrived.device).repeat(self.group.size())
        order = numbers.repeat_interleave(receives).argsort(stable=True)
        each = torch.split(arrived[order], receives.view(-1, self.own).sum(dim=0).tolist())
        done = torch.cat([expert(part) for expert, part in zip(experts, each, strict=True)])
        return torch.empty_like(done).index_copy(0, order, done)

    def dealt_out(self, x: Tensor) -> Tensor:
        """The expert of each token: of a sequence a share of `skew` to the last one, the rest to the others alike."""
        assert self.skew is not None
        batch, length, _ = x.shape
        place = torch.arange(length, device=x.device)
        chosen = torch.where(place < round(self.skew * length), self.count - 1, place % max(self.count - 1, 1))
        return chosen.repeat(batch)


def exchange(rows: Tensor, sends: list[int], receives: list[int], group: dist.ProcessGroup) -> Tensor:
    """An all-to-all of rows, `sends` of them to each rank and `receives` from each."""
    got: Tensor = Exchange.apply(rows, sends, receives, group)  # type: ignore[no-untyped-call]
    return got


class Exchange(torch.autograd.Function):
    """The all-to-all, and in backward that of the gradients, the other way round."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sends: list[int], receives: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sends, ctx.receives, ctx.group = sends, receives, group
        got = rows.new_empty(sum(receives), *rows.shape[1:])
        dist.all_to_all_single(got, rows.contiguous(), receives, sends, group=group)
        return got

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (rows,) = gradients
        got = rows.new_empty(sum(ctx.sends), *rows.shape[1:])
        dist.all_to_all_single(got, rows.contiguous(), ctx.sends, ctx.receives, group=ctx.group)
        return got, None, None, None
