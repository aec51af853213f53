"""What the programs beside this file share: a device, DDP where several ranks run, and the clock of their phases.

The true share of each phase is measured here: each rank of the program writes its own to `PHASES_TRUTH`.<rank>.json.
"""

import ast
import atexit
import inspect
import json
import os
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
_spent: list[dict[str, float]] = []
_lines: dict[str, list] = {}
_began: list[float] = []
_seen: set[tuple[str, int]] = set()
torch.manual_seed(RANK)
if not CUDA:
    torch.set_num_threads(1)
if WORLD > 1 and not dist.is_initialized():
    dist.init_process_group("nccl" if CUDA else "gloo")


def wrap(model: nn.Module) -> nn.Module:
    model = model.to(DEVICE)
    return nn.parallel.DistributedDataParallel(model) if WORLD > 1 else model


def plain(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def sizes(cpu: int, gpu: int) -> int:
    """A number of the program: it differs between the two devices, so that no rule fits one of them alone."""
    return gpu if CUDA else cpu


def now() -> float:
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter()


class phase:
    """Times what stands in its block, and remembers the lines of it that the program would look for."""

    def __init__(self, name: str, *functions) -> None:
        self.name = name
        frame = inspect.currentframe().f_back
        own = _lines.setdefault(name, [])
        if (frame.f_code.co_filename, frame.f_lineno) not in _seen:
            _seen.add((frame.f_code.co_filename, frame.f_lineno))
            path = Path(frame.f_code.co_filename)
            blocks = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.With)]
            end = next(node.end_lineno for node in blocks if node.lineno == frame.f_lineno)
            own.append([path.name, frame.f_lineno, end])
            for function in functions:
                source, first = inspect.getsourcelines(inspect.unwrap(function))
                own.append([Path(inspect.getsourcefile(inspect.unwrap(function))).name, first, first + len(source)])

    def __enter__(self) -> None:
        self.start = now()

    def __exit__(self, *error) -> None:
        _spent[-1][self.name] += now() - self.start


def rounds(count: int):
    """The rounds of a loop; their ends are timed."""
    for number in range(count):
        _spent.append(defaultdict(float))
        _began.append(now())
        yield number
    _began.append(now())


def _write(path: str) -> None:
    """The seconds of each round, and of each phase in it."""
    rounds_s = [after - before for before, after in pairwise(_began)]
    Path(path).write_text(json.dumps({"rounds_s": rounds_s, "phases_s": _spent, "lines": _lines}))


if _path := os.environ.get("PHASES_TRUTH"):
    atexit.register(_write, f"{_path}.{RANK}.json")
if WORLD > 1:
    atexit.register(dist.destroy_process_group)
