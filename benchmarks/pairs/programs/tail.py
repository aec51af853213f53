"""DDP that accumulates over four batches with no_sync; an epoch's last batch is shorter, its last step has fewer."""

import contextlib
import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, samples, tell, window
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

ACCUMULATE = 4


class Pictures(Dataset):
    """One picture of many is a large file."""

    def __init__(self, given: object) -> None:
        self.given, self.inner, self.read = given, samples(1404, 512), 0

    def __len__(self) -> int:
        return len(self.inner)

    def read_large_file(self) -> None:
        time.sleep(self.given.large)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read += 1
        if now(self.given, "large") and self.given.large_rank == RANK and self.read % 288 == 0:
            with costs("read_large_file"):
                self.read_large_file()
        return self.inner[index]


def count_labels(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    given = begin(large=0.0, large_rank=0, count=0.0, count_rank=1)
    net = torch.nn.Sequential(
        torch.nn.Conv1d(2, 24, 7, padding=3), torch.nn.ReLU(), torch.nn.Conv1d(24, 24, 7, stride=4),
        torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(8),
    )  # fmt: skip
    net(torch.zeros(2, 2, 256))
    model = DDP(net)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    data = Pictures(given)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 12, sampler=sampler)
    step = epoch = 0
    with window(given) as own:
        while step < given.steps:
            sampler.set_epoch(epoch)
            epoch += 1
            for number, (x, y) in enumerate(loader, 1):
                last = number % ACCUMULATE == 0 or number == len(loader)
                with contextlib.nullcontext() if last else model.no_sync():
                    loss = torch.nn.functional.cross_entropy(model(x.view(-1, 2, 256)), y)
                    (loss / ACCUMULATE).backward()
                if now(given, "count") and given.count_rank == RANK:
                    with costs("count_labels"):
                        count_labels(given.count)
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                    step += 1
                    own.step()
                    if step == given.steps:
                        break
    tell(given.steps, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
