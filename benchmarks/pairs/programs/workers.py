"""DDP and ZeRO's optimizer over a loader with worker processes that decode slowly; a rank asks a scheduler."""

import time

import torch
from costs import costs, now
from own import RANK, begin, for_ever, steps
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self) -> None:
        self.seconds = torch.zeros(()).share_memory_()

    def __len__(self) -> int:
        return 4096

    def decode_clip(self) -> None:
        time.sleep(self.seconds.item())

    def __getitem__(self, index: int) -> tuple:
        if self.seconds:
            self.decode_clip()
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 16, 16, generator=generator), index % 8


def ask_scheduler(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    given = begin(clip=0.0, clip_rank=-1, workers=1, asks=0.0, asks_rank=-1, zero=1)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 24, 3), torch.nn.SiLU(), torch.nn.Conv2d(24, 24, 3, stride=2), torch.nn.SiLU(),
        torch.nn.Flatten(), torch.nn.Linear(24 * 36, 128), torch.nn.SiLU(), torch.nn.Linear(128, 8),
    )  # fmt: skip
    model = DDP(net)
    if given.zero:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    clips = Clips()
    slow = given.clip_rank in (-1, RANK)
    clips.seconds.fill_(now(given, "clip") / 16 if slow else 0.0)
    batches = for_ever(DataLoader(clips, 16, num_workers=given.workers))
    for _ in steps(given, model):
        clips.seconds.fill_(now(given, "clip") / 16 if slow else 0.0)
        x, y = next(batches)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        if now(given, "asks") and given.asks_rank == RANK:
            with costs("ask_scheduler"):
                ask_scheduler(given.asks)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
