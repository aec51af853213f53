"""NVLink's counters of NVML beside the bytes that all-reduces of known sizes send.

torchrun --nproc-per-node 2 -m benchmarks.two_gpus.nvlink OUT.json

Of N ranks in a ring each sends 2 (N-1)/N of the bytes it reduces, and receives as many. The counters are read where an
interval of all-reduces begins and ends, by rank 0, of both GPUs. Nothing is sent in the first interval.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from traceops.live.machines import Gpm

SIZES = (0, 16 << 20, 128 << 20, 1 << 30)
SECONDS = 2.5
MIB = 1 << 20


def pace(tensor: torch.Tensor) -> float:
    """Seconds of one all-reduce."""
    for _ in range(2):
        for _ in range(3):
            dist.all_reduce(tensor)
        sync()
        began = time.perf_counter()
        for _ in range(10):
            dist.all_reduce(tensor)
        sync()
    took = torch.tensor((time.perf_counter() - began) / 10, device=tensor.device)
    dist.broadcast(took, 0)
    return float(took)


def sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def interval(size: int, device: torch.device, gpm: Gpm | None) -> dict[str, object]:
    """All-reduces of `size` bytes for some seconds, and what the counters show meanwhile."""
    tensor = torch.zeros(max(size, 4) // 4, device=device)
    count = int(SECONDS / pace(tensor)) if size else 0
    dist.barrier()
    sync()
    if gpm is not None:
        gpm.look()
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(tensor)
    sync()
    if not size:
        time.sleep(1.0)
    took = time.perf_counter() - began
    seen = {} if gpm is None else gpm.look()
    world = dist.get_world_size()
    algorithm = count * size / took / MIB
    return {
        "bytes": size, "count": count, "seconds": round(took, 3), "algorithm_mib_s": round(algorithm, 1),
        "bus_mib_s": round(algorithm * 2 * (world - 1) / world, 1), "counters": seen,
    }  # fmt: skip


def main() -> None:
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    gpm, trouble = None, ""
    if dist.get_rank() == 0:
        try:
            gpm = Gpm()
        except OSError as error:
            trouble = str(error)
    rows = [interval(size if gpu else size >> 6, device, gpm) for size in SIZES]
    if dist.get_rank() == 0:
        for row in rows:
            print(json.dumps(row), trouble, flush=True)
        Path(sys.argv[1]).write_text(json.dumps(rows, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
