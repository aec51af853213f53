"""A training in which one rank goes wrong at one step, under DDP, FSDP2 or HSDP.

traceops run --nproc 4 -- benchmarks/hangs/train.py --strategy hsdp --fault gpu --rank 1
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

FAULTS = (
    "none", "sleep", "lock", "gil", "stop", "loader", "skip", "op", "size", "exit0", "exit3", "raise", "kill",
    "gpu", "gpu_sync", "init",
)  # fmt: skip
STRATEGIES = ("ddp", "fsdp2", "hsdp")
_FOREVER_S = 3600


class Batches(Dataset[torch.Tensor]):
    """Random batches; one never comes if `stuck_at` is its number."""

    def __init__(self, count: int, dim: int, stuck_at: int | None) -> None:
        self._count, self._dim, self._stuck_at = count, dim, stuck_at

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._stuck_at:
            time.sleep(_FOREVER_S)
        return torch.randn(32, self._dim)


def make_model(strategy: str, dim: int, layers: int, device: torch.device) -> nn.Module:
    """A stack of linear layers under the strategy; hsdp shards inside halves of the world."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(layers))).to(device)
    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=8)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    world = dist.get_world_size()
    if strategy == "hsdp":
        mesh = init_device_mesh(device.type, (2, world // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(device.type, (world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # type: ignore[return-value]


def spin(seconds: float) -> None:
    """Keep this rank's GPU busy, in kernels of about a second that no peer waits for."""
    for _ in range(int(seconds)):
        torch.cuda._sleep(1_700_000_000)  # type: ignore[no-untyped-call]


def before_step(fault: str, device: torch.device) -> None:
    """What the faulty rank does instead of going on to the next step."""
    if fault == "sleep":
        time.sleep(_FOREVER_S)
    elif fault == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif fault == "gil":
        mutex = ctypes.create_string_buffer(128)  # PyDLL keeps the interpreter's lock during a call
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "exit0":
        os._exit(0)
    elif fault == "exit3":
        os._exit(3)
    elif fault == "raise":
        raise ValueError("planted")
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault in ("gpu", "gpu_sync"):
        spin(_FOREVER_S / 10)
        if fault == "gpu_sync":
            torch.cuda.synchronize(device)


def metrics(fault: str, loss: torch.Tensor) -> None:
    """An all-reduce of 4 MB a step, which the faulty rank leaves out, changes, or replaces."""
    if fault == "skip":
        return
    values = loss.detach() * torch.ones(1 << 20, device=loss.device)
    if fault == "op":
        gathered = torch.empty(values.numel() * dist.get_world_size(), device=loss.device)
        dist.all_gather_into_tensor(gathered, values)
    elif fault == "size":
        dist.all_reduce(values[: values.numel() // 4].clone())
    else:
        dist.all_reduce(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES, default="ddp")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--rank", type=int, default=0, help="of the fault (%(default)s)")
    parser.add_argument("--at", type=int, default=6, help="step of the fault (%(default)s)")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    args = parser.parse_args()
    mine = int(os.environ["RANK"]) == args.rank
    if args.fault == "init" and mine:
        time.sleep(_FOREVER_S)
    gpu = torch.cuda.is_available()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local % torch.cuda.device_count()) if gpu else torch.device("cpu")
    if gpu:
        if local >= torch.cuda.device_count():
            os.environ["NCCL_HOSTID"] = f"host{local}"  # NCCL lets ranks of different hosts alone share a GPU
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    torch.manual_seed(0)
    model = make_model(args.strategy, args.dim, args.layers, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    stuck_at = args.at if mine and args.fault == "loader" else None
    loader = DataLoader(Batches(args.steps, args.dim, stuck_at), batch_size=None, num_workers=1)
    for step, batch in enumerate(loader):
        wrong = args.fault if mine and step == args.at else "none"
        before_step(wrong, device)
        loss = model(batch.to(device, non_blocking=True)).square().mean()
        loss.backward()
        metrics(wrong, loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3:
            loss.item()
    if gpu:
        torch.cuda.synchronize(device)
    print(f"rank {dist.get_rank()} finished {args.steps} steps, loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
