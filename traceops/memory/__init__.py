"""What a training needs of a GPU's memory: estimated before the run, and read from torch's snapshots."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceops.memory.model import MemoryEstimate
    from traceops.memory.run_memory import RunMemory
    from traceops.traces.memory_snapshot import DeviceSnapshot


class _CallableModule(ModuleType):
    # Importing this package binds it to the name `traceops.memory`, which is a function for users.
    def __call__(
        self, path: str | os.PathLike[str], *args: str, nproc: int = 1, rank: int = 0, gpu: str | None = None
    ) -> RunMemory | tuple[DeviceSnapshot, ...] | MemoryEstimate:
        """What a run's ranks held, what each GPU of a snapshot (a pickle) holds, or what a script (train.py) needs.

        A script runs with `args` on fake tensors, as `rank` of `nproc`; `gpu`, such as "H100", says whether that fits.
        Raises UsageError and InputError.
        """
        from pathlib import Path

        if os.fspath(path).endswith(".py"):
            from traceops.memory.estimate import AskedScript, estimate_script
            from traceops.memory.gpus import hardware_of

            card = hardware_of(gpu) if gpu else None
            capacity, name = (card.capacity, card.gpu) if card else (None, None)
            return estimate_script(AskedScript([os.fspath(path), *args], nproc, rank, capacity, name))
        if Path(path).is_dir():
            from traceops.memory.run_memory import read_run

            return read_run(Path(path))
        from traceops.traces.memory_snapshot import read_snapshot

        return read_snapshot(Path(path))


sys.modules[__name__].__class__ = _CallableModule
