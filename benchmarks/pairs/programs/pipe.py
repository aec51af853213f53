"""A pipeline of torch.distributed.pipelining, 1F1B, a stage a rank; --layers says how many blocks each stage has."""

import torch
import torch.distributed as dist
from own import RANK, begin, blocks, for_ever, samples, steps
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader

WIDTH = 384


def main() -> None:
    given = begin(RANK, layers="3,3,3", batch=96, micro=6)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = blocks(WIDTH, [int(n) for n in given.layers.split(",")][rank], 8 if rank == ranks - 1 else None)
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, given.micro, loss_fn=torch.nn.functional.cross_entropy)
    optimizer = torch.optim.AdamW(part.parameters(), 1e-4)
    batches = for_ever(DataLoader(samples(1920, WIDTH), given.batch))
    for _ in steps(given, part):
        optimizer.zero_grad()
        x, y = next(batches)
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            schedule.step(target=y, losses=[])
        else:
            schedule.step()
        optimizer.step()


if __name__ == "__main__":
    main()
