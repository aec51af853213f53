"""Reads errors that the NVIDIA driver wrote into the kernel's log: Xids, and GPUs that fell off the bus."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from traceops.fabric.bus_ids import normal_bus_id


@dataclass(frozen=True)
class Xid:
    """One kind of error of one GPU. bus_id: as nvidia-smi counts. text: of the last line. count: how many lines."""

    bus_id: str | None
    code: int
    text: str
    count: int


_SHOWN = 200
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),? ?(.*)")


_FALLEN = re.compile(r"(?:NVRM: .*GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]+).*|NVRM:\s+)fallen off the bus")


def parse_xids(log: str) -> tuple[Xid, ...]:
    """The Xids of a kernel log by GPU and code, in the order they first came; 79 also for GPUs said to be lost."""
    counts: Counter[tuple[str | None, int]] = Counter()
    last: dict[tuple[str | None, int], str] = {}
    for line in log.splitlines():
        match = _XID.search(line)
        if match:
            key = (normal_bus_id(match[1]), int(match[2]))
            counts[key] += 1
            last[key] = match[3].strip()[:_SHOWN]
    fallen = _FALLEN.search(log)
    if fallen and not any(code == 79 for _, code in counts):
        key = (normal_bus_id((fallen[1] or "").rstrip(".")), 79)
        counts[key], last[key] = 1, "fallen off the bus"
    return tuple(Xid(bus_id, code, last[bus_id, code], count) for (bus_id, code), count in counts.items())
