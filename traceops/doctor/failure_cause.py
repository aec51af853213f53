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

_OWN = "traceops_cause"
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
    ("driver", re.compile(r"driver version is insufficient|system not yet initialized|unsupported display driver")),
    ("no_room", re.compile(r"OSError: \[Errno \d+\] (No space left|Disk quota exceeded|Too many open files)")),
)


def worker_problem(cause: FailureCause, message: str) -> RuntimeError:
    """The error of a worker that finds what keeps it from testing anything; `own_cause` tells the cause of it."""
    error = RuntimeError(message)
    error.__dict__[_OWN] = cause
    return error


def own_cause(error: BaseException) -> FailureCause | None:
    """The cause that a worker gave its error; None for other errors."""
    cause: FailureCause | None = error.__dict__.get(_OWN)
    return cause


def foreign_cause(text: str) -> FailureCause | None:
    """The cause that Python, torch or CUDA name in an error; None where they name none of these."""
    return next((cause for cause, words in _FOREIGN if words.search(text)), None)
