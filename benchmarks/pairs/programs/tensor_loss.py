"""Tensor parallel over all ranks with a loss that stays in parts (loss_parallel), as torch's tutorial has it."""

import torch
import torch.distributed as dist
from own import begin, for_ever, samples, steps
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.utils.data import DataLoader


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def main() -> None:
    given = begin()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = torch.nn.Sequential(*(Block(256) for _ in range(4)), torch.nn.Linear(256, 512))
    plan: dict = {f"{n}.up": ColwiseParallel() for n in range(4)} | {f"{n}.down": RowwiseParallel() for n in range(4)}
    plan["4"] = ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, foreach=False)
    batches = for_ever(DataLoader(samples(2048, 256, 512), 128))
    for _ in steps(given, model):
        x, y = next(batches)
        with loss_parallel():
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
