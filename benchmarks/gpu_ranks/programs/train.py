"""One rank of one program: what is true of it without a profiler, then a trace as its user would make it.

    RANK=… WORLD_SIZE=… python train.py OUT NAME       # run.sh starts all ranks

OUT/traces/NAME/ gets the files of all ranks, OUT/truths.NAME.RANK.json what was measured before any profiler ran.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from case import CUDA, Case, timed, wait
from ddp import CASES
from sharded import CASES as SHARDED


def main(out: Path, name: str) -> None:
    """Measures the program without its troubles, then with them, and records it."""
    case: Case = {one.name: one for one in (*CASES, *SHARDED)}[name]
    rank = dist.get_rank()
    folder = out / "traces" / name
    folder.mkdir(parents=True, exist_ok=True)
    told: dict[str, object] = {"name": name, "rank": rank, "ranks": dist.get_world_size()}
    if case.cure:
        told["cured"] = timed(case.make(True, folder), case.steps, case.warm)
    loop = case.make(False, folder)
    told |= timed(loop, case.steps, case.warm)
    (out / f"truths.{name}.{rank}.json").write_text(json.dumps(told))
    wait()
    dist.barrier()
    case.record(loop, folder)
    wait()
    dist.barrier()
    print(f"{name} rank {rank}: {told['step_ms']} ms", flush=True)


if __name__ == "__main__":
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.manual_seed(int(os.environ["RANK"]))
    if CUDA:
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if CUDA else "gloo", device_id=torch.device("cuda", 0) if CUDA else None)
    main(Path(sys.argv[1]), sys.argv[2])
    dist.destroy_process_group()
