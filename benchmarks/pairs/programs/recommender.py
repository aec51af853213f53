"""A recommender: each rank owns some tables, rows go by all_to_all, the dense part by DDP; --lookups by rank."""

import torch
import torch.distributed as dist
from own import RANK, begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP

WIDTH = 64


class Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())
        return out


def main() -> None:
    given = begin(RANK, lookups="20,20,20,20", batch=128)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    table = torch.nn.EmbeddingBag(20000, WIDTH, mode="sum")
    torch.manual_seed(0)
    dense = DDP(blocks(WIDTH * ranks, 4, 8))
    optimizer = torch.optim.SGD([*table.parameters(), *dense.parameters()], 0.01)
    batches = sharded(samples(4096, 16), given.batch, drop_last=True)
    lookups = int(given.lookups.split(",")[rank])
    drawn = torch.Generator().manual_seed(rank)
    for _ in steps(given, dense):
        _, y = next(batches)
        wanted = torch.randint(0, 20000, (given.batch * ranks, lookups), generator=drawn)
        rows = Swap.apply(table(wanted))
        features = rows.view(ranks, given.batch, WIDTH).transpose(0, 1).reshape(given.batch, -1)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(dense(features), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
