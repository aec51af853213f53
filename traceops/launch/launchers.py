"""The command that starts the ranks: other launchers by name, and what is refused before anything starts."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceops.core.errors import UsageError
from traceops.core.text import near_path
from traceops.words.catalogue import fill


@dataclass(frozen=True)
class Started:
    """What is to be started. trains: the script (or "-m", module) and its arguments. nproc: ranks, None to leave it to
    the launcher. gpus: of this machine. nnodes: machines."""

    trains: tuple[str, ...]
    nproc: int | None
    gpus: int
    nnodes: int = 1

    @property
    def is_module(self) -> bool:
        return self.trains[0] == "-m"

    @property
    def ranks(self) -> int:
        """On each machine."""
        return self.nproc or self.gpus or 2


def _accelerate(what: Started) -> list[str]:
    if not what.gpus and what.ranks > 1:
        raise UsageError(fill("launch", "accelerate_cpu", "refused", ranks=what.ranks, trains=shlex.join(what.trains)))
    several = ["--multi_gpu"] if what.ranks > 1 else [] if what.gpus else ["--cpu"]
    options = ["--num_processes", str(what.ranks), "--num_machines", "1", "--mixed_precision", "no"]
    trains = ["--module", *what.trains[1:]] if what.is_module else list(what.trains)
    return ["accelerate", "launch", *several, *options, "--dynamo_backend", "no", *trains]


def _deepspeed(what: Started) -> list[str]:
    trains = ["--module", *what.trains[1:]] if what.is_module else list(what.trains)
    return ["deepspeed", "--num_gpus", str(what.ranks), *trains]


def _lightning(what: Started) -> list[str]:
    if what.nproc is not None:
        raise UsageError(fill("launch", "lightning_nproc", "refused", nproc=what.nproc))
    return [sys.executable, *what.trains]


def _srun(what: Started) -> list[str]:
    nodes = ["--nodes", str(what.nnodes)] if what.nnodes > 1 else []
    return ["srun", *nodes, "--ntasks", str(what.ranks * what.nnodes), sys.executable, *what.trains]


# By the name of --launcher; those of torchrun and of a command as it is are the plan's own.
_COMMANDS: dict[str, Callable[[Started], list[str]]] = {
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "lightning": _lightning,
    "srun": _srun,
}
NAMES = ("torchrun", "none", *_COMMANDS)
PROGRAMS = (  # that start ranks themselves
    "accelerate", "deepspeed", "torchrun", "srun", "mpirun", "mpiexec", "horovodrun", "composer", "fabric",
    "lightning", "colossalai",
)  # fmt: skip


def command_of(launcher: str, what: Started) -> list[str]:
    """The command for a script, a module or a Python program; one that begins with the launcher itself stays as it is.
    Raises UsageError where that launcher is not here or cannot start it, with the command that can."""
    if not what.trains:
        raise UsageError(f"--launcher {launcher}: give the script after --")
    command = list(what.trains) if what.trains[0] == launcher else _COMMANDS[launcher](what)
    if shutil.which(command[0]) is None:
        how = {"ranks": what.ranks, "trains": shlex.join(what.trains)}
        raise UsageError(fill("launch", "no_launcher", "refused", launcher=launcher, program=command[0], **how))
    return command


def python_program(trains: Sequence[str]) -> list[str]:
    """`trains` with the file of a program that pip installed, which torchrun can run on each rank; else as it is.
    Programs that start ranks themselves are left: each rank would start them."""
    if not trains or trains[0].startswith("-") or Path(trains[0]).exists() or trains[0] in PROGRAMS:
        return list(trains)
    if (found := shutil.which(trains[0])) is None:
        return list(trains)
    try:
        with Path(found).open("rb") as file:
            first = file.readline(256)
    except OSError:
        return list(trains)
    return [found, *trains[1:]] if first.startswith(b"#!") and b"python" in first else list(trains)


_LARGEST_SCRIPT = 1 << 20  # characters
_STARTS_RANKS = re.compile(r"^[^#\n]*?\b((?:mp|multiprocessing|xmp)\.spawn|notebook_launcher)\(", re.MULTILINE)

_DATA_PARALLEL = re.compile(r"^[^#\n]*?(?<!\w)(?:(?:torch\.)?nn\.)?DataParallel\(", re.MULTILINE)


def check_gpus(nproc: int, gpus: int) -> None:
    """Raise UsageError for more ranks than GPUs: NCCL refuses two ranks on one."""
    if 0 < gpus < nproc:
        raise UsageError(fill("launch", "one_gpu" if gpus == 1 else "few_gpus", "refused", nproc=nproc, gpus=gpus))


_NOT_THERE = "{} does not exist; give the path of the script after --"


def check_script(trains: list[str]) -> None:
    """Raise UsageError for a script that is not there."""
    if trains[0] == "-m":
        if len(trains) < 2:
            raise UsageError("-m: name the module to run after it, for example: traceops run -- -m package.train")
    elif trains[0].startswith("-"):
        raise UsageError(f"{trains[0]}: the script comes first after --, then its own options")
    elif not Path(trains[0]).exists() and shutil.which(trains[0]):
        raise UsageError(fill("launch", "program", "refused", program=trains[0], trains=shlex.join(trains)))
    elif not Path(trains[0]).exists():
        near = near_path(trains[0], run=False)
        raise UsageError(f"{trains[0]} does not exist{near}" if near else _NOT_THERE.format(trains[0]))


def check_command(trains: list[str]) -> None:
    """Raise UsageError for a command that cannot be started: --launcher none."""
    if not trains:
        raise UsageError("--launcher none: give the command that starts the ranks after --")
    if trains[0] == "-m" or trains[0].endswith(".py"):
        check_script(trains)
    elif shutil.which(trains[0]) is None:
        raise UsageError(f"{trains[0]} is not a program that can be found; give the command after --")


def starts_ranks(trains: list[str]) -> str | None:
    """The call by which this script seems to start ranks itself; None where it has none, or cannot be read. Under
    torchrun each of its ranks would start them."""
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


@dataclass(frozen=True)
class HangTimeouts:
    """How long may pass without a step, in seconds.

    hang_s: None for the larger of 60 s and ten median steps. init_s: before the first step; 0 for ever, None for 60 s
    in which no rank that has started moves, and half an hour in which one does or the job would be ended. kills:
    whether the job is ended then; else it is only said, with the evidence, as nothing seen from outside proves a hang.
    """

    hang_s: float | None = None
    init_s: float | None = None
    kills: bool = False
