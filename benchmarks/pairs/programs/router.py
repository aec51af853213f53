"""Experts over all_to_all: the router's host code is slow on all ranks, and the last rank's expert gets more tokens."""

import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as nnf
from costs import costs, now
from own import RANK, begin, steps


def plan_capacity(seconds: float) -> None:
    time.sleep(seconds)


class Experts(torch.nn.Module):
    def __init__(self, given: object) -> None:
        super().__init__()
        self.given = given
        self.own = torch.nn.Sequential(torch.nn.Linear(128, 768), torch.nn.GELU(), torch.nn.Linear(768, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if now(self.given, "plan"):
            with costs("plan_capacity"):
                plan_capacity(self.given.plan)
        ranks, hot = dist.get_world_size(), now(self.given, "hot")
        send = [(len(x) - hot) // (ranks - 1)] * (ranks - 1) + [hot]
        take = [send[RANK]] * ranks
        got = nnf.all_to_all_single(torch.empty(sum(take), 128), x, take, send)
        return nnf.all_to_all_single(torch.empty_like(x), self.own(got), send, take)


def main() -> None:
    given = begin(RANK, rows=384, hot=128, plan=0.0)
    experts, head = Experts(given), torch.nn.Linear(128, 8)
    parameters = [*experts.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, 1e-3)
    generator = torch.Generator().manual_seed(RANK)
    for _ in steps(given, experts):
        x = torch.randn(given.rows, 128, generator=generator, requires_grad=True)
        y = torch.randint(0, 8, (given.rows,), generator=generator)
        torch.nn.functional.cross_entropy(head(experts(x)), y).backward()
        for one in head.parameters():
            dist.all_reduce(one.grad)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
