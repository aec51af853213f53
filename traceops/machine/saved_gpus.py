"""Which GPUs saved outputs tell of, and whether two of them can be of one machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from traceops.fabric.bus_ids import normal_bus_id
from traceops.fabric.model import Machine
from traceops.machine.saved_programs import Outputs
from traceops.machine.smi import SmiGpu


@dataclass(frozen=True)
class ToldGpus:
    """count: of all GPUs of the host, None where the output may tell of some only. By index where it tells that."""

    count: int | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    uuids: Mapping[int, str] = field(default_factory=dict)
    bus_ids: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Difference:
    """What differs between two outputs. ours and theirs: how many GPUs, where told. gpu: of which GPU it is told."""

    kind: Literal["count", "model", "uuid", "bus_id"]
    ours: int | None = None
    theirs: int | None = None
    gpu: int | None = None


def told_gpus(outputs: Outputs) -> tuple[ToldGpus, ...]:
    """What each program's output tells."""
    told: list[ToldGpus] = []
    if outputs.smi is not None:
        gpus = outputs.smi.smi.gpus
        count = outputs.smi.listed or len(gpus)
        told.append(_all(count, gpus if len(gpus) == count else ()))
    if outputs.table is not None and (table := outputs.table.table) is not None:
        # a name that is cut off differs from the whole one of the same GPU
        cut = table.half or table.unread or table.cut
        gpus = table.smi.gpus
        told.append(ToldGpus(bus_ids=_bus_ids(gpus)) if cut else _all(len(gpus), gpus))
    if outputs.listed is not None:
        told.append(_some((gpu.index, gpu.name, gpu.uuid) for gpu in outputs.listed))
    if outputs.nvlink is not None:
        told.append(_some(outputs.nvlink.named))
    if outputs.p2p is not None:
        told.append(ToldGpus(len({index for pair in outputs.p2p for index in pair})))
    return tuple(told)


def _some(gpus: Iterable[tuple[int, str, str | None]]) -> ToldGpus:
    named = tuple(gpus)
    return ToldGpus(
        None, {index: _name(name) for index, name, _ in named}, {index: uuid for index, _, uuid in named if uuid}
    )


def _all(count: int, gpus: Sequence[SmiGpu]) -> ToldGpus:
    return ToldGpus(
        count,
        {gpu.index: _name(gpu.name) for gpu in gpus},
        {gpu.index: gpu.uuid for gpu in gpus if gpu.uuid},
        _bus_ids(gpus),
    )


def _bus_ids(gpus: Sequence[SmiGpu]) -> frozenset[str]:
    return frozenset(gpu.bus_id for gpu in gpus if gpu.bus_id)


def gpus_of(machine: Machine) -> ToldGpus:
    """What a topology tells. A matrix has all GPUs of its host; NCCL's log may have those of a job alone."""
    if any(gpu.bus_id for gpu in machine.gpus):
        return ToldGpus(bus_ids=frozenset(found for gpu in machine.gpus if (found := normal_bus_id(gpu.bus_id))))
    return ToldGpus(
        len(machine.gpus),
        {gpu.index: _name(gpu.name) for gpu in machine.gpus if gpu.name},
        {gpu.index: gpu.uuid for gpu in machine.gpus if gpu.uuid},
    )


def with_bus_ids(machine: Machine, outputs: Outputs) -> Machine:
    """A matrix has no bus ids: those that nvidia-smi tells of the same GPUs, where it tells one for each."""
    if any(gpu.bus_id for gpu in machine.gpus):
        return machine
    listed = [outputs.smi.smi.gpus] if outputs.smi is not None else []
    if outputs.table is not None and (table := outputs.table.table) is not None:
        listed.append(table.smi.gpus)
    for gpus in listed:
        buses = {gpu.index: bus for gpu in gpus if (bus := normal_bus_id(gpu.bus_id))}
        if len(gpus) == len(set(buses.values())) and buses.keys() == {gpu.index for gpu in machine.gpus}:
            return replace(machine, gpus=tuple(replace(gpu, bus_id=buses[gpu.index]) for gpu in machine.gpus))
    return machine


def difference(one: ToldGpus, other: ToldGpus) -> Difference | None:
    """Why the two cannot be of one machine at one time; None where nothing speaks against it."""
    if one.count and other.count and one.count != other.count:
        return Difference("count", one.count, other.count)
    for index in sorted({*one.names, *one.uuids}):
        if other.count and index >= other.count:
            return Difference("count", None, other.count, index)
        if one.names.get(index, "") != other.names.get(index, one.names.get(index, "")):
            return Difference("model", gpu=index)
        ours, theirs = one.uuids.get(index), other.uuids.get(index)
        if ours and theirs and ours.lower() != theirs.lower():
            return Difference("uuid", gpu=index)
    beyond = [index for index in {*other.names, *other.uuids} if one.count and index >= one.count]
    if beyond:
        return Difference("count", one.count, None, min(beyond))
    if one.bus_ids and other.bus_ids and not (one.bus_ids <= other.bus_ids or other.bus_ids <= one.bus_ids):
        return Difference("bus_id")
    return None


def _name(name: str) -> str:
    return re.sub(r"^nvidia ", "", " ".join(name.lower().split()))
