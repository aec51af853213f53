"""A training of two ranks with gloo, of which rank 1 loads slowly; for peers.py.

python peers_train.py WORLD [memray|pyinstrument OUT]    # starts WORLD ranks, each under that program
torchrun peers_train.py                                  # is one rank
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

STEPS = 40


def next_batch(rank: int) -> object:
    """Rank 1's samples come late."""
    import torch

    if rank == 1:
        time.sleep(0.02)
    return torch.randn(64, 256)


def train() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        batch = next_batch(rank)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


@contextlib.contextmanager
def _recorded(tool: str, out: Path) -> Iterator[None]:
    """A rank under one of the two programs, by their own interfaces."""
    rank = os.environ["RANK"]
    if tool == "memray":
        import memray

        with memray.Tracker(out / f"rank{rank}.bin"):
            yield
    elif tool == "pyinstrument":
        from pyinstrument import Profiler

        profiler = Profiler()
        with profiler:
            yield
        (out / f"rank{rank}.html").write_text(profiler.output_html(), encoding="utf-8")
    else:
        yield


def main() -> int:
    if "RANK" in os.environ:
        tool, out = sys.argv[2:4] if len(sys.argv) > 3 else ("", ".")
        with _recorded(tool, Path(out)):
            train()
        return 0
    world = int(sys.argv[1])
    common = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29631",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(world)
    ]
    return max(rank.wait() for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
