"""What the programs beside this file share: a device, DDP where several ranks run, and the clock of their phases.

The true share of each phase is measured here: each rank of the program writes its own to `PHASES_TRUTH`.<rank>.json.
A program trains for `PHASES_SECONDS` after its warm-up.
"""

import ast
import atexit
import inspect
import itertools
import json
import os
import time
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
SECONDS = float(os.environ.get("PHASES_SECONDS", "20"))
WARM_UP = 3  # rounds
_TRUTH = os.environ["PHASES_TRUTH"]
_loops = itertools.count()
_spent: list[dict[str, float]] = []
_took_s: list[float] = []
_lines: dict[str, list] = {}
_seen: set[tuple[str, int]] = set()
torch.manual_seed(200 + RANK)
if not CUDA:
    torch.set_num_threads(1)
if WORLD > 1 and not dist.is_initialized():
    dist.init_process_group("nccl" if CUDA else "gloo")


def wrap(model: nn.Module) -> nn.Module:
    model = model.to(DEVICE)
    return nn.parallel.DistributedDataParallel(model) if WORLD > 1 else model


def plain(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def sizes(cpu, gpu):
    """A size of the program: it differs between the two devices, so that no rule fits one of them alone."""
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


def rounds(part: float = 1.0):
    """The rounds of a loop for this part of the program's seconds, after a warm-up; their ends are timed.

    Rank 0 decides which round is the last while it runs the one before, so all ranks end with the same: a rank starts
    no round before every rank has taken its steps of the round before the last.
    """
    last, decided, began = Path(f"{_TRUTH}.last.{next(_loops)}"), "", now()
    for number in itertools.count():
        if number == WARM_UP:
            began = now()
        if RANK == 0 and not decided and number >= WARM_UP and now() - began >= part * SECONDS:
            decided = str(number + 1)
            last.write_text(decided)
        elif RANK and not decided and last.exists():
            decided = last.read_text()
        if decided and number > int(decided):
            break
        _spent.append(defaultdict(float))
        start = now()
        yield number
        _took_s.append(now() - start)


def _write() -> None:
    """The seconds of each round, and of each phase in it."""
    truth = {"rounds_s": _took_s, "phases_s": _spent, "lines": _lines}
    Path(f"{_TRUTH}.{RANK}.json").write_text(json.dumps(truth))


atexit.register(_write)
if WORLD > 1:
    atexit.register(dist.destroy_process_group)
