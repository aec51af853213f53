"""DDP that comes to grief: a rank that leaves a batch out (--leave-out), keeps all batches (--keep), or fails once."""

import os
import resource
from pathlib import Path

import torch
import torch.distributed as dist
from own import begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    given = begin(rank=1, leave_out=0, keep=0, limit_gb=0.0, fail=0)
    mine = dist.get_rank() == given.rank
    model = DDP(blocks(256, 5, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batches = sharded(samples(4096, 256), 64)
    kept: list[torch.Tensor] = []
    for step in steps(given, model, 1):
        x, y = next(batches)
        if mine and step == given.leave_out:
            continue
        if mine and given.keep:
            if step == 5:
                size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                limit = size + int(given.limit_gb * 2**30)
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            kept.append(x.repeat(given.keep, 1))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if mine and step == given.fail and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            raise ValueError("label 9 is out of range")


if __name__ == "__main__":
    main()
