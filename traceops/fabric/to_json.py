"""The fabric's nouns as report.json and doctor.json hold them.

What is the same on many hosts is there once, so that no list grows with the ranks beyond a limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from msgspec import convert
from msgspec.structs import asdict, replace

from traceops.core.documents import file_problems
from traceops.fabric import json_types
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Machine, Quote, Reference
from traceops.fabric.nccl import Benchmark, Communicator, NcclLog, Network
from traceops.fabric.talks import is_inside, names_are_of_several

MOST_CONNECTIONS = 200  # a job of 1,024 ranks has 100,000 and more
# The first fields of a ConnectionJson, by which connections are alike.
_Kind = tuple[str | None, str | None, bool | None, str, str, bool, int | None]


def alike_machines(machines: Iterable[Machine]) -> list[tuple[Machine, tuple[str, ...]]]:
    """Each make of machine once, with the names of the other hosts that have the same devices and paths."""
    found: dict[Hashable, tuple[Machine, list[str]]] = {}
    for machine in machines:
        key = (
            tuple(replace(gpu, uuid=None, bus_id=None) for gpu in machine.gpus),
            tuple(replace(nic, bus_id=None) for nic in machine.nics),
            frozenset((devices, path.kind, path.count, path.gbs) for devices, path in machine.paths.items()),
        )
        if key not in found:
            found[key] = machine, []
        elif machine.host is not None:
            found[key][1].append(machine.host)
    return [(machine, tuple(hosts)) for machine, hosts in found.values()]


def alike_connections(communicators: Sequence[Communicator]) -> list[json_types.ConnectionJson]:
    """Connections counted by the hosts they join, transport and detail; hosts left out where there are too many. The
    most frequent first. quote: of the first in the log."""
    found = _counted(communicators, by_host=True)
    if len(found) > MOST_CONNECTIONS:
        found = _counted(communicators, by_host=False)
    return found[:MOST_CONNECTIONS]


def _counted(communicators: Sequence[Communicator], *, by_host: bool) -> list[json_types.ConnectionJson]:
    count: Counter[_Kind] = Counter()
    channels: Counter[_Kind] = Counter()
    first: dict[_Kind, Quote] = {}
    for communicator in communicators:
        hosts = {rank: place.host for rank, place in communicator.places.items()}
        of_several = names_are_of_several(communicator)
        for one in communicator.connections:
            ends = (hosts.get(one.source), hosts.get(one.destination)) if by_host else (None, None)
            places = communicator.places.get(one.source), communicator.places.get(one.destination)
            within = is_inside(*places, one, of_several)
            device = None if one.of_receiver else one.device  # the sender's, as the hosts' order has it
            kind = (*ends, within, one.transport, one.detail, one.gdr, device)
            count[kind] += 1
            channels[kind] += one.channels
            first.setdefault(kind, one.quote)
    return [
        json_types.ConnectionJson(*kind, count=pairs, channels=channels[kind], quote=first[kind])
        for kind, pairs in count.most_common()
    ]


MOST_MACHINES = 32  # different ones
MOST_ROWS = 200  # of settings, communicators, quotes
MOST_HOSTS = 2000
_MOST_MEASURED = 2000
T = TypeVar("T")


def fabric_json(fabric: Fabric) -> json_types.FabricJson:
    """What report.json says of a run's fabric."""
    machines = alike_machines(fabric.machines)
    return json_types.FabricJson(
        machines=tuple(
            json_types.MachineOfRunJson(**asdict(machine_json(machine)), alike=alike[:MOST_HOSTS])
            for machine, alike in machines[:MOST_MACHINES]
        ),
        machines_left_out=sum(1 + len(alike) for _, alike in machines[MOST_MACHINES:]),
        nccl=None if fabric.log is None else nccl_json(fabric.log),
        graphs=fabric.graphs[:MOST_ROWS],
        references=tuple(reference_json(reference) for reference in fabric.references[:MOST_MACHINES]),
        benchmarks=tuple(map(benchmark_json, fabric.benchmarks[:MOST_ROWS])),
        inspector=() if fabric.inspector is None else fabric.inspector.speeds[:MOST_ROWS],
        problems=file_problems(fabric.problems[:MOST_ROWS]),
    )


def benchmark_json(benchmark: Benchmark) -> json_types.BenchmarkJson:
    """One run of nccl-tests."""
    return json_types.BenchmarkJson(
        op=benchmark.op,
        ranks=len(benchmark.ranks),
        hosts=benchmark.hosts[:MOST_HOSTS],
        gpu=benchmark.gpu,
        wrong=benchmark.wrong,
        average_gbs=benchmark.average_gbs,
        sizes=benchmark.sizes,
    )


def machine_json(machine: Machine) -> json_types.MachineJson:
    """One machine: its devices, and its paths as a list. Serial numbers stay out."""
    return json_types.MachineJson(
        host=machine.host,
        gpus=tuple(convert(gpu, json_types.GpuJson, from_attributes=True) for gpu in machine.gpus),
        nics=machine.nics,
        paths=tuple(
            json_types.PathJson(devices, path.kind, path.count, path.gbs, path.back_share)
            for devices, path in machine.paths.items()
        ),
        sources=machine.sources,
    )


def reference_json(reference: Reference) -> Reference:
    """Bandwidths that a machine gave at its best, as many as the document takes."""
    return replace(reference, measured=reference.measured[:_MOST_MEASURED])


def nccl_json(log: NcclLog) -> json_types.NcclJson:
    """What NCCL said in its log."""
    return json_types.NcclJson(
        files=log.files[:MOST_ROWS],
        versions=log.nccl_versions,
        cuda_driver=log.cuda_driver,
        communicators=tuple(map(_communicator, log.communicators[:MOST_ROWS])),
        communicators_left_out=max(len(log.communicators) - MOST_ROWS, 0),
        connections=tuple(alike_connections(log.communicators)),
        networks=_networks(log.networks)[:MOST_ROWS],
        settings=_once(log.settings, lambda one: (one.name, one.value)),
        plugin_failures=_quotes(log.plugin_failures),
        tuners=log.tuners,
        choices=log.choices[:MOST_ROWS],
        warnings=_quotes(log.warnings),
    )


def _communicator(communicator: Communicator) -> json_types.CommunicatorJson:
    hosts = {place.host for place in communicator.places.values() if place.host is not None}
    channels = communicator.coll_channels, communicator.nvls_channels, communicator.p2p_channels
    return json_types.CommunicatorJson(
        id=communicator.id,
        size=communicator.size,
        hosts=len(hosts) or None,
        graphs=communicator.graphs,
        channels=json_types.ChannelsJson(*channels),
    )


def _networks(networks: Sequence[Network]) -> tuple[json_types.NetworkJson, ...]:
    merged: dict[Hashable, tuple[Network, set[str], int]] = {}
    for one in networks:
        key = (one.plugin, one.devices, tuple(sorted(one.gdr.items())))
        network, hosts, processes = merged.get(key, (one, set(), 0))
        merged[key] = network, hosts | {one.host}, processes + 1
    return tuple(
        json_types.NetworkJson(
            plugin=network.plugin,
            devices=tuple(json_types.NetworkDeviceJson(number, name) for number, name in network.devices),
            gdr=network.gdr,
            hosts=len(hosts),
            processes=processes,
            quote=network.quote,
        )
        for network, hosts, processes in merged.values()
    )


def _quotes(quotes: Sequence[Quote]) -> tuple[Quote, ...]:
    return _once(quotes, lambda quote: (quote.path, quote.line))


def _once(things: Sequence[T], key: Callable[[T], Hashable]) -> tuple[T, ...]:
    """The first of each key, as many as the document takes."""
    found: dict[Hashable, T] = {}
    for thing in things:
        found.setdefault(key(thing), thing)
    return tuple(found.values())[:MOST_ROWS]
