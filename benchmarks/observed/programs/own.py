"""What these programs share: --tidy leaves their troubles out, and each tells what it counted, took and got."""

from __future__ import annotations

import hashlib
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CUDA = torch.cuda.is_available()
TIDY = "--tidy" in sys.argv
DEVICE = torch.device("cuda" if CUDA else "cpu")

_took: dict[str, float] = defaultdict(float)
_times: dict[str, int] = defaultdict(int)
_began = time.perf_counter()


def same_each_time() -> None:
    """As teams do that want to repeat a run."""
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def autocast() -> torch.autocast:
    return torch.autocast(DEVICE.type, torch.bfloat16)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Seconds on the host in this part, all together."""
    begin = time.perf_counter()
    yield
    _took[name] += time.perf_counter() - begin
    _times[name] += 1


def training_begins() -> None:
    """Set-up is over."""
    global _began
    _began = time.perf_counter()


def training(steps: int) -> Iterator[int]:
    """The numbers of the steps, once set-up is over."""
    training_begins()
    yield from range(steps)


def tell(steps: int, module: torch.nn.Module, loss: object = "") -> None:
    """What the training counted, how long its parts took, and what came of it."""
    if CUDA:
        torch.cuda.synchronize()
    whole = time.perf_counter() - _began
    digest = hashlib.sha256()
    for parameter in module.parameters():
        value = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        digest.update(value.detach().float().cpu().contiguous().numpy().tobytes())
    for name, seconds in _took.items():
        print(f"{name}: {_times[name]} times, {seconds:.3f} s, {100 * seconds / whole:.1f} % of the training")
    print(f"training {whole:.3f} s, {1e3 * whole / max(steps, 1):.2f} ms a step")
    print(f"steps {steps} weights {digest.hexdigest()[:16]} {loss}", flush=True)
