"""Which device and backend this process trains on."""

from __future__ import annotations

import torch
import torch.distributed as dist

from traceops.core.errors import UsageError
from traceops.train.config import TrainConfig


def pick_device(config: TrainConfig, local_rank: int) -> torch.device:
    """The device of ``--device``: on CUDA the one with the number `local_rank`.

    Raises UsageError where there is no CUDA, or fewer devices than ranks on this host.
    """
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA device; use --device cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UsageError(f"rank {local_rank} of this host has no GPU: there are {count}; start {count} processes")
    return torch.device("cuda", local_rank)


def pick_backend(config: TrainConfig, device: torch.device) -> str:
    """The backend of ``--backend``; UsageError if this torch was built without it."""
    backend = config.backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    if not dist.is_backend_available(backend):
        raise UsageError(f"--backend {backend}: this torch was built without it; use another --backend")
    return backend
