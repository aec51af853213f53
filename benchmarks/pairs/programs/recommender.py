"""A recommender: each rank owns some tables, rows go by all_to_all, the dense part by DDP; --lookups by rank."""

import torch
import torch.distributed as dist
from own import blocks, for_ever, options, samples, tell, window
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

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
    given = options(lookups="20,20,20,20", batch=128)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    table = torch.nn.EmbeddingBag(20000, WIDTH, mode="sum")
    torch.manual_seed(0)
    dense = DDP(blocks(WIDTH * ranks, 4, 8))
    optimizer = torch.optim.SGD([*table.parameters(), *dense.parameters()], 0.01)
    data = samples(4096, 16)
    batches = for_ever(DataLoader(data, given.batch, sampler=DistributedSampler(data), drop_last=True))
    lookups = int(given.lookups.split(",")[rank])
    drawn = torch.Generator().manual_seed(rank)
    with window(given) as own:
        for _ in range(given.steps):
            _, y = next(batches)
            wanted = torch.randint(0, 20000, (given.batch * ranks, lookups), generator=drawn)
            rows = Swap.apply(table(wanted))
            features = rows.view(ranks, given.batch, WIDTH).transpose(0, 1).reshape(given.batch, -1)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(dense(features), y).backward()
            optimizer.step()
            own.step()
    tell(given.steps, dense)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
