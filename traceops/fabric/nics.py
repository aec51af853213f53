"""Reads properties of a network device from its name and paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from traceops.fabric.model import Gpu, Nic, Path, PathKind

NicKind = Literal["IB", "RoCE", "EFA", "Ethernet", "other"]

# First letters of a device's name. ``mlx5_0`` may be InfiniBand or RoCE: its name does not tell.
_KINDS: tuple[tuple[tuple[str, ...], NicKind], ...] = (
    (("mlx5_bond", "roce", "bnxt_re", "irdma", "erdma", "mana_"), "RoCE"),  # ports of InfiniBand are not bonded so
    (("efa", "rdmap"), "EFA"),
    (("ib", "qib", "opa"), "IB"),
    (("eth", "en", "em", "bond"), "Ethernet"),
    (("hfi", "cxi", "hsn"), "other"),
)
_RDMA_OF_EITHER_KIND = "mlx"
# How near two devices are that share a NUMA node, the nearest first.
_WITHIN_A_NODE: tuple[PathKind, ...] = ("PIX", "PXB", "PHB", "NODE")


def nic_kind(name: str | None) -> NicKind | None:
    """What a device of this name is; None where the name does not tell."""
    lower = (name or "").lower()
    return next((kind for starts, kind in _KINDS if lower.startswith(starts)), None)


def is_bonded(name: str | None) -> bool:
    """Whether the device joins several ports (``mlx5_bond_0``, ``bond0``)."""
    return "bond" in (name or "").lower()


def is_rdma(nic: Nic) -> bool:
    """Whether NCCL can go past the kernel on it: InfiniBand, RoCE or EFA, also where it is not known which."""
    if nic.kind is not None:
        return nic.kind in ("IB", "RoCE", "EFA")
    return (nic.name or "").lower().startswith(_RDMA_OF_EITHER_KIND)


def with_numa(nics: Sequence[Nic], gpus: Iterable[Gpu], paths: Mapping[tuple[str, str], Path]) -> tuple[Nic, ...]:
    """The NICs with the NUMA nodes that follow from their paths, where no source says them.

    A NIC may reach a GPU, or a NIC whose node is known, without crossing NUMA nodes. Then it is on that device's
    node. The nearest device decides; where two equally near ones differ, nothing is known. SYS to every GPU says
    that a NIC is on another node, not on which. Paths to Ethernet devices without a bus id are NCCL's assumption: it
    hangs them on the first CPU.
    """
    placeable = [nic.label for nic in nics if nic.kind != "Ethernet" or nic.bus_id is not None]
    nodes = {gpu.label: gpu.numa for gpu in gpus if gpu.numa is not None}
    nodes.update({nic.label: nic.numa for nic in nics if nic.numa is not None})
    known = -1
    while known < len(nodes):  # each round may place NICs that only reach a NIC placed in the last one
        known = len(nodes)
        found = {label: _node(label, nodes, paths) for label in placeable if label not in nodes}
        nodes.update({label: node for label, node in found.items() if node is not None})
    return tuple(replace(nic, numa=nodes.get(nic.label)) for nic in nics)


def _node(label: str, nodes: Mapping[str, int], paths: Mapping[tuple[str, str], Path]) -> int | None:
    for kind in _WITHIN_A_NODE:
        reached = {
            node
            for other, node in nodes.items()
            if (path := paths.get((label, other)) or paths.get((other, label))) and path.kind == kind
        }
        if reached:
            return reached.pop() if len(reached) == 1 else None
    return None
