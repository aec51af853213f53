"""A job: what worker processes test, the environment they get, and failures that no variable can change."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

Backend = Literal["nccl", "gloo"]


class JobStage(Struct, frozen=True):
    """One test of a job. deadline_s: what it may take before it counts as hung, by default."""

    tests: str
    deadline_s: float


# In the order in which they run.
STAGES: Mapping[str, JobStage] = {
    "start": JobStage("the process group comes up and its ranks meet in a barrier", 45.0),
    "all_reduce": JobStage("sums over all ranks are right, for several sizes and types", 30.0),
    "pairs": JobStage("every two ranks send, receive and sum the right values", 60.0),
    "ddp_step": JobStage("the first step of a tiny DDP model gives the right gradients on all ranks", 40.0),
    "sweep": JobStage("bandwidth of all-reduce, all-gather and reduce-scatter over message sizes", 60.0),
    "pair_bandwidth": JobStage("bandwidth of send and receive between every two ranks, one pair at a time", 60.0),
}
# Not a stage: until every rank has imported torch, which takes long where it lies on a network drive.
LAUNCH = "launch"
LAUNCH_S = 120.0

_MI = 1 << 20
SIZES: Mapping[str, tuple[int, ...]] = {
    "nccl": (_MI // 16, _MI // 4, _MI, 4 * _MI, 16 * _MI, 64 * _MI, 256 * _MI),
    "gloo": (_MI // 16, _MI // 4, _MI, 4 * _MI, 16 * _MI),
}

# What torchrun and its kin tell their own children: ours are a job of their own.
_OF_A_LAUNCHER = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_OF_A_LAUNCHER_PREFIX = "TORCHELASTIC_"


class Rendezvous(Struct, frozen=True):
    """Where the ranks of a job on several nodes meet. first_rank: of this node. world_size: of all nodes."""

    address: str
    port: int
    first_rank: int
    world_size: int


class Job(Struct, frozen=True):
    """Stages to run in one launch, one process a device.

    stages: names of STAGES in their order, ``start`` first. devices: GPUs as CUDA counts the visible ones in PCI order,
    or, on the CPU, numbers of ranks. set, unset: variables against the environment. meeting: None for this machine
    alone. deadlines_s: by stage, where other than STAGES says; ``launch`` is until torch is imported. sizes: messages
    of the sweep in bytes as nccl-tests counts, ascending; empty for SIZES. budget_s: time after which ``sweep`` and
    ``pair_bandwidth`` each start nothing more. names: what messages call the devices, where that is another number (as
    nvidia-smi counts). Raises ValueError for stages out of order."""

    stages: tuple[str, ...]
    devices: tuple[int, ...]
    backend: Backend
    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    rendezvous: Rendezvous | None = None
    deadlines_s: Mapping[str, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    budget_s: float = 10.0
    names: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices or self.stages[:1] != ("start",):
            raise ValueError("a job needs a device, and 'start' as its first stage")
        if self.stages != tuple(name for name in STAGES if name in self.stages):
            raise ValueError(f"stages of a job come in the order {', '.join(STAGES)}, each once")

    @property
    def world_size(self) -> int:
        return self.rendezvous.world_size if self.rendezvous else len(self.devices)

    @property
    def first_rank(self) -> int:
        return self.rendezvous.first_rank if self.rendezvous else 0

    def deadline_s(self, stage: str) -> float:
        """What a stage, or ``launch``, may take."""
        return self.deadlines_s.get(stage, LAUNCH_S if stage == LAUNCH else STAGES[stage].deadline_s)


class WorkerTask(Struct, frozen=True):
    """What one worker is told. folder: where it reports. parent: pid of the process it must not outlive."""

    ENV = "TRACEOPS_DOCTOR_JOB"

    job: Job
    rank: int
    folder: str
    parent: int

    @property
    def device(self) -> int:
        return self.job.devices[self.rank - self.job.first_rank]

    @property
    def reports(self) -> Path:
        return Path(self.folder) / f"rank_{self.rank}.jsonl"

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_text(text: str) -> WorkerTask:
        """The inverse of `to_text`."""
        return msgspec.json.decode(text, type=WorkerTask)


def child_environment(task: WorkerTask, environ: Mapping[str, str], logs: Path) -> dict[str, str]:
    """The environment of a worker: `environ` without what an outer launcher said, with the job's changes. logs: where
    NCCL's own log goes. What NCCL logs, and where, is ours to say even where `environ` sets it: its log file would be
    overwritten, and its level may not tell the transports."""
    job = task.job
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _OF_A_LAUNCHER and not name.startswith(_OF_A_LAUNCHER_PREFIX) and name not in job.unset
    }
    # The order in which nvidia-smi counts; one thread a process, as torchrun has it.
    defaults = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": "1"}
    nccl = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH",
        "NCCL_DEBUG_FILE": str(logs / "nccl.%h.%p.log"),
    }
    return defaults | kept | nccl | job.set | {WorkerTask.ENV: task.to_text()}


# Events that a worker reports while it runs: a line of JSON each, in a file of its own.

Event = dict[str, Any]


class Reporter:
    """Writes events; each is on its way before `say` returns, so that a rank that is killed has said it. Events:
    ``launched``; of a stage: ``begin``, ``end``, ``at`` (what), ``wrong`` (text), ``note`` (text), ``skipped`` (text),
    ``measured`` (row), ``pair`` (ranks, state); and at last ``left``, or ``error`` (text, cause). A cause is a
    FailureCause, or null."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, event: str, **facts: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, "time_s": time.monotonic(), **facts}) + "\n").encode())


class Reports:
    """Reads the events of one worker as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.events: list[Event] = []

    def refresh(self) -> None:
        """Take in what is new: whole lines only."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return  # the worker has not come that far
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            with suppress(json.JSONDecodeError):  # cut off where the disk was full
                self.events.append(json.loads(line))

    def of(self, stage: str, event: str) -> list[Event]:
        return [found for found in self.events if found["event"] == event and found.get("stage") == stage]


FailureCause = Literal[
    "torch_not_imported", "module_missing", "no_gpu", "no_backend", "driver", "no_room",
    "device_in_use", "device_broken", "other_model",
]  # fmt: skip
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
