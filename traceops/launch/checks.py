"""What is refused before anything starts, with the reason and what to do instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from traceops.core.errors import UsageError


def require_torch() -> None:
    """Raise UsageError where torch is not installed."""
    if find_spec("torch") is None:
        raise UsageError("running a training needs torch: pip install torch (traceops's extra [run])")


def gpu_count(environ: Mapping[str, str] = os.environ) -> int:
    """GPUs that the ranks will see; torch is only asked (and loaded, seconds) where there may be some."""
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    drivers = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    if hidden in ("", "-1") or not any(Path(path).exists() for path in drivers):
        return 0
    import torch

    return int(torch.cuda.device_count())


def gpus_shown(gpus: int, names: str | None) -> int:
    """Those of `gpus` here that ranks see with this CUDA_VISIBLE_DEVICES of their own; None is as it is here."""
    if names is None or not gpus:
        return gpus
    return len(list(takewhile(lambda name: name not in ("", "-1"), map(str.strip, names.split(",")))))


def check_gpus(nproc: int, gpus: int) -> None:
    """Raise UsageError for more ranks than GPUs: NCCL refuses two ranks on one."""
    if 0 < gpus < nproc:
        raise UsageError(
            f"--nproc {nproc}: this machine has {gpus} GPU{'s' if gpus > 1 else ''} and each rank needs one; "
            f"use --nproc {gpus}, or --device cpu for a training on the CPU"
        )


def check_script(trains: list[str]) -> None:
    """Raise UsageError for a script that is not there."""
    if trains[0] == "-m":
        if len(trains) < 2:
            raise UsageError("-m: name the module to run after it")
    elif trains[0].startswith("-"):
        raise UsageError(f"{trains[0]}: the script comes first after --, then its own options")
    elif not Path(trains[0]).exists():
        raise UsageError(f"{trains[0]} does not exist; give the path of the script to profile after --")
