"""torch.distributed for one rank without the others: torch's fake process group behind the calls of a script."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import multiprocessing
from torch.distributed import device_mesh, distributed_c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from traceops.memory.script_model import ScriptRequest, environment


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
