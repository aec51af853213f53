"""Tensor parallel by a plan of DTensors; metrics are gathered as objects each step; a rank's table is slow."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Layer(torch.nn.Module):
    def __init__(self, given: object) -> None:
        super().__init__()
        self.norm, self.wide, self.back = (
            torch.nn.LayerNorm(192),
            torch.nn.Linear(192, 384),
            torch.nn.Linear(384, 192),
        )
        self.given = given

    def look_up_positions(self) -> None:
        time.sleep(self.given.table / self.given.depth)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.given.table_rank == RANK and now(self.given, "table"):
            with costs("look_up_positions"):
                self.look_up_positions()
        return x + self.back(torch.nn.functional.silu(self.wide(self.norm(x))))


def summarize_step(everybody: list, seconds: float) -> float:
    time.sleep(seconds)
    return sum(everybody)


def main() -> None:
    given = begin(table=0.0, table_rank=1, summary=0.0, depth=3)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    model = torch.nn.Sequential(*(Layer(given) for _ in range(given.depth)))
    for layer in model:
        parallelize_module(layer, mesh, {"wide": ColwiseParallel(), "back": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, foreach=False)
    generator = torch.Generator().manual_seed(6)
    for _ in steps(given, model):
        x = torch.randn(64, 192, generator=generator)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if now(given, "summary"):
            told = [None] * dist.get_world_size()
            dist.all_gather_object(told, loss.item())
            if RANK == 0:
                with costs("summarize_step"):
                    summarize_step(told, given.summary)
            dist.barrier()


if __name__ == "__main__":
    main()
