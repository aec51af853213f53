"""What torch's flight recorder knows of the collectives that gloo ran: in a trace, its events name no group."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from traceops.core.rank_files import COLLECTIVES

_TAIL_BYTES = 4096
_BACKEND = "gloo"


def recorded_collectives() -> list[list[Any]]:
    """The latest collectives of this rank, as `core.trace_keys` says; none where nothing records them.

    torch records them where TORCH_FR_BUFFER_SIZE is set, as `traceops run` does.
    """
    dist = sys.modules.get("torch.distributed")
    native = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(native, "_dump_fr_trace_json", None)
    if dist is None or dump is None or not dist.is_available() or not dist.is_initialized():
        return []
    if _BACKEND not in str(dist.get_backend_config()):
        return []
    try:
        entries = json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries", [])
        return [_row(entry) for entry in entries if entry["profiling_name"].startswith(f"{_BACKEND}:")]
    except (KeyError, TypeError, ValueError, RuntimeError):  # another torch's record: the trace holds all else
        return []


def _row(entry: dict[str, Any]) -> list[Any]:
    group, description = entry["process_group"]
    return [
        entry["profiling_name"],
        group,
        description,
        entry["collective_seq_id"],
        _elements(entry["input_sizes"]),
        _elements(entry["output_sizes"]),
        next(iter(entry["input_dtypes"]), None),
        entry["time_created_ns"],
    ]


def _elements(sizes: list[list[int]]) -> int:
    return sum(math.prod(size) for size in sizes)


def add_to_trace(plain: Path, rows: list[list[Any]]) -> None:
    """Add them to a trace's metadata, behind its events. Raises OSError where the disk is full."""
    if not rows:
        return
    with plain.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        file.seek(max(0, size - _TAIL_BYTES) + tail.rindex(b"}"))
        file.write(f',\n"{COLLECTIVES}": {json.dumps(rows)}\n}}\n'.encode())
        file.truncate()
