"""Expert parallel: each block's MLP becomes several experts on different ranks, and tokens travel to theirs."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from traceops.train.strategies.base import OptimizerSpec, StrategyOptions
from traceops.train.strategies.blocks import blocks_of
from traceops.train.strategies.mesh import MeshStrategy, average, gathered


class ExpertParallel(MeshStrategy):
    """A router sends each token to one expert: an all-to-all dispatches tokens, another one brings results back.

    Every rank has a batch of its own and the whole model but for the experts, of which it holds its share. So the
    gradients of an expert are there after backward, from the tokens of all ranks, and the others are averaged over
    all ranks. Experts start as copies of the block's MLP, and routers at random. With `skew` the tokens are dealt
    out: that share of them to the last expert. The model is not the one that other strategies train,
    but the same for any number of ranks.
    """

    axis = "ep"

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, device: torch.device, options: StrategyOptions
    ) -> None:
        super().__init__(model, optimizer, device, options)
        self.data_rank, self.data_size = self.rank, self.world_size
        count = options.experts or self.axis_size
        generator = torch.Generator().manual_seed(0)
        for block in blocks_of(self.module):
            own: Any = block
            self.added_parameters += count * own.mlp[0].weight.shape[1]  # the router
            self.added_parameters += (count - 1) * sum(p.numel() for p in own.mlp.parameters())
            own.mlp = Experts(own.mlp, count, self.group, options.skew, generator)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.experts = [p for name, p in self.module.named_parameters() if ".experts." in name]
        of_experts = set(self.experts)
        self.shared = [p for p in self.parameters if p not in of_experts]
        self.optimizer = optimizer(self.parameters)

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
