"""What torch this machine has, and how many GPUs it would see, without importing it where that can be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from traceops.core.errors import UsageError


def require_torch(what: str = "running a training") -> None:
    """Raise UsageError where torch is not installed. what: needs it."""
    if find_spec("torch") is None:
        raise UsageError(f"{what} needs torch: pip install torch (traceops's extra [run])")


def gpu_count(environ: Mapping[str, str] = os.environ) -> int:
    """GPUs that the ranks will see; torch is only asked (and loaded, seconds) where there may be some."""
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    drivers = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
    if hidden in ("", "-1") or not any(Path(path).exists() for path in drivers):
        return 0
    import torch  # it may not be installed, and takes seconds

    return int(torch.cuda.device_count())


def gpus_shown(gpus: int, names: str | None) -> int:
    """Those of `gpus` here that ranks see with this CUDA_VISIBLE_DEVICES of their own; None is as it is here."""
    if names is None or not gpus:
        return gpus
    return len(list(takewhile(lambda name: name not in ("", "-1"), map(str.strip, names.split(",")))))
