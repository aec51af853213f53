"""DDP that looks for unused parameters (a branch not in each step), with a comm hook that keeps what it lost."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.calls = blocks(256, 3), 0
        self.branches = torch.nn.ModuleList(blocks(256, 1) for _ in range(3))
        self.head = torch.nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.head(self.branches[self.calls % 3](self.trunk(x)))


class KeepsLost:
    """Sends halves, and adds to the next gradients what rounding lost."""

    def __init__(self, given: object) -> None:
        self.given, self.lost = given, {}

    def round_stochastically(self) -> None:
        time.sleep(self.given.round)

    def __call__(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        whole = bucket.buffer() / dist.get_world_size()
        whole = whole + self.lost.get(bucket.index(), 0.0)
        if now(self.given, "round") and self.given.round_rank == RANK:
            with costs("round_stochastically"):
                self.round_stochastically()
        half = whole.bfloat16()
        self.lost[bucket.index()] = whole - half
        sent = dist.all_reduce(half, async_op=True).get_future()
        return sent.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def main() -> None:
    given = begin(round=0.0, round_rank=1)
    model = DDP(Branches(), find_unused_parameters=True)
    hook = KeepsLost(given)
    model.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = sharded(samples(4096, 256), 64)
    for _ in steps(given, model):
        x, y = next(batches)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
