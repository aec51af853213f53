"""What a collective achieved, and what the link between its ranks should give."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Literal

import numpy as np
from msgspec import Struct

from traceops.across.match import Collective, MatchedCollectives
from traceops.core.arrays import Int
from traceops.core.units import stored
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import LOCAL_HOST, same_host, short_host
from traceops.fabric.nccl import Communicator, GraphBandwidth
from traceops.measure.exchanges import message_bytes

# Bus bandwidth that NCCL reaches inside one host for large messages, GB/s: a bit under the link's one-way
# rate of NVLink 2, 3, 4 and 5 (150, 300, 450 and 900 GB/s). [NVIDIA data sheets; nccl-tests on such hosts]
LINKS: tuple[tuple[str, str, float], ...] = (
    (r"G?B[23]00", "NVLink 5", 650.0),
    (r"H800(?!.*(PCIe|NVL))", "NVLink 4, cut down", 160.0),
    (r"((?<!G)H200|H100)(?!.*(PCIe|NVL))", "NVLink 4", 350.0),
    (r"A800.*SXM", "NVLink 3, cut down", 160.0),
    (r"A100.*SXM", "NVLink 3", 230.0),
    (r"V100.*SXM", "NVLink 2", 120.0),
)
LARGE_BYTES = 8_000_000  # from here bandwidth, not latency, sets the time
_MESH = re.compile(r"V100.*SXM2")  # no switch: two GPUs share one link, two, or none
_MESH_SIZES = (4, 8)  # of groups that have all links of a mesh for themselves, or half of it
_PART = re.compile(r"\bMIG\b")  # of a GPU: it has no NVLink
GPUS_A_HOST = 8  # a job no larger than this whose traces name no hosts is taken to run on one
_LATENCY_NS = 20_000.0

_RING = 4  # NCCL's number of the pattern
_FAST_PATHS = ("NVL", "NVB", "C2C")
# A machine that gave less than this share of what its GPUs' link gives elsewhere was broken when it was measured.
_TRUSTED_SHARE = 0.3


class LinkReference(Struct, frozen=True):
    """What a link should give, GB/s of bus bandwidth, and where that is known from. link: what gives it. source:
    ``doctor``, ``graph`` (NCCL's own search), ``table`` (the GPU's name), ``siblings`` (the best group of the same
    kind)."""

    link: str
    busbw_gbs: float
    source: Literal["doctor", "graph", "table", "siblings"] = "table"


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
    group: Sequence[int],
    device: str | None,
    hosts: Mapping[int, str | None],
    world: int,
    fabric: Fabric | None = None,
    devices: int | None = None,
) -> LinkReference | None:
    """What the link between these ranks should give; None where nothing tells. In order: measured on this host by the
    doctor, NCCL's own expectation in its log, the GPU's name. Between hosts only NCCL's expectation counts. devices:
    GPUs that each process of the job sees, None where not known."""
    if len(group) < 2:
        return None
    known = _hosts_of(group, hosts, devices)
    fit_one_host = world <= (min(devices, GPUS_A_HOST) if devices and devices > 1 else GPUS_A_HOST)
    if len(known) == 1 and _is_of_more_hosts(fabric, world, max(len(set(hosts.values())), 1)):
        fit_one_host, known = False, {None}  # names that do not tell the hosts apart, or none at all
    one_host = len(known) == 1 and (None not in known or fit_one_host)
    listed = link_by_name(device, len(group)) if one_host else None
    if fabric is None:
        return listed
    if one_host:
        measured = _measured(fabric, next(iter(known)), device, len(group))
        if measured is not None and (listed is None or measured.busbw_gbs >= _TRUSTED_SHARE * listed.busbw_gbs):
            return measured
    if one_host or None not in known:
        return _expected(fabric, len(group), one_host, listed, len(group) == world) or listed
    return listed


def _hosts_of(group: Sequence[int], hosts: Mapping[int, str | None], devices: int | None) -> set[str | None]:
    """The names of the ranks' hosts; None for those without, and for a name that several hosts must bear."""
    ranks = Counter(hosts.values())
    most = max(GPUS_A_HOST, devices or 0)
    names = {hosts.get(rank) for rank in group}
    return {None if short_host(name) in ("", LOCAL_HOST) or ranks[name] > most else name for name in names}


def _is_of_more_hosts(fabric: Fabric | None, world: int, names: int) -> bool:
    """Whether NCCL's log shows the whole job on more hosts than it has names for: ranks on equal PCI devices."""
    for communicator in fabric.log.communicators if fabric is not None and fabric.log is not None else ():
        if communicator.size == world:
            used = Counter(place.bus_id for place in communicator.places.values() if place.bus_id is not None)
            return max(used.values(), default=0) > names
    return False


def link_by_name(device: str | None, size: int = 2) -> LinkReference | None:
    """What NVLink gives to `size` GPUs of this name inside one host; None for those without, or not known."""
    if device is None or _PART.search(device) or (_MESH.search(device) and size not in _MESH_SIZES):
        return None
    return next((LinkReference(link, gbs) for name, link, gbs in LINKS if re.search(name, device)), None)


def _measured(fabric: Fabric, host: str | None, device: str | None, size: int) -> LinkReference | None:
    """The best large all-reduce that the doctor measured on this host, if its GPUs are still the same. Among at least
    as many GPUs as the group has: two may have a link that four do not. Of several states of the machine the latest
    counts."""
    found: list[tuple[float, float, str]] = []
    for reference in fabric.references:
        if (host is not None and not same_host(reference.host, host)) or reference.gpu != device:
            continue
        rows = [
            row.busbw_gbs
            for row in reference.measured
            if row.op == "all_reduce" and row.bytes >= LARGE_BYTES and len(row.gpus) >= size
            if device is None or row.backend != "gloo"
        ]
        if rows:
            found.append((reference.measured_at, max(rows), reference.host))
    if not found:
        return None
    _, gbs, name = max(found)
    return LinkReference(f"traceops doctor on {name}", gbs, "doctor")


def _expected(
    fabric: Fabric, size: int, one_host: bool, listed: LinkReference | None, whole: bool
) -> LinkReference | None:
    """The ring that NCCL found for a communicator of this size, GB/s one way, which is its bus bandwidth. Rings over
    host memory between GPUs that have NVLink are what is wrong, not what to expect. Between hosts, groups that leave by
    one network device share what each of them expects of it. whole: the group is the job, of which a dump of the graph
    tells where the log does not."""
    found = _graphs(fabric, size, one_host)
    if not found and whole:
        found = [(graph, 1) for graph in fabric.graphs]
    best = None
    for graph, sharing in found:
        if graph.pattern != _RING or (listed is not None and graph.intra_type not in _FAST_PATHS):
            continue
        gbs = graph.intra_gbs if one_host else min(graph.intra_gbs, graph.inter_gbs / sharing)
        if gbs > 0 and (best is None or gbs > best.busbw_gbs):
            types = (graph.intra_type, None if one_host else graph.inter_type)
            best = LinkReference(f"NCCL's ring over {'/'.join(filter(None, types))}", gbs, "graph")
    return best


def _graphs(fabric: Fabric, size: int, one_host: bool) -> list[tuple[GraphBandwidth, int]]:
    """Those of the log's communicators of this size, and how many groups share a network device of each."""
    alike = [
        communicator
        for communicator in (fabric.log.communicators if fabric.log is not None else ())
        if communicator.size == size
        and (len({place.host for place in communicator.places.values()}) > 1) is not one_host
    ]
    users: dict[tuple[str | None, int], set[Hashable]] = defaultdict(set)
    for communicator in alike:
        gpus = frozenset((place.host, place.bus_id or place.rank) for place in communicator.places.values())
        for device in _network_devices(communicator):
            users[device].add(gpus)
    found = []
    for communicator in alike:
        sharing = max((len(users[device]) for device in _network_devices(communicator)), default=1)
        found += [(graph, sharing) for graph in communicator.graphs]
    return found


def _network_devices(communicator: Communicator) -> set[tuple[str | None, int]]:
    """By host and NCCL's number: what the communicator's ranks send over, or receive where only that is told."""
    return {
        (place.host, connection.device)
        for connection in communicator.connections
        if connection.transport == "NET"
        and connection.device is not None
        and (place := communicator.places.get(connection.at_device)) is not None
    }


def reference_transfer_ns(collective: Collective, reference: LinkReference | None) -> float:
    """How long a collective would take at the reference, ns; as measured where that is not known."""
    size = collective_bytes(collective)
    if reference is None or size is None:
        return float(collective.transfer_ns)
    return _LATENCY_NS + size * bus_factor(collective.op, len(collective.group)) / reference.busbw_gbs


def reference_transfers(
    matching: MatchedCollectives, order: Sequence[int], link_of: Callable[[tuple[int, ...]], LinkReference | None]
) -> Int | None:
    """Transfer of each collective of `order` at its group's link, ns; None where no link is known."""
    links = {group: link_of(group) for group in {collective.group for collective in matching.collectives}}
    if not any(links.values()):
        return None
    chosen = (matching.collectives[number] for number in order)
    return np.array([reference_transfer_ns(c, links[c.group]) for c in chosen], dtype=np.int64)


def overall_busbw(collectives: Sequence[Collective]) -> float | None:
    """Bytes on the bus over time of transfer, GB/s, of all whose size is known."""
    known = [(c, size) for c in collectives if c.transfer_ns > 0 and (size := collective_bytes(c))]
    spent = sum(c.transfer_ns for c, _ in known)
    moved = sum(size * bus_factor(c.op, len(c.group)) for c, size in known)
    return stored(moved / spent) if spent else None
