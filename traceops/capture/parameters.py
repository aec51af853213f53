"""What the collectives of DDP and FSDP carry: parameters by name and size, told when a rank hangs.

Nothing is recorded while the program trains: the objects are looked for when the launcher asks, in the thread that
answers. What would wait for a lock of torch's is left out: DDP holds that of its buckets while it waits for other
ranks, so which parameters share a bucket is found from their sizes, by whoever reads this.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

_DDP = ("torch.nn.parallel.distributed", "DistributedDataParallel")
_FLAT = ("torch.distributed.fsdp._flat_param", "FlatParamHandle")  # FSDP1, torch 2.2 and later
_SHARDED = (  # FSDP2, torch 2.6 and later, and before
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup"),
    ("torch.distributed._composable.fsdp._fsdp_param_group", "FSDPParamGroup"),
)
_MOST_NAMES = 4  # of each bucket
_MOST = 10_000  # parameters, and rows


def carried(group_names: dict[Any, str]) -> list[dict[str, Any]]:
    """A row for each model under DDP and each shard group of FSDP of this process.

    {"strategy": "ddp", "group": its process group's name or null, "cap_bytes": of a bucket, "parameters": [[name,
    elements, bytes], …] in the model's order}; or {"strategy": "fsdp", "group", "elements": of the whole, as ranks
    reduce it, "shard": of one rank's part, both padded, "names": the first four, "count": how many parameters}.
    group_names: of the process groups that this rank knows.
    """
    readers = {
        kind: read
        for (module, name), read in ((_DDP, _trained), (_FLAT, _flat), *((where, _shards) for where in _SHARDED))
        if (kind := getattr(sys.modules.get(module), name, None)) is not None
    }
    rows: list[dict[str, Any]] = []
    for found in gc.get_objects() if readers else ():
        read = readers.get(type(found))
        if read is not None and len(rows) < _MOST:
            try:
                rows += read(found, group_names)
            except Exception:  # one that is being made or taken down, or a torch that has it otherwise
                continue
    return rows


def _trained(model: Any, groups: dict[Any, str]) -> Iterator[dict[str, Any]]:
    left_out = set(getattr(model, "parameters_to_ignore", ()))
    told = [
        (name, parameter.numel(), parameter.numel() * parameter.element_size())
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in left_out
    ]
    yield {
        "strategy": "ddp",
        "group": groups.get(model.process_group),
        "cap_bytes": int(model.bucket_bytes_cap),
        "parameters": told[:_MOST],
    }


def _flat(handle: Any, groups: dict[Any, str]) -> Iterator[dict[str, Any]]:
    flat = handle.flat_param
    shard = int(flat._sharded_size.numel())
    yield _row(groups.get(handle.process_group), shard * handle.world_size, shard, flat._fqns)


def _shards(group: Any, groups: dict[Any, str]) -> Iterator[dict[str, Any]]:
    shard = sum(int(parameter.padded_sharded_param_size.numel()) for parameter in group.fsdp_params)
    names = [parameter._param_fqn or parameter._module_info.param_name for parameter in group.fsdp_params]
    world = group._all_gather_process_group
    yield _row(groups.get(world), shard * world.size(), shard, names)


def _row(group: str | None, elements: int, shard: int | None, names: Any) -> dict[str, Any]:
    return {
        "strategy": "fsdp",
        "group": group,
        "elements": elements,
        "shard": shard,
        "names": list(names[:_MOST_NAMES]),
        "count": len(names),
    }
