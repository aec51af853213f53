"""DDP of a small U-Net; each step the loss is a number on each rank; rank 0 draws, and saves behind a barrier."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, steps
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = (torch.nn.Conv2d(1, 8, 3, stride=2, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1))
        self.up = torch.nn.ConvTranspose2d(8, 2, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(torch.relu(self.deep(torch.relu(self.down(x)))))


def draw_masks(seconds: float) -> None:
    time.sleep(seconds)


def write_snapshot(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    given = begin(draw=0.0, draw_rank=0, save=0.0, each=4, rows="8,8,8")
    model = DDP(Net())
    optimizer = torch.optim.NAdam(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(RANK)
    rows = [int(n) for n in given.rows.split(",")][RANK]
    for step in steps(given, model, 1):
        x = torch.randn(rows, 1, 48, 48, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        told = torch.tensor([loss.item(), float(rows)])
        dist.all_reduce(told)
        if not told.isfinite().all().item():
            raise SystemExit("the loss is no number")
        if now(given, "draw") and given.draw_rank == RANK:
            with costs("draw_masks"):
                draw_masks(given.draw)
        if now(given, "save") and step % given.each == 0:
            if RANK == 0:
                with costs("write_snapshot"):
                    write_snapshot(given.save)
            dist.barrier()


if __name__ == "__main__":
    main()
