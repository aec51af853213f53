"""Four ranks, tensor × data parallel by hand: one rank's host is late in forward, another's before its optimizer."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, steps
from torch.distributed.device_mesh import init_device_mesh


class Both(torch.autograd.Function):
    """The sum over the tensor group in forward."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def fetch_prompt(seconds: float) -> None:
    time.sleep(seconds)


def adapt_scale(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    given = begin(RANK, prompt=0.0, prompt_rank=1, scale=0.0, scale_rank=2)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    tensor, data = mesh.get_group("tensor"), mesh.get_group("data")
    up = torch.nn.ModuleList(torch.nn.Linear(128, 128) for _ in range(2))
    down = torch.nn.ModuleList(torch.nn.Linear(128, 128) for _ in range(2))
    parameters = [*up.parameters(), *down.parameters()]
    optimizer = torch.optim.SGD(parameters, 1e-3)
    generator = torch.Generator().manual_seed(RANK // 2)
    for _ in steps(given, up):
        x = torch.randn(32, 128, generator=generator)
        if now(given, "prompt") and given.prompt_rank == RANK:
            with costs("fetch_prompt"):
                fetch_prompt(given.prompt)
        for wide, back in zip(up, down, strict=True):
            x = x + Both.apply(back(torch.relu(wide(x))), tensor)
        x.square().mean().backward()
        if now(given, "scale") and given.scale_rank == RANK:
            with costs("adapt_scale"):
                adapt_scale(given.scale)
        flat = torch.cat([one.grad.flatten() for one in parameters])
        dist.all_reduce(flat, group=data)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
