"""Which GPU of a machine a rank runs on, where that is known: by bus id, or because its ranks have all the GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from traceops.fabric.host_names import short_host
from traceops.fabric.model import Gpu, Machine
from traceops.fabric.nccl import NcclLog, RankPlace


class RankGpus:
    """The GPUs of the ranks of a log.

    A process counts the GPUs that it sees. In a container, and where Slurm gives parts of a host away, its number 0 is
    any row of the host's matrix. So numbers count only where the ranks of a host have all GPUs of the machine, and
    their bus ids, if the log has them, are in the order of the numbers, as nvidia-smi counts.
    """

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
    """The numbers of the GPUs of one host's ranks; none where they are not in the order of the bus ids.

    Before NCCL 2.18 there is CUDA's number alone, which says nothing without bus ids.
    """
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
