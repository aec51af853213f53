"""The launchers of others by name: the command with which each starts the ranks of a script."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceops.core.errors import UsageError


@dataclass(frozen=True)
class Started:
    """What is to be started. trains: the script (or "-m", module) and its arguments. nproc: ranks, None to leave it
    to the launcher. gpus: of this machine. nnodes: machines.
    """

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
        raise UsageError(
            "--launcher accelerate: on the CPU, accelerate launch always starts a single process. Let torchrun start "
            f"the ranks: traceops run --nproc {what.ranks} -- {shlex.join(what.trains)}"
        )
    several = ["--multi_gpu"] if what.ranks > 1 else [] if what.gpus else ["--cpu"]
    options = ["--num_processes", str(what.ranks), "--num_machines", "1", "--mixed_precision", "no"]
    trains = ["--module", *what.trains[1:]] if what.is_module else list(what.trains)
    return ["accelerate", "launch", *several, *options, "--dynamo_backend", "no", *trains]


def _deepspeed(what: Started) -> list[str]:
    trains = ["--module", *what.trains[1:]] if what.is_module else list(what.trains)
    return ["deepspeed", "--num_gpus", str(what.ranks), *trains]


def _lightning(what: Started) -> list[str]:
    if what.nproc is not None:
        raise UsageError(
            f"--nproc {what.nproc}: not with --launcher lightning, where Trainer(devices=…) decides; leave it out"
        )
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

    Raises UsageError where that launcher is not here or cannot start it, with the command that can.
    """
    if not what.trains:
        raise UsageError(f"--launcher {launcher}: give the script after --")
    command = list(what.trains) if what.trains[0] == launcher else _COMMANDS[launcher](what)
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"--launcher {launcher}: there is no {command[0]} here; install it, or start the ranks with torchrun: "
            f"traceops run --nproc {what.ranks} -- {shlex.join(what.trains)}"
        )
    return command


def python_program(trains: Sequence[str]) -> list[str]:
    """`trains` with the file of a program that pip installed, which torchrun can run on each rank; else as it is.

    Programs that start ranks themselves are left: each rank would start them.
    """
    if not trains or trains[0].startswith("-") or Path(trains[0]).exists() or trains[0] in PROGRAMS:
        return list(trains)
    found = shutil.which(trains[0])
    if found is None:
        return list(trains)
    try:
        with Path(found).open("rb") as file:
            first = file.readline(256)
    except OSError:
        return list(trains)
    return [found, *trains[1:]] if first.startswith(b"#!") and b"python" in first else list(trains)
