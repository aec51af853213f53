"""What surrounds a script's training while its memory is estimated: other ranks, files, the network, compilers.

All of it is left out or faked; torch's fake process group stands behind the calls of torch.distributed.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import data
from torch.utils.data import dataloader

from traceops.memory.fake_tensors import with_values
from traceops.memory.model import Note, ScriptRequest, environment

# So that libraries do not try the network, nor hosts that log.
QUIET = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled", "WANDB_DISABLED": "true",
    "COMET_MODE": "DISABLED", "MLFLOW_TRACKING_URI": "", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip


class NoNetworkError(OSError):
    """A connection to another machine was asked for."""


class Surroundings(ExitStack):
    """While it is entered, nothing is compiled, saved or fetched, and data is loaded in this process; `notes` says."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Note] = []

    def note(self, what: Note) -> None:
        """Remember it once."""
        if what not in self.notes:
            self.notes.append(what)

    def __enter__(self) -> Surroundings:
        super().__enter__()
        register: Callable[..., Any] = DistributedDataParallel.register_comm_hook
        load: Callable[..., None] = data.DataLoader.__init__
        connect: Callable[..., Any] = socket.socket.connect

        def compiled(model: Any = None, **_: Any) -> Any:
            self.note("compiled")
            return model if model is not None else lambda function: function

        def hooked(model: Any, state: Any, hook: Any) -> Any:
            if getattr(model, "_comm_hooks", None):  # ours, which answers for the other ranks
                return self.note("hooked")
            return register(model, state, hook)

        def loaded(loader: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("num_workers"):
                self.note("workers")
                kwargs.update(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)
                kwargs["multiprocessing_context"] = None
            kwargs["pin_memory"] = False
            load(loader, *args, **kwargs)

        def connected(one: socket.socket, address: Any) -> Any:
            if one.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "localhost", "::1"):
                return connect(one, address)
            self.note("network")
            raise NoNetworkError(f"no network while memory is estimated: {address[0]}")

        def put(owner: Any, name: str, value: Any) -> None:
            self.enter_context(patch.object(owner, name, value))

        put(torch, "compile", compiled)
        put(nn.Module, "compile", lambda *_, **__: self.note("compiled"))
        put(torch, "save", lambda *_, **__: self.note("saved"))
        put(DistributedDataParallel, "register_comm_hook", hooked)
        put(data.DataLoader, "__init__", loaded)
        put(dataloader._BaseDataLoaderIter, "__next__", with_values(dataloader._BaseDataLoaderIter.__next__))
        put(socket.socket, "connect", connected)
        self.enter_context(patch.dict(os.environ, QUIET))
        return self


# Threads that a script starts work on fake tensors too: torch's modes are those of one thread.


@contextmanager
def followed_threads(
    modes: Callable[[], AbstractContextManager[Any]], failed: Callable[[BaseException], None]
) -> Iterator[None]:
    """While it is open, each thread that is started runs in `modes`; failed: told what ended one."""
    inside: Callable[[threading.Thread], None] = vars(threading.Thread)["_bootstrap_inner"]
    usual = threading.excepthook

    def followed(thread: threading.Thread) -> None:
        with modes():
            inside(thread)

    def hook(said: threading.ExceptHookArgs) -> None:
        if said.exc_value is not None:
            failed(said.exc_value)
        usual(said)

    with patch.object(threading.Thread, "_bootstrap_inner", followed), patch.object(threading, "excepthook", hook):
        yield


@contextmanager
def faked_ranks(request: ScriptRequest) -> Iterator[None]:
    """While it is open, process groups are fake and what ranks tell each other as objects is what this rank said."""
    before_init, before_group = distributed_c10d.init_process_group, distributed_c10d.new_group

    def init(backend: Any = None, *_: Any, **kwargs: Any) -> None:
        before_init("fake", store=FakeStore(), rank=request.rank, world_size=request.world_size)

    def new_group(ranks: Any = None, *_: Any, **kwargs: Any) -> Any:
        return before_group(ranks, group_desc=kwargs.get("group_desc"))

    def all_gather_object(found: list[Any], mine: Any, group: Any = None) -> None:
        found[:] = [mine] * len(found)

    def gather_object(mine: Any, found: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if found is not None:
            found[:] = [mine] * len(found)

    def scatter_object_list(output: list[Any], given: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if given:
            output[0] = given[request.rank % len(given)]

    def spawn(function: Callable[..., Any], args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        function(request.rank % max(1, nprocs), *args)

    everywhere: dict[str, Callable[..., Any]] = {
        "init_process_group": init,
        "new_group": new_group,
        "all_gather_object": all_gather_object,
        "gather_object": gather_object,
        "scatter_object_list": scatter_object_list,
        "broadcast_object_list": _nothing,
        "barrier": _nothing,
        "monitored_barrier": _nothing,
        "is_nccl_available": lambda: True,
    }
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment(request)))
        for owner in (dist, distributed_c10d, device_mesh):
            for name, value in everywhere.items():
                if hasattr(owner, name):
                    stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(patch.object(multiprocessing, "spawn", spawn))
        stack.enter_context(patch.object(dist, "get_backend", lambda *_, **__: "nccl"))
        yield


def _nothing(*_: Any, **__: Any) -> None:
    return None
