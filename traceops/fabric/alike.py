"""What is the same on many hosts, once: machines of one make, and connections of one kind counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from traceops.fabric.json_types import ConnectionJson
from traceops.fabric.model import Machine, Quote
from traceops.fabric.nccl import Communicator
from traceops.fabric.talks import is_inside, names_are_of_several

MOST_CONNECTIONS = 200  # a job of 1,024 ranks has 100,000 and more


class _Kind(NamedTuple):
    from_host: str | None
    to_host: str | None
    within_host: bool | None
    transport: str
    detail: str
    gdr: bool
    device: int | None


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


def alike_connections(communicators: Sequence[Communicator]) -> list[ConnectionJson]:
    """Connections counted by the hosts they join, transport and detail; hosts left out where there are too many.

    The most frequent first. quote: of the first in the log.
    """
    found = _counted(communicators, by_host=True)
    if len(found) > MOST_CONNECTIONS:
        found = _counted(communicators, by_host=False)
    return found[:MOST_CONNECTIONS]


def _make(machine: Machine) -> Hashable:
    return (
        tuple(replace(gpu, uuid=None, bus_id=None) for gpu in machine.gpus),
        tuple(replace(nic, bus_id=None) for nic in machine.nics),
        frozenset((devices, path.kind, path.count, path.gbs) for devices, path in machine.paths.items()),
    )


def _counted(communicators: Sequence[Communicator], *, by_host: bool) -> list[ConnectionJson]:
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
            kind = _Kind(*ends, within, one.transport, one.detail, one.gdr, device)
            count[kind] += 1
            channels[kind] += one.channels
            first.setdefault(kind, one.quote)
    return [
        ConnectionJson(**kind._asdict(), count=pairs, channels=channels[kind], quote=first[kind])
        for kind, pairs in count.most_common()
    ]
