"""Which GPUs talk to each other which way: NCCL's connections placed on the machines' devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traceops.topology.model import (
    PATH_KINDS,
    Communicator,
    Connection,
    Fabric,
    Gpu,
    Machine,
    Nic,
    Path,
    Place,
)


@dataclass(frozen=True)
class Talk:
    """One connection of NCCL between two ranks: where they run, and how their GPUs reach each other.

    inside: both run on one host. machine, gpus: None where no topology names them. path: between the GPUs, None
    where not known or on two hosts.
    """

    communicator: Communicator
    connection: Connection
    source: Place | None
    destination: Place | None
    inside: bool
    machine: Machine | None
    gpus: tuple[Gpu | None, Gpu | None]

    @property
    def path(self) -> Path | None:
        one, other = self.gpus
        if self.machine is None or one is None or other is None or not self.inside:
            return None
        return self.machine.path(one.label, other.label)

    @property
    def way(self) -> str:
        """As people write it: ``P2P/CUMEM``, ``SHM``, ``NET/Socket``."""
        detail = "/".join(dict.fromkeys(self.connection.detail.split("/")))  # SHM says direct for both ends
        return f"{self.connection.transport}/{detail}" if detail else self.connection.transport


def talks(fabric: Fabric) -> tuple[Talk, ...]:
    """Every connection in the logs; none where there is no log."""
    return tuple(_talks(fabric)) if fabric.log is not None else ()


def _talks(fabric: Fabric) -> Iterator[Talk]:
    assert fabric.log is not None
    for communicator in fabric.log.communicators:
        for connection in communicator.connections:
            source = communicator.places.get(connection.source)
            destination = communicator.places.get(connection.destination)
            inside = (
                source is not None
                and destination is not None
                and source.host is not None
                and source.host == destination.host
            )
            machine = machine_of(fabric.machines, source)
            gpus = (gpu_of(machine, source), gpu_of(machine, destination) if inside else None)
            yield Talk(communicator, connection, source, destination, inside, machine, gpus)


def machine_of(machines: Sequence[Machine], place: Place | None) -> Machine | None:
    """The machine a rank runs on: by its host's name, or the only one there is, if that has no other name."""
    if place is None:
        return None
    named = [machine for machine in machines if machine.host is not None and machine.host == place.host]
    if named:
        return named[0]
    return machines[0] if len(machines) == 1 and machines[0].host is None else None


def gpu_of(machine: Machine | None, place: Place | None) -> Gpu | None:
    """The GPU of a rank: by bus id, else by its number as nvidia-smi counts."""
    if machine is None or place is None:
        return None
    if place.bus_id is not None:
        by_bus = [gpu for gpu in machine.gpus if gpu.bus_id == place.bus_id]
        if by_bus:
            return by_bus[0]
    number = place.nvml_device if place.nvml_device is not None else place.cuda_device
    return next((gpu for gpu in machine.gpus if gpu.index == number), None)


def gpu_pairs(machine: Machine, used: Sequence[Gpu] | None = None) -> Iterator[tuple[Gpu, Gpu, Path]]:
    """Pairs of GPUs whose path is known, of those in use if given."""
    gpus = machine.gpus if used is None else used
    for number, one in enumerate(gpus):
        for other in gpus[number + 1 :]:
            path = machine.path(one.label, other.label)
            if path is not None:
                yield one, other, path


def nearest_nics(machine: Machine, gpu: Gpu) -> tuple[tuple[Nic, ...], Path | None]:
    """The NICs that are nearest to a GPU, without those that are down, and how they are reached; none if not known."""
    reached = [
        (nic, path)
        for nic in machine.nics
        if nic.up is not False and (path := machine.path(gpu.label, nic.label)) is not None
    ]
    if not reached:
        return (), None
    best = min((path for _, path in reached), key=distance)
    return tuple(nic for nic, path in reached if path.kind == best.kind), best


def distance(path: Path) -> int:
    """The farther, the larger."""
    return PATH_KINDS.index(path.kind)


def nic_name(nic: Nic) -> str:
    """As people call it: the device's name, with the matrix's label where that differs."""
    name = nic.label if nic.name in (None, nic.label) else f"{nic.label} ({nic.name})"
    return f"bonded {name}" if nic.bonded else name
