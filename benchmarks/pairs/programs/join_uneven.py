"""DDP inside torch's Join: ranks have different numbers of batches, and those that are done shadow the others."""

import torch
import torch.distributed as dist
from own import begin, blocks, samples, tell, window
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def main() -> None:
    given = begin(fewer=0)
    model = DDP(blocks(384, 5, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    steps = given.steps - given.fewer * dist.get_rank()
    loader = DataLoader(samples(64 * steps, 384), 64)
    done = 0
    with window(given) as own, Join([model]):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            done += 1
            own.step()
    print("rank", dist.get_rank(), "steps", done, flush=True)
    tell(done, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
