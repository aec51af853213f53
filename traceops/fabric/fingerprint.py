"""A short name for a machine's GPUs and how they are joined, so that numbers measured on it go to its like only."""

from __future__ import annotations

import hashlib
import json
from itertools import combinations

from traceops.fabric.model import Gpu, Machine, Path
from traceops.fabric.nics import is_rdma

_PCIE_LIKE = {"PHB": "NODE"}  # NCCL calls both PHB, nvidia-smi tells them apart


def fingerprint(machine: Machine) -> str:
    """16 hex digits of the GPUs' names, the kind and count of each pair's path, and the NICs.

    The same whatever the host is called and in whatever order files told it. Not part of it: what may differ without
    another machine (PCIe width, NUMA nodes, addresses), Ethernet ports, which a container may or may not see, and
    where GPU indices begin. What a source does not tell is part of it: ask for that of all sources joined.
    """
    gpus = sorted(machine.gpus, key=lambda gpu: gpu.index)
    nics = sorted(
        ((nic.name or nic.label).lower(), nic.up is False)
        for nic in machine.nics
        if is_rdma(nic) or nic.kind == "other"
    )
    told = {
        "gpus": [_name(gpu) for gpu in gpus],
        "paths": [_path(machine.path(one.label, other.label)) for one, other in combinations(gpus, 2)],
        "nics": nics,
    }
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _name(gpu: Gpu) -> str | None:
    if gpu.name is None:
        return None
    return " ".join(gpu.name.lower().split()).removeprefix("nvidia ")


def _path(path: Path | None) -> tuple[str, int | None] | None:
    return None if path is None else (_PCIE_LIKE.get(path.kind, path.kind), path.count)
