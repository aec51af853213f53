"""Crashes of train.py that the host makes: disk, files, memory, data-loader workers."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.crashes.step import Step


def disk_full_checkpoint(step: Step) -> None:
    torch.save(step.model.state_dict(), "/dev/full")  # here


def disk_full_log(step: Step) -> None:
    with Path("/dev/full").open("w") as file:
        print("step 4", file=file, flush=True)  # here


def file_size_limit(step: Step) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    Path(f"/tmp/traceops_crash_{os.getpid()}").write_bytes(bytes(10_000))  # here


def open_files(step: Step) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
    files = []
    for _ in range(100):
        files.append(Path(os.devnull).open("rb"))  # noqa: SIM115  # here


def host_memory(step: Step) -> None:
    torch.empty(1 << 50)  # here


def memory_error(step: Step) -> None:
    bytearray(1 << 60)  # here


class Samples(Dataset[torch.Tensor]):
    """Samples whose reading does `work` in the loader's worker."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        made = self._work()
        return made if isinstance(made, torch.Tensor) else torch.zeros(1)


def read_sample() -> None:
    raise ValueError("sample 3 has no caption")  # here


def loader_error(step: Step) -> None:
    for _ in DataLoader(Samples(read_sample), num_workers=1):
        pass


def loader_killed(step: Step) -> None:
    def work() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in DataLoader(Samples(work), num_workers=1):  # here
        pass


def loader_exit(step: Step) -> None:
    for _ in DataLoader(Samples(lambda: os._exit(1)), num_workers=1):  # here
        pass


def loader_shm(step: Step) -> None:
    for _ in DataLoader(Samples(lambda: torch.zeros(16 << 20)), num_workers=1):  # here
        pass


def loader_pickle(step: Step) -> None:
    for _ in DataLoader(Samples(lambda: None), num_workers=1, multiprocessing_context="spawn"):  # here
        pass
