"""Reads what a rank kept of the moment in which its GPU's memory ran out (`core/rank_files.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from traceops.core.errors import InputError
from traceops.core.files import read_regular
from traceops.core.rank_files import HELD, OUT_OF_MEMORY, RAN_OUT
from traceops.traces.memory_snapshot import DeviceSnapshot, read_snapshot

_MOST = 1 << 62


class RanOut(Struct, frozen=True):
    """Bytes; total is of the device, or what the process allowed itself of it. held: by what it was, {} if not known.
    snapshot: of the device at that moment, None where none was kept or it cannot be read."""

    rank: int
    step: int
    device: int
    asked: int
    total: int
    free: int
    allocated: int
    reserved: int
    retries: int
    held: Mapping[str, int]
    snapshot: DeviceSnapshot | None = None

    @property
    def limited(self) -> bool:
        """Whether the process may not have the whole device (set_per_process_memory_fraction)."""
        return self.free + self.reserved > self.total

    @property
    def left(self) -> int:
        """What torch could still have had of the device."""
        return min(self.free, max(self.total - self.reserved, 0))

    @property
    def unused(self) -> int:
        """What torch had reserved and no tensor used."""
        return max(self.reserved - self.allocated, 0)

    @property
    def rest(self) -> int:
        """What tensors held that were no parameters, gradients or states: activations, temporaries, inputs."""
        return max(self.allocated - sum(self.held.values()), 0)


def read_ran_out(folder: Path, rank: int) -> RanOut | None:
    """Of the run in this folder; None where that rank kept nothing, or nothing that can be believed."""
    own = folder / f"rank_{rank}"
    if not (own / RAN_OUT).is_file():
        return None
    try:
        told: dict[str, Any] = json.loads(read_regular(own / RAN_OUT))
        numbers = {name: _whole(told[f"{name}_bytes"]) for name in ("asked", "total", "free", "allocated", "reserved")}
        held = told.get("held") or {}
        found = RanOut(
            rank=rank,
            step=_whole(told["step"]),
            device=_whole(told["device"]),
            retries=_whole(told["retries"]),
            held={name: _whole(held[name]) for name in HELD} if held else {},
            snapshot=_snapshot(own / OUT_OF_MEMORY, _whole(told["device"])),
            **numbers,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return found


def ranks_that_ran_out(folder: Path) -> list[RanOut]:
    """All of them, by rank."""
    names = (path.parent.name.removeprefix("rank_") for path in folder.glob(f"rank_*/{RAN_OUT}"))
    found = (read_ran_out(folder, int(name)) for name in names if name.isdecimal())
    return sorted((one for one in found if one is not None), key=lambda one: one.rank)


def _snapshot(path: Path, device: int) -> DeviceSnapshot | None:
    try:
        return next((one for one in read_snapshot(path) if one.device == device), None)
    except InputError:
        return None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        raise ValueError
    return value
