"""The matrix that `traceops run` saved of a host: nvidia-smi counted there as NVML does in the ranks beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceops.fabric.host_names import short_host
from traceops.fabric.model import Machine
from traceops.fabric.nccl import NcclLog

_BEGIN, _END = "topo.", ".txt"


def with_bus_ids(machines: Sequence[Machine], log: NcclLog | None) -> list[Machine]:
    """Those with the host of the file's name, and with the bus ids that NCCL's log has of their rows.

    A matrix from elsewhere may be of the whole host, where a job sees a part of it; this one is of what its ranks saw.
    """
    return [_named(machine, log) for machine in machines]


def _named(machine: Machine, log: NcclLog | None) -> Machine:
    host = _host_of_run(machine)
    if host is None or any(gpu.bus_id for gpu in machine.gpus):
        return machine
    told = {
        (place.nvml_device, place.bus_id)
        for communicator in (log.communicators if log is not None else ())
        for place in communicator.places.values()
        if short_host(place.host) == short_host(host) and place.bus_id is not None and place.nvml_device is not None
    }
    buses = dict(told)
    if len(buses) < len(told) or len(set(buses.values())) < len(told):  # two jobs in one folder
        return replace(machine, host=host)
    gpus = tuple(replace(gpu, bus_id=buses.get(gpu.index)) for gpu in machine.gpus)
    return replace(machine, host=host, gpus=gpus)


def _host_of_run(machine: Machine) -> str | None:
    if machine.host is not None or len(machine.sources) != 1:
        return None
    path = Path(machine.sources[0])
    is_own = path.parent.name == "evidence" and (path.parent.parent / "run.json").is_file()
    name = path.name
    if not is_own or not (name.startswith(_BEGIN) and name.endswith(_END)):
        return None
    return name[len(_BEGIN) : -len(_END)] or None
