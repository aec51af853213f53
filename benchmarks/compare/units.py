"""A training whose step is a number of equal products of matrices, so that a slowdown of known size can be planted.

traceops run --nproc 2 -- benchmarks/compare/units.py --units 110     # a tenth more work than the usual 100
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=100)
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    dist.init_process_group("nccl" if gpu else "gloo")
    one = torch.ones(2048 if gpu else 160, 2048 if gpu else 160, device=device) / 1e4
    layer = torch.nn.Linear(64, 64).to(device)
    model = torch.nn.parallel.DistributedDataParallel(layer, device_ids=[device.index] if gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 64, device=device)
    for _ in range(args.steps):
        for _ in range(args.units):
            one @ one
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
