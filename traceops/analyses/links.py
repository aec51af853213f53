"""What a collective achieved, and what the link between its ranks should give."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from traceops.align.match import Collective, Matching
from traceops.analyses.message_size import message_bytes
from traceops.model import Int

# Bus bandwidth that NCCL reaches inside one host for large messages, GB/s: a bit under the link's one-way
# rate of NVLink 2, 3, 4 and 5 (150, 300, 450 and 900 GB/s). [NVIDIA data sheets; nccl-tests on such hosts]
LINKS: tuple[tuple[str, str, float], ...] = (
    (r"G?B[23]00", "NVLink 5", 650.0),
    (r"H800", "NVLink 4, cut down", 160.0),
    (r"(?<!G)H200|H100(?!.*(PCIe|NVL))", "NVLink 4", 350.0),
    (r"A800", "NVLink 3, cut down", 160.0),
    (r"A100.*SXM", "NVLink 3", 230.0),
    (r"V100.*SXM", "NVLink 2", 120.0),
)
LARGE_BYTES = 8_000_000  # from here bandwidth, not latency, sets the time
GPUS_A_HOST = 8  # a job no larger than this whose traces name no hosts is taken to run on one
_LATENCY_NS = 20_000.0


@dataclass(frozen=True)
class Reference:
    """What a link should give, GB/s of bus bandwidth, and where that is known from."""

    link: str
    busbw_gbs: float


def collective_bytes(collective: Collective) -> int | None:
    """Bytes as nccl-tests counts them: the larger of input and output; None where size or type is not known."""
    return message_bytes(collective.elements, collective.dtype)


@cache
def bus_factor(op: str, n: int) -> float:
    """Bus over algorithm bandwidth for a group of `n` [nccl-tests, doc/PERFORMANCE.md]."""
    name = op.replace("_", "")
    if n < 2:
        return 1.0
    if "allreduce" in name:
        return 2.0 * (n - 1) / n
    if any(kind in name for kind in ("gather", "scatter", "alltoall")):
        return (n - 1) / n
    return 1.0


def busbw_gbs(collective: Collective) -> float | None:
    """Bus bandwidth, GB/s (1e9 bytes); bytes per ns are GB/s."""
    size = collective_bytes(collective)
    if not size or collective.transfer_ns <= 0:
        return None
    return size / collective.transfer_ns * bus_factor(collective.op, len(collective.group))


def reference_of(
    group: Sequence[int], device: str | None, hosts: Mapping[int, str | None], world: int
) -> Reference | None:
    """What the link between these ranks should give: by the GPU's name inside one host, else not known."""
    known = {hosts.get(rank) for rank in group}
    one_host = len(known) == 1 and (None not in known or world <= GPUS_A_HOST)
    if device is None or not one_host:
        return None
    return next((Reference(link, gbs) for name, link, gbs in LINKS if re.search(name, device)), None)


def reference_transfer_ns(collective: Collective, reference: Reference | None) -> float:
    """How long a collective would take at the reference, ns; as measured where that is not known."""
    size = collective_bytes(collective)
    if reference is None or size is None:
        return float(collective.transfer_ns)
    return _LATENCY_NS + size * bus_factor(collective.op, len(collective.group)) / reference.busbw_gbs


def reference_transfers(
    matching: Matching, order: Sequence[int], device: str | None, hosts: Mapping[int, str | None], world: int
) -> Int | None:
    """Transfer of each collective of `order` at its link's reference, ns; None where no link is known."""
    groups = {collective.group for collective in matching.collectives}
    links = {group: reference_of(group, device, hosts, world) for group in groups}
    if not any(links.values()):
        return None
    chosen = (matching.collectives[number] for number in order)
    return np.array([reference_transfer_ns(c, links[c.group]) for c in chosen], dtype=np.int64)
