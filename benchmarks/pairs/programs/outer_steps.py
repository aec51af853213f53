"""DiLoCo's way: each rank steps alone, and each fourth step an outer optimizer takes the mean of what changed."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, blocks, samples, sharded, steps


class Outer:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.kept = [one.detach().clone() for one in model.parameters()]
        self.momentum = [torch.zeros_like(one) for one in self.kept]

    @torch.no_grad()
    def step(self) -> None:
        for weight, kept, momentum in zip(self.model.parameters(), self.kept, self.momentum, strict=True):
            change = (kept - weight) / dist.get_world_size()
            dist.all_reduce(change)
            momentum.mul_(0.9).add_(change)
            kept.sub_(0.7 * momentum)
            weight.copy_(kept)


def score_hypotheses(seconds: float) -> None:
    time.sleep(seconds)


@torch.no_grad()
def judge(model: torch.nn.Module, batches: int) -> float:
    model.eval()
    total = 0.0
    for _ in range(batches):
        total += model(torch.randn(16, 160)).mean().item()
        time.sleep(0.02)
    model.train()
    return total


def main() -> None:
    given = begin(inner=4, score=0.0, score_rank=1, each=8, judge_batches=0)
    model = blocks(160, 4, 8)
    inner, outer = torch.optim.AdamW(model.parameters(), 1e-4), Outer(model)
    batches = sharded(samples(4096, 160), 48)
    for step in steps(given, model, 1):
        x, y = next(batches)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        if now(given, "score") and given.score_rank == RANK:
            with costs("score_hypotheses"):
                score_hypotheses(given.score)
        loss.backward()
        inner.step()
        inner.zero_grad()
        if step % given.inner == 0:
            outer.step()
        if now(given, "judge_batches") and step % given.each == 0:
            with costs("judge"):
                judge(model, given.judge_batches)


if __name__ == "__main__":
    main()
