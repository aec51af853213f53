"""Tensor parallel of an MLP-Mixer by DTensor; rank 0 draws the batch and sends it to all."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Mix(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(160)
        self.wide, self.back = torch.nn.Linear(160, 640), torch.nn.Linear(640, 160)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.back(torch.nn.functional.gelu(self.wide(self.norm(x))))


def tokenize_batch(seconds: float) -> None:
    time.sleep(seconds)


def refresh_table(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    given = begin(draw=0.0, refresh=0.0, refresh_rank=1, depth=4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = torch.nn.Sequential(*(Mix() for _ in range(given.depth)))
    for layer in model:
        parallelize_module(layer, mesh, {"wide": ColwiseParallel(), "back": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, foreach=False)
    for _ in steps(given, model):
        x = torch.randn(96, 160)
        if RANK == 0 and now(given, "draw"):
            with costs("tokenize_batch"):
                tokenize_batch(given.draw)
        dist.broadcast(x, 0)
        loss = (model(x) - x).square().mean()
        if now(given, "refresh") and given.refresh_rank == RANK:
            with costs("refresh_table"):
                refresh_table(given.refresh)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
