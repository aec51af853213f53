"""DDP with many troubles: on rank 1 garbage every 5 steps, a recompilation every 4 and a slow function; on both an
evaluation every 10, and on rank 0 a checkpoint every 20."""

import gc
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

CUDA = torch.cuda.is_available()
WIDTH, LAYERS, BATCH, STEPS = (4096, 12, 8192, 160) if CUDA else (256, 2, 64, 120)
OBJECTS = 100_000 if CUDA else 10_000


def slow_function() -> int:
    return sum(number * number % 7 for number in range(30_000))


@torch.compile(backend="eager", dynamic=False)
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def litter() -> None:
    kept: list = []
    for _ in range(OBJECTS):
        kept.append([kept])
    del kept
    gc.collect()


def evaluate(model: torch.nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        return sum(F.mse_loss(model(x), x).item() for _ in range(4))


def main() -> None:
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    dtype = torch.bfloat16 if CUDA else torch.float32
    torch.manual_seed(0)
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    net = torch.nn.Sequential(*layers).to(device, dtype)
    model = DistributedDataParallel(net, device_ids=[device.index] if CUDA else None)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    x = torch.randn(BATCH, WIDTH, device=device, dtype=dtype)
    for step in range(STEPS):
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1:
            slow_function()
            if step % 5 == 4:
                litter()
            if step % 4 == 3:
                scaled(torch.ones(step + 2, device=device))
        if step % 10 == 9:
            evaluate(net, x)
        if step % 20 == 19 and rank == 0:
            torch.save(net.state_dict(), "checkpoint.pt")
    print(f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
