"""DDP with no_sync() over micro-batches: an autoencoder; a rank's host draws noise."""

import contextlib
import time

import torch
from costs import costs, now
from own import RANK, begin, for_ever, steps
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    def __init__(self, given: object, batch: int) -> None:
        self.given, self.batch = given, batch
        self.rows = torch.randn(2048, 128, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        if now(self.given, "read"):
            time.sleep(self.given.read / self.batch)
        return self.rows[index]


def add_noise(rows: torch.Tensor, seconds: float) -> torch.Tensor:
    if seconds:
        with costs("add_noise"):
            time.sleep(seconds)
    return rows + 0.1 * torch.randn_like(rows)


def main() -> None:
    given = begin(micro=4, read=0.0, noise=0.0, noise_rank=1)
    layers = [torch.nn.Linear(128, 32), torch.nn.Tanh(), torch.nn.Linear(32, 128)]
    model = DDP(torch.nn.Sequential(*layers))
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-4)
    batches = for_ever(DataLoader(Spectra(given, 16), 16, shuffle=True))
    for _ in steps(given, model):
        for micro in range(given.micro):
            with contextlib.nullcontext() if micro == given.micro - 1 else model.no_sync():
                rows = next(batches)
                noisy = add_noise(rows, now(given, "noise") if given.noise_rank == RANK else 0.0)
                (torch.nn.functional.mse_loss(model(noisy), rows) / given.micro).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
