"""What is refused before anything starts, with the reason and what to do instead."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from traceops.core.close_names import near_path
from traceops.core.errors import UsageError

_LARGEST_SCRIPT = 1 << 20  # characters
_STARTS_RANKS = re.compile(r"^[^#\n]*?\b((?:mp|multiprocessing|xmp)\.spawn|notebook_launcher)\(", re.MULTILINE)

_DATA_PARALLEL = re.compile(r"^[^#\n]*?(?<!\w)(?:(?:torch\.)?nn\.)?DataParallel\(", re.MULTILINE)


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
    elif not Path(trains[0]).exists() and shutil.which(trains[0]):
        raise UsageError(
            f"{trains[0]} is a program, not a script; let it start the ranks: traceops run -- {shlex.join(trains)}"
        )
    elif not Path(trains[0]).exists():
        near = near_path(trains[0]) or "; give the path of the script after --"
        raise UsageError(f"{trains[0]} does not exist{near}")


def check_command(trains: list[str]) -> None:
    """Raise UsageError for a command that cannot be started: --launcher none."""
    if not trains:
        raise UsageError("--launcher none: give the command that starts the ranks after --")
    if trains[0] == "-m" or trains[0].endswith(".py"):
        check_script(trains)
    elif shutil.which(trains[0]) is None:
        raise UsageError(f"{trains[0]} is not a program that can be found; give the command after --")


def starts_ranks(trains: list[str]) -> str | None:
    """The call by which this script seems to start ranks itself; None where it has none, or cannot be read.

    Under torchrun each of its ranks would start them.
    """
    found = _STARTS_RANKS.search(_text_of(trains[0]))
    return found[1] if found else None


def wraps_in_data_parallel(trains: list[str]) -> bool:
    """Whether this script seems to wrap a model in nn.DataParallel, which drives all GPUs from one process."""
    return _DATA_PARALLEL.search(_text_of(trains[0])) is not None


def _text_of(script: str) -> str:
    """Of a script in Python that can be read; empty of all others."""
    if not script.endswith(".py"):
        return ""
    try:
        with Path(script).open(encoding="utf-8", errors="replace") as file:
            return file.read(_LARGEST_SCRIPT)
    except OSError:
        return ""
