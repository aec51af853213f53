"""A network whose batch norms agree over ranks in forward and backward (--synced), as SyncBatchNorm does on GPUs."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
from own import begin, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP

WIDTH = 192


class Norm(torch.nn.Module):
    def __init__(self, synced: bool) -> None:
        super().__init__()
        self.synced = synced
        self.weight, self.bias = torch.nn.Parameter(torch.ones(WIDTH)), torch.nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([x.mean(0), x.square().mean(0)])
        if self.synced:
            both = collectives.all_reduce(both) / dist.get_world_size()
        mean, square = both.chunk(2)
        return (x - mean) * (square - mean.square() + 1e-5).rsqrt() * self.weight + self.bias


def main() -> None:
    given = begin(synced=0, depth=24)
    layers = [
        layer
        for _ in range(given.depth)
        for layer in (torch.nn.Linear(WIDTH, WIDTH), Norm(bool(given.synced)), torch.nn.ReLU())
    ]
    model = DDP(torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 8)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    batches = sharded(samples(4096, WIDTH), 32)
    for _ in steps(given, model):
        x, y = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
