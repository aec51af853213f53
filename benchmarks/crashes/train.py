"""A training under DDP in which one rank crashes in a chosen way, provoked with real torch.

PYTHONPATH=. traceops run --nproc 2 -- benchmarks/crashes/train.py --crash batch_norm --rank 1

The functions are in of_program.py, of_host.py, of_torch.py and of_gpu.py; the line that is to be
named ends in `# here`. RESULTS.md has what came of it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.crashes import of_gpu, of_host, of_program, of_torch
from benchmarks.crashes.step import DIM, Step, is_planted


def _crashes(*modules: ModuleType) -> dict[str, Callable[[Step], None]]:
    functions = [value for module in modules for value in vars(module).values()]
    return {f.__name__: f for f in functions if getattr(f, "__annotations__", {}).get("step") == "Step"}


CRASHES = _crashes(of_program, of_host, of_torch, of_gpu)
# These make both ranks do something, the planted one something else.
TOGETHER = (
    "model_differs", "shapes_differ", "size_differs", "operation_differs", "barrier_missed", "expand_buffer",
    "ready_twice", "oom_others", "oom_in_nccl", "duplicate_gpu", "no_interface", "watchdog",
)  # fmt: skip
# Variables of the planted rank, set before the process group is made.
VARIABLES = {"no_interface": ("NCCL_SOCKET_IFNAME", "nosuch0")}


class Model(nn.Module):
    """Two layers, of which the second can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(DIM, DIM)
        self.second = nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor, branch: bool = True) -> torch.Tensor:
        hidden: torch.Tensor = self.first(x)
        return self.second(hidden) if branch else hidden


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crash", default="")
    parser.add_argument("--rank", type=int, default=1, help="that crashes (%(default)s)")
    parser.add_argument("--at", type=int, default=4, help="step of the crash (%(default)s)")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    os.environ["TRACEOPS_CRASH_RANK"] = str(args.rank)
    if args.crash in VARIABLES and is_planted():
        os.environ.update([VARIABLES[args.crash]])
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=None)
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = Step(model, optimizer, device)
    for number in range(args.steps):
        if args.crash and number == args.at and (is_planted() or args.crash in TOGETHER):
            CRASHES[args.crash](step)
        torch.autograd.backward(step.loss())
        optimizer.step()
        optimizer.zero_grad()
    if gpu:
        torch.cuda.synchronize(device)
    print(f"rank {dist.get_rank()} finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
