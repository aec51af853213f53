"""Reinforcement learning in the manner of GRPO: rank 0 generates, broadcasts what it drew, all score and update."""

import torch
import torch.distributed as dist
from own import begin, blocks, steps
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def generate(policy: torch.nn.Module, tokens: int) -> list[list[float]]:
    x = torch.zeros(16, 256)
    for _ in range(tokens):
        x = torch.tanh(policy(x)) + 0.1 * torch.randn(16, 256)
    return x.tolist()


def score(rows: torch.Tensor) -> torch.Tensor:
    return -rows.square().mean(1)


def main() -> None:
    given = begin(tokens=150, each=5)
    policy = DDP(blocks(256, 6, 256))
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-4)
    for step in steps(given, policy):
        if step % given.each == 0:
            drawn = [generate(policy.module, given.tokens) if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(drawn, 0)
        rows = torch.tensor(drawn[0])
        rewards = score(rows)
        optimizer.zero_grad()
        loss = ((policy(rows) - rows).square().mean(1) * (rewards - rewards.mean())).mean()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
