"""What torch's allocator holds where memory runs out on a GPU, kept for whoever reads the run.

Torch calls an observer just before it raises OutOfMemoryError. It saves what the allocator knows: each block, and with
a history of allocations (``--with-memory``) the stack that made it. Nothing of this is called until then, but for the
history's own cost of some µs an allocation (docs/observe.md). None of its errors reaches the program.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from traceops.capture.guard import contained
from traceops.core.files import write_whole
from traceops.core.rank_files import HELD, OUT_OF_MEMORY, RAN_OUT, SNAPSHOT

HISTORY = 20_000  # events: some steps of a large model, and a few MB in the snapshot
_MOST_SAVED = 4  # a program that tries batch after batch until one fits runs out again and again
_MOST_BYTES = 1 << 28


class MemoryWatch:
    """One rank's. folder: of the rank, in the run folder. history: record each allocation's stack from when the program
    first uses a GPU; it goes on until the process ends, because the program may have asked for one too. steps: how many
    are done, so that what is saved says in which one memory ran out."""

    def __init__(self, folder: Path, *, history: bool, steps: Callable[[], int]) -> None:
        self._folder, self._history = folder, history
        self._saved = 0
        self._off = False
        self._pid = os.getpid()
        self._steps = steps

    def install(self, cuda: Any) -> None:
        """Begin when the program first uses a GPU. cuda: torch's module of that name."""
        contained(cuda._lazy_call, self._begin)

    def close(self) -> None:
        """Save nothing more."""
        self._off = True
        queued = getattr(sys.modules.get("torch.cuda"), "_queued_calls", None)
        if isinstance(queued, list):
            queued[:] = [call for call in queued if call[0] != self._begin]

    def begin_history(self) -> None:
        """Record each allocation's stack from now on."""
        self._history = True
        contained(self._record_history)

    def save(self) -> None:
        """What the allocator holds now, for `traceops memory`."""
        if not self._off:
            contained(self._save, SNAPSHOT)

    def save_beside_others(self) -> None:
        """The same where memory ran out on another rank that this one can see, to be compared with it."""
        if self._saved == 0 and contained(lambda: any(self._folder.parent.glob(f"rank_*/{RAN_OUT}"))):
            self.save()

    def held(self) -> dict[str, int] | None:
        """Bytes on GPUs by what they are: `allocated`, and `stored_bytes`. None where none is in use."""
        return None if self._off else contained(_held)

    def _begin(self) -> None:
        contained(self._begun)

    def _begun(self) -> None:
        if self._off or os.getpid() != self._pid:
            return
        torch: Any = sys.modules["torch"]
        if (attach := getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)) is not None:
            attach(self._ran_out)
        if self._history:
            self._record_history()

    def _record_history(self) -> None:
        torch: Any = sys.modules["torch"]
        if not torch.cuda.is_initialized() and not hasattr(torch.cuda._tls, "is_initializing"):
            return
        on = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if on is None or not on():  # one that the program asked for serves as well
            torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=HISTORY)

    def _ran_out(self, device: int, asked: int, total: int, free: int) -> None:
        """Torch is about to raise OutOfMemoryError. total: of the device, or what the process is allowed of it."""
        if not self._off and os.getpid() == self._pid and self._saved < _MOST_SAVED:
            self._saved += 1
            contained(self._write_report, device, asked, total, free)

    def _write_report(self, device: int, asked: int, total: int, free: int) -> None:
        torch: Any = sys.modules["torch"]
        stats = torch._C._cuda_memoryStats(device)
        told = {
            "step": self._steps(), "device": device, "asked_bytes": asked, "total_bytes": total, "free_bytes": free,
            "allocated_bytes": _current(stats, "allocated_bytes"),
            "reserved_bytes": _current(stats, "reserved_bytes"),
            "retries": int(stats.get("num_alloc_retries", 0)),
            "history": bool(self._history), "held": contained(stored_bytes, "cuda"),
        }  # fmt: skip
        write_whole(self._folder / RAN_OUT, (json.dumps(told) + "\n").encode())
        self._save(OUT_OF_MEMORY)

    def _save(self, name: str) -> None:
        torch: Any = sys.modules["torch"]
        if not torch.cuda.is_initialized():
            return
        content = pickle.dumps(torch.cuda.memory._snapshot(), protocol=4)
        if len(content) <= _MOST_BYTES:
            write_whole(self._folder / name, content)


def _held() -> dict[str, int] | None:
    if (torch := sys.modules.get("torch")) is None or not torch.cuda.is_initialized():
        return None
    return {"allocated": int(torch.cuda.memory_allocated()), **stored_bytes("cuda")}


def stored_bytes(device: str) -> dict[str, int]:
    """Bytes on devices of this type that parameters, their gradients and the state of optimizers take. The objects are
    looked for among all of Python's: nobody has to tell of a model or an optimizer, and nothing is recorded before. A
    storage counts once, under the first of these names."""
    torch: Any = sys.modules["torch"]
    parameter, optimizer = torch.nn.Parameter, torch.optim.Optimizer
    found: dict[str, list[Any]] = {name: [] for name in HELD}
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, parameter):
            found["parameters"].append(thing)
        elif issubclass(kind, optimizer):
            contained(_of_optimizer, thing, found)
    for one in found["parameters"]:
        if not one.is_leaf:
            continue
        if (gradient := contained(getattr, one, "grad")) is not None:
            found["gradients"].append(gradient)
    seen: set[int] = set()
    return {name: sum(contained(_own_bytes, one, device, seen) or 0 for one in own) for name, own in found.items()}


def _of_optimizer(optimizer: Any, found: dict[str, list[Any]]) -> None:
    for group in list(optimizer.param_groups):
        found["parameters"] += group["params"]
    for state in list(optimizer.state.values()):
        found["optimizer_state"] += [one for one in state.values() if hasattr(one, "untyped_storage")]


def _own_bytes(tensor: Any, device: str, seen: set[int]) -> int:
    """Bytes of the storages behind a tensor that are not in `seen`, which gets them."""
    size = 0
    for one in _plain(tensor):
        if one.device.type == device:
            storage = one.untyped_storage()
            at = storage.data_ptr()
            if at and at not in seen:
                seen.add(at)
                size += storage.nbytes()
    return size


def _plain(tensor: Any) -> Iterator[Any]:
    """The tensors that one with parts of its own (a DTensor, a quantised one) is made of."""
    if (flatten := getattr(tensor, "__tensor_flatten__", None)) is None:
        yield tensor
        return
    for name in flatten()[0]:
        yield from _plain(getattr(tensor, name))


def _current(stats: Any, name: str) -> int:
    return int(stats[name]["all"]["current"])
