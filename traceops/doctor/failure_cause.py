"""Why a test failed, where no variable of NCCL or gloo can change it."""

from __future__ import annotations

import re
from typing import Literal

FailureCause = Literal[
    "torch_not_imported",
    "module_missing",
    "no_gpu",
    "no_backend",
    "driver",
    "no_room",
    "device_in_use",
    "device_broken",
    "other_model",
]
# These may be true of one of several devices only: another process has it, or it is broken, or of another model.
OF_ONE_DEVICE: frozenset[FailureCause] = frozenset({"device_in_use", "device_broken", "other_model"})

# Words of Python, torch and CUDA. A full disk as Python says it: NCCL means /dev/shm.
_FOREIGN: tuple[tuple[FailureCause, re.Pattern[str]], ...] = (
    ("other_model", re.compile(r"no kernel image")),
    ("device_in_use", re.compile(r"CUDA out of memory|busy or unavailable")),
    (
        "device_broken",
        re.compile(
            r"[Uu]ncorrectable ECC|uncorrectable NVLink|GPU is lost|fallen off the bus|device not ready for use"
        ),
    ),
    ("module_missing", re.compile(r"No module named")),
    (
        "driver",
        re.compile(r"driver version is insufficient|system not yet initialized|unsupported display driver"),
    ),
    (
        "no_room",
        re.compile(r"OSError: \[Errno \d+\] (No space left|Disk quota exceeded|Too many open files)"),
    ),
)


class WorkerProblem(RuntimeError):
    """What a worker found that keeps it from testing anything."""

    def __init__(self, cause: FailureCause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def foreign_cause(text: str) -> FailureCause | None:
    """The cause that Python, torch or CUDA name in an error; None where they name none of these."""
    return next((cause for cause, words in _FOREIGN if words.search(text)), None)
