"""What is refused before anything starts, with the reason and what to do instead."""

from __future__ import annotations

from pathlib import Path

from traceops.core.errors import UsageError


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
