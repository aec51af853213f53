"""Sequence parallel as DeepSpeed-Ulysses does it: all_to_all from tokens to heads and back."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
from own import begin, for_ever, samples, steps
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

WIDTH, HEADS, TOKENS = 128, 4, 192


def exchange(x: torch.Tensor, split: int, join: int) -> torch.Tensor:
    parts = [part.contiguous() for part in x.chunk(dist.get_world_size(), split)]
    whole = [torch.empty_like(part) for part in parts]
    return torch.cat(collectives.all_to_all(whole, parts), join)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        heads = self.qkv(x).view(batch, tokens, HEADS, 3 * WIDTH // HEADS).transpose(1, 2)
        q, k, v = exchange(heads, 1, 2).chunk(3, -1)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(exchange(seen, 2, 1).transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.mlp(x)


def main() -> None:
    given = begin()
    model = DDP(torch.nn.Sequential(Block(), Block(), torch.nn.Linear(WIDTH, 16)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    share = TOKENS // dist.get_world_size()
    data = samples(512, TOKENS * 4)
    batches = for_ever(DataLoader(data, 4))
    mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
    for _ in steps(given, model):
        x, _ = next(batches)
        tokens = x.view(-1, TOKENS, 4).repeat(1, 1, WIDTH // 4)[:, mine]
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
