"""The `fabric` object of report.json, and the nouns that doctor.json shares with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Gpu, Machine, Quote, Reference
from traceops.fabric.nccl import Communicator, NcclLog, Network
from traceops.fabric.talks import is_inside, names_are_of_several

MOST_MACHINES = 32  # different ones
MOST_ROWS = 200  # of connections, settings, communicators, quotes: a job of 1,024 ranks has 100,000 and more
MOST_HOSTS = 2000
_MOST_MEASURED = 2000

T = TypeVar("T")


def fabric_json(fabric: Fabric) -> dict[str, Any]:
    """What report.json says of a run's fabric. Its size does not grow with the ranks beyond the limits above."""
    machines = alike_machines(fabric.machines)
    return {
        "machines": [
            {**machine_json(machine), "alike": list(alike[:MOST_HOSTS])}
            for machine, alike in machines[:MOST_MACHINES]
        ],
        "machines_left_out": sum(1 + len(alike) for _, alike in machines[MOST_MACHINES:]),
        "nccl": None if fabric.log is None else nccl_json(fabric.log),
        "graphs": [asdict(graph) for graph in fabric.graphs[:MOST_ROWS]],
        "references": [reference_json(reference) for reference in fabric.references[:MOST_MACHINES]],
        "problems": [{"file": file, "problem": said} for file, said in fabric.problems[:MOST_ROWS]],
    }


def machine_json(machine: Machine) -> dict[str, Any]:
    """One machine: its devices, and its paths as a list. Serial numbers stay out."""
    return {
        "host": machine.host,
        "gpus": [_gpu_json(gpu) for gpu in machine.gpus],
        "nics": [asdict(nic) for nic in machine.nics],
        "paths": [
            {"devices": list(devices), "kind": path.kind, "count": path.count, "gbs": path.gbs}
            for devices, path in machine.paths.items()
        ],
        "sources": list(machine.sources),
    }


def reference_json(reference: Reference) -> dict[str, Any]:
    """Bandwidths that a machine gave at its best."""
    return {**asdict(reference), "measured": [asdict(one) for one in reference.measured[:_MOST_MEASURED]]}


def alike_machines(machines: Iterable[Machine]) -> list[tuple[Machine, tuple[str, ...]]]:
    """Each make of machine once, with the names of the other hosts that have the same devices and paths."""
    found: dict[Hashable, tuple[Machine, list[str]]] = {}
    for machine in machines:
        key = _make(machine)
        if key not in found:
            found[key] = machine, []
        elif machine.host is not None:
            found[key][1].append(machine.host)
    return [(machine, tuple(hosts)) for machine, hosts in found.values()]


def _make(machine: Machine) -> Hashable:
    return (
        tuple(replace(gpu, uuid=None, bus_id=None) for gpu in machine.gpus),
        tuple(replace(nic, bus_id=None) for nic in machine.nics),
        frozenset((devices, path.kind, path.count, path.gbs) for devices, path in machine.paths.items()),
    )


def _gpu_json(gpu: Gpu) -> dict[str, Any]:
    return {key: value for key, value in asdict(gpu).items() if key != "uuid"}


def nccl_json(log: NcclLog) -> dict[str, Any]:
    """What NCCL said in its log. Its size does not grow with the ranks beyond the limits above."""
    rows = connection_rows(log.communicators)
    return {
        "files": list(log.files[:MOST_ROWS]),
        "versions": list(log.nccl_versions),
        "cuda_driver": log.cuda_driver,
        "communicators": [_communicator_json(one) for one in log.communicators[:MOST_ROWS]],
        "communicators_left_out": max(len(log.communicators) - MOST_ROWS, 0),
        "connections": rows,
        "networks": _network_rows(log.networks)[:MOST_ROWS],
        "settings": [
            {"name": one.name, "value": one.value, "quote": asdict(one.quote)}
            for one in _once(log.settings, lambda one: (one.name, one.value))
        ],
        "plugin_failures": _quotes(log.plugin_failures),
        "tuners": list(log.tuners),
        "choices": [asdict(choice) for choice in log.choices[:MOST_ROWS]],
        "warnings": _quotes(log.warnings),
    }


def _communicator_json(communicator: Communicator) -> dict[str, Any]:
    places = communicator.places.values()
    return {
        "id": communicator.id,
        "size": communicator.size,
        "hosts": len({place.host for place in places if place.host is not None}) or None,
        "graphs": [asdict(graph) for graph in communicator.graphs],
        "channels": {
            "collectives": communicator.coll_channels,
            "nvls": communicator.nvls_channels,
            "messages": communicator.p2p_channels,
        },
    }


def connection_rows(communicators: Sequence[Communicator]) -> list[dict[str, Any]]:
    """Connections counted by the hosts they join, transport and detail; hosts left out where there are too many.

    from_host and to_host: None where not known or left out. within_host: None where not known. count: of pairs of
    ranks, each direction by itself. quote: of the first.
    """
    rows = _counted(communicators, by_host=True)
    return rows if len(rows) <= MOST_ROWS else _counted(communicators, by_host=False)[:MOST_ROWS]


def _counted(communicators: Sequence[Communicator], *, by_host: bool) -> list[dict[str, Any]]:
    count: Counter[tuple[Any, ...]] = Counter()
    channels: Counter[tuple[Any, ...]] = Counter()
    first: dict[tuple[Any, ...], Quote] = {}
    for communicator in communicators:
        hosts = {rank: place.host for rank, place in communicator.places.items()}
        of_several = names_are_of_several(communicator)
        for one in communicator.connections:
            ends = hosts.get(one.source), hosts.get(one.destination)
            places = communicator.places.get(one.source), communicator.places.get(one.destination)
            within = is_inside(*places, one, of_several)
            shown = ends if by_host else (None, None)
            key = (*shown, within, one.transport, one.detail, one.gdr, one.device)
            count[key] += 1
            channels[key] += one.channels
            first.setdefault(key, one.quote)
    names = ("from_host", "to_host", "within_host", "transport", "detail", "gdr", "device")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "count": pairs,
            "channels": channels[key],
            "quote": asdict(first[key]),
        }
        for key, pairs in count.most_common()
    ]


def _network_rows(networks: Sequence[Network]) -> list[dict[str, Any]]:
    """What processes say of the network, those that say the same in one row."""
    merged: dict[Hashable, tuple[Network, set[str], int]] = {}
    for one in networks:
        key = (one.plugin, one.devices, tuple(sorted(one.gdr.items())))
        network, hosts, processes = merged.get(key, (one, set(), 0))
        merged[key] = network, hosts | {one.host}, processes + 1
    return [
        {
            "plugin": network.plugin,
            "devices": [{"number": number, "name": name} for number, name in network.devices],
            "gdr": dict(network.gdr),
            "hosts": len(hosts),
            "processes": processes,
            "quote": asdict(network.quote),
        }
        for network, hosts, processes in merged.values()
    ]


def _quotes(quotes: Sequence[Quote]) -> list[dict[str, Any]]:
    return [asdict(quote) for quote in _once(quotes, lambda quote: (quote.path, quote.line))]


def _once(things: Sequence[T], key: Callable[[T], Hashable]) -> list[T]:
    """The first of each key, as many as report.json takes."""
    found: dict[Hashable, T] = {}
    for thing in things:
        found.setdefault(key(thing), thing)
    return list(found.values())[:MOST_ROWS]
