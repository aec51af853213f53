"""Which GPUs talk to each other which way: NCCL's connections placed on the machines' devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from traceops.fabric.fabric import Fabric
from traceops.fabric.model import PATH_KINDS, Gpu, Machine, Nic, Path, is_rdma, short_host
from traceops.fabric.nccl import Communicator, Connection, NcclLog, RankPlace


class RankGpus:
    """The GPUs of the ranks of a log. A process counts the GPUs that it sees. In a container, and where Slurm gives
    parts of a host away, its number 0 is any row of the host's matrix. So numbers count only where the ranks of a host
    have all GPUs of the machine, and their bus ids, if the log has them, are in the order of the numbers, as nvidia-smi
    counts."""

    def __init__(self, log: NcclLog | None) -> None:
        places: defaultdict[str, list[RankPlace]] = defaultdict(list)
        for communicator in log.communicators if log is not None else ():
            for place in communicator.places.values():
                places[short_host(place.host)].append(place)
        self._in_order = {host: _in_order(own) for host, own in places.items()}

    def gpu(self, machine: Machine | None, place: RankPlace | None) -> Gpu | None:
        """The GPU of a rank; None where it is not known."""
        if machine is None or place is None:
            return None
        if place.bus_id is not None and any(gpu.bus_id is not None for gpu in machine.gpus):
            return next((gpu for gpu in machine.gpus if gpu.bus_id == place.bus_id), None)
        if self._in_order.get(short_host(place.host)) != {gpu.index for gpu in machine.gpus}:
            return None
        return next((gpu for gpu in machine.gpus if gpu.index == _number(place)), None)


def may_be_of(machine: Machine, place: RankPlace) -> bool:
    """Whether a rank can run on this machine: whether it has such a bus id, and as many GPUs as the rank's number."""
    if place.bus_id is not None and all(gpu.bus_id is not None for gpu in machine.gpus):
        return any(gpu.bus_id == place.bus_id for gpu in machine.gpus)
    return _number(place) in {gpu.index for gpu in machine.gpus}


def _number(place: RankPlace) -> int | None:
    return place.cuda_device if place.nvml_device is None else place.nvml_device


def _in_order(places: Iterable[RankPlace]) -> set[int]:
    """The numbers of the GPUs of one host's ranks; none where they are not in the order of the bus ids. Before NCCL
    2.18 there is CUDA's number alone, which says nothing without bus ids."""
    devices = {(_number(place), place.bus_id) for place in places}
    is_nvml = {place.nvml_device is not None for place in places}
    buses = dict(sorted((number, bus) for number, bus in devices if number is not None and bus is not None))
    numbers = {number for number, _ in devices if number is not None}
    if len(is_nvml) > 1 or any(number is None for number, _ in devices):
        return set()
    if not buses:
        return numbers if is_nvml == {True} else set()
    told = len({device for device in devices if device[1] is not None})
    is_ordered = list(buses.values()) == sorted(set(buses.values()))
    return numbers if buses.keys() == numbers and told == len(numbers) and is_ordered else set()


class Talk(Struct, frozen=True):
    """One connection of NCCL between two ranks: where they run, and how their GPUs reach each other. inside: both run
    on one host. machine, gpus: None where no topology names them. at_nic: the rank whose process uses the network
    device of the connection, on the machine and GPU beside it: who sends, which is another than the source where NCCL
    goes through that one's GPU (PXN), or who receives where only that is told. path: between the GPUs, None where not
    known or on two hosts; where all pairs of the machine have one kind of path, that."""

    communicator: Communicator
    connection: Connection
    source: RankPlace | None
    destination: RankPlace | None
    inside: bool
    machine: Machine | None
    gpus: tuple[Gpu | None, Gpu | None]
    at_nic: RankPlace | None = None
    nic_machine: Machine | None = None
    nic_gpu: Gpu | None = None

    @property
    def path(self) -> Path | None:
        one, other = self.gpus
        if self.machine is None or not self.inside:
            return None
        if one is None or other is None:
            paths = [self.machine.path(one.label, other.label) for one, other in combinations(self.machine.gpus, 2)]
            kinds = {None if path is None else path.kind for path in paths}
            return paths[0] if len(kinds) == 1 else None
        return self.machine.path(one.label, other.label)

    @property
    def way(self) -> str:
        """As people write it: ``P2P/CUMEM``, ``SHM``, ``NET/Socket``."""
        return way_text(self.connection.transport, self.connection.detail)


def way_text(transport: str, detail: str) -> str:
    """``SHM/direct``: what is said of both ends (``direct/direct``) stands there once."""
    once = "/".join(dict.fromkeys(detail.split("/")))
    return f"{transport}/{once}" if once else transport


def talks(fabric: Fabric) -> tuple[Talk, ...]:
    """Every connection in the logs; none where there is no log. Where one file holds several runs, of two GPUs the last
    one's: a log that is appended to tells how it was, too."""
    if fabric.log is None:
        return ()
    found = list(_talks(fabric))
    latest = {pair: pid for talk in found for pair, pid in _process(talk)}
    return tuple(talk for talk in found if all(latest[pair] == pid for pair, pid in _process(talk)))


def _process(talk: Talk) -> Iterator[tuple[Hashable, int | None]]:
    """The devices of a connection in its file, and the process that sends; nothing where they are not known."""
    one, other = talk.source, talk.destination
    if one is not None and other is not None and one.bus_id is not None and other.bus_id is not None:
        yield (talk.connection.quote.path, one.host, one.bus_id, other.host, other.bus_id), one.pid


def _talks(fabric: Fabric) -> Iterator[Talk]:
    assert fabric.log is not None
    rank_gpus = RankGpus(fabric.log)
    by_name: defaultdict[str, list[Machine]] = defaultdict(list)
    for machine in fabric.machines:
        if machine.host is not None:
            by_name[short_host(machine.host)].append(machine)
    nameless = next((m for m in fabric.machines if len(fabric.machines) == 1 and m.host is None), None)
    places = (place for communicator in fabric.log.communicators for place in communicator.places.values())
    if nameless is not None and not all(may_be_of(nameless, place) for place in places):
        nameless = None  # of another machine: it lacks GPUs that ranks run on

    def machine_of(place: RankPlace | None) -> Machine | None:
        if place is None:
            return None
        named = by_name.get(short_host(place.host), [])
        return next((one for one in named if rank_gpus.gpu(one, place)), named[0] if named else nameless)

    for communicator in fabric.log.communicators:
        of_several = names_are_of_several(communicator)
        for connection in communicator.connections:
            source = communicator.places.get(connection.source)
            destination = communicator.places.get(connection.destination)
            at_nic = communicator.places.get(connection.at_device)
            inside = is_inside(source, destination, connection, of_several) is True
            here, nic_machine = machine_of(source), machine_of(at_nic)
            gpus = rank_gpus.gpu(here, source), rank_gpus.gpu(here, destination) if inside else None
            yield Talk(
                communicator, connection, source, destination, inside, here, gpus,
                at_nic, nic_machine, rank_gpus.gpu(nic_machine, at_nic),
            )  # fmt: skip


def sender(talk: Talk) -> Hashable:
    """The rank that sends, the same for every communicator that its process is in."""
    return _member(talk.communicator, talk.connection.source, talk.source)


def receiver(talk: Talk) -> Hashable:
    """The rank that receives, as `sender` names it."""
    return _member(talk.communicator, talk.connection.destination, talk.destination)


def members(talk: Talk) -> frozenset[Hashable]:
    """Both ends, as `sender` names them."""
    return frozenset((sender(talk), receiver(talk)))


def job_ranks(fabric: Fabric) -> dict[Hashable, int]:
    """The ranks of the job by what `sender` and `members` give; empty where the log does not tell them. Ranks count
    inside their communicator. The ranks of the largest communicator are the job's, if there is only one of that size,
    or several of the same devices. A job that makes only groups of two, say, has many ranks 0."""
    communicators = fabric.log.communicators if fabric.log is not None else ()
    size = max((communicator.size for communicator in communicators), default=0)
    devices: defaultdict[int, set[Hashable]] = defaultdict(set)
    ranks: dict[Hashable, int] = {}
    for communicator in communicators:
        if communicator.size == size:
            for rank, place in communicator.places.items():
                devices[rank].add((place.host, place.bus_id or place.pid))
                ranks[_member(communicator, rank, place)] = rank
    return {} if any(len(of_rank) > 1 for of_rank in devices.values()) else ranks


def ranks_in(job: Mapping[Hashable, int], ends: Iterable[Hashable]) -> list[int]:
    """The ranks of the ends, in order; none where one of them is not known."""
    ranks = {job.get(end) for end in ends}
    return [] if None in ranks else sorted(rank for rank in ranks if rank is not None)


def _member(communicator: Communicator, rank: int, place: RankPlace | None) -> Hashable:
    return (communicator.id, rank) if place is None else (place.host, place.pid, place.bus_id or rank)


def names_are_of_several(communicator: Communicator) -> bool:
    """Whether hosts share a name (``localhost``, ``vm``): two ranks run on one device. Two parts of one GPU (MIG) look
    like this too. NCCL's count of nodes does not tell: ranks of one host that have neither P2P nor shared memory are
    nodes of their own to it. In a log that lacks ranks and bus ids, hosts may share a name unseen: so they count as
    several."""
    places = communicator.places.values()
    devices = [(place.host, place.bus_id or place.nvml_device) for place in places]
    known = [device for device in devices if device[1] is not None]
    lacks_ranks = len(communicator.places) < communicator.size
    return len(set(known)) < len(known) or (lacks_ranks and any(place.bus_id is None for place in places))


def is_inside(
    source: RankPlace | None, destination: RankPlace | None, connection: Connection, of_several: bool
) -> bool | None:
    """Whether a connection stays on one host; None where nothing tells. Where several hosts share a name
    (`names_are_of_several`), what goes over the network is taken to leave. Where the log has one end only, shared
    memory and P2P tell: between hosts P2P is MNNVL."""
    if connection.transport == "COLLNET":
        return False
    if source is None or destination is None or source.host is None or destination.host is None:
        within = connection.transport == "SHM" or (connection.transport == "P2P" and connection.detail != "MNNVL")
        return True if within else None
    leaves = of_several and connection.transport not in ("P2P", "SHM")
    return source.host == destination.host and not leaves


def gpu_pairs(machine: Machine, used: Sequence[Gpu] | None = None) -> Iterator[tuple[Gpu, Gpu, Path]]:
    """Pairs of GPUs whose path is known, of those in use if given."""
    gpus = machine.gpus if used is None else used
    for number, one in enumerate(gpus):
        for other in gpus[number + 1 :]:
            if (path := machine.path(one.label, other.label)) is not None:
                yield one, other, path


def nearest_nics(machine: Machine, gpu: Gpu, like: Nic | None = None) -> tuple[tuple[Nic, ...], Path | None]:
    """The NICs that are nearest to a GPU, without those that are down, and how they are reached; none if not known.
    like: only those that could take this one's place, which another network's port or a slower one cannot."""
    reached = [
        (nic, path)
        for nic in machine.nics
        if nic.up is not False
        and (like is None or nic == like or _could_replace(nic, like))
        and (path := machine.path(gpu.label, nic.label)) is not None
    ]
    if not reached:
        return (), None
    best = min((path for _, path in reached), key=distance)
    return tuple(nic for nic, path in reached if path.kind == best.kind), best


def _could_replace(nic: Nic, used: Nic) -> bool:
    if nic.kind is not None and nic.kind != used.kind and (used.kind is not None or not is_rdma(nic)):
        return False
    return None in (nic.speed_gbs, used.speed_gbs) or (nic.speed_gbs or 0) >= (used.speed_gbs or 0)


def distance(path: Path) -> int:
    """The farther, the larger."""
    return PATH_KINDS.index(path.kind)


def nic_name(nic: Nic) -> str:
    """As people call it: the device's name, with the matrix's label where that differs."""
    name = nic.label if nic.name in (None, nic.label) else f"{nic.label} ({nic.name})"
    return f"bonded {name}" if nic.bonded else name
