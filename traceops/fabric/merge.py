"""Joins what several sources say of one host: matrix, XML, NCCL's log, a look at the machine itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from traceops.fabric.bus_ids import normal_bus_id
from traceops.fabric.host_names import same_host, short_host
from traceops.fabric.model import Gpu, Machine, Nic, Path, Pcie
from traceops.fabric.nics import with_numa

_Device = TypeVar("_Device", Gpu, Nic)
_Told = TypeVar("_Told", Gpu, Nic, Pcie, Path)

_OWN_LINKS = ("NV", "XGMI", "C2C")


def merge_machines(machines: Iterable[Machine]) -> tuple[Machine, ...]:
    """One machine a host, in order of appearance, with what any source says of it.

    Where two say different things, the first does; but NVLink and XGMI come before the PCIe path below them, and
    nvidia-smi's NODE before NCCL's PHB, which means either. A source without a host's name joins the only named
    host, or other sources without one, where their GPUs agree. They agree if they have the same bus ids. Where those
    are not known, they agree if they have the same indices and no other names, NUMA nodes or numbers of NVLinks; where
    one has bus ids, in the order of the indices, as nvidia-smi counts: NCCL's log of a job that has a part of its host
    counts that part. Two machines of one file are never one for want of names.
    """
    given = list(machines)
    hosts = {short_host(machine.host) for machine in given if machine.host is not None}
    groups: list[tuple[int, Machine]] = []
    for position, machine in sorted(enumerate(given), key=lambda item: item[1].host is None):
        for place, (first, known) in enumerate(groups):
            if _is_same_host(known, machine, len(hosts)) and _agree(known, machine):
                both = (machine, known) if position < first else (known, machine)
                groups[place] = min(first, position), _joined(*both)
                break
        else:
            groups.append((position, machine))
    ordered = [machine for _, machine in sorted(groups, key=lambda item: item[0])]
    return tuple(replace(each, nics=with_numa(each.nics, each.gpus, each.paths)) for each in ordered)


def _is_same_host(known: Machine, other: Machine, hosts: int) -> bool:
    if other.host is not None:
        return same_host(known.host, other.host)
    if known.host is not None:
        return hosts == 1
    return not set(known.sources) & set(other.sources)


def _agree(one: Machine, other: Machine) -> bool:
    """Whether the GPUs of one are among those of the other, and nothing said of them is against it."""
    pairs = list(_same(one.gpus, other.gpus, _same_gpu))
    if len(pairs) < min(len(one.gpus), len(other.gpus)):
        return False
    ours, theirs = _bus_ids(one), _bus_ids(other)
    if not (ours and theirs) and (buses := ours or theirs):
        is_whole = len(one.gpus) == len(other.gpus) == len(buses)
        if not is_whole or buses != sorted(buses):
            return False
    if any(
        (a.name and b.name and _name(a) != _name(b))
        or (a.uuid and b.uuid and a.uuid != b.uuid)
        or (a.numa is not None and b.numa is not None and a.numa != b.numa)
        for a, b in pairs
    ):
        return False
    labels = {b.label: a.label for a, b in pairs}
    for (start, end), path in other.paths.items():
        known = one.path(labels.get(start, ""), labels.get(end, ""))
        counts = {each.count for each in (known, path) if each and each.kind == "NV"} - {None}
        if known and len(counts) > 1:
            return False
    return True


def _bus_ids(machine: Machine) -> list[str]:
    """In the order of the GPUs' indices."""
    gpus = sorted(machine.gpus, key=lambda gpu: gpu.index)
    return [bus for gpu in gpus if (bus := normal_bus_id(gpu.bus_id))]


def _name(gpu: Gpu) -> str:
    return " ".join((gpu.name or "").lower().split()).removeprefix("nvidia ")


def _same(
    known: Sequence[_Device], told: Sequence[_Device], same: Callable[[_Device, _Device], bool]
) -> Iterator[tuple[_Device, _Device]]:
    left = list(known)
    for device in told:
        match = next((each for each in left if same(each, device)), None)
        if match is not None:
            left.remove(match)
            yield match, device


def _same_gpu(one: Gpu, other: Gpu) -> bool:
    ours, theirs = normal_bus_id(one.bus_id), normal_bus_id(other.bus_id)
    return ours == theirs if ours and theirs else one.index == other.index


def _same_nic(one: Nic, other: Nic) -> bool:
    if one.name and other.name:
        return one.name.lower() == other.name.lower()
    ours, theirs = normal_bus_id(one.bus_id), normal_bus_id(other.bus_id)
    return ours == theirs if ours and theirs else not one.name and not other.name and one.label == other.label


def _joined(one: Machine, other: Machine) -> Machine:
    gpu_pairs = list(_same(one.gpus, other.gpus, _same_gpu))
    nic_pairs = list(_same(one.nics, other.nics, _same_nic))
    labels = {b.label: a.label for a, b in gpu_pairs} | {b.label: a.label for a, b in nic_pairs}
    gpus = {gpu.label: gpu for gpu in one.gpus} | {a.label: _filled(a, b) for a, b in gpu_pairs}
    nics = {nic.label: nic for nic in one.nics} | {a.label: _filled(a, b) for a, b in nic_pairs}
    for gpu in other.gpus:
        if gpu.label not in labels:
            taken = {each.index for each in gpus.values()}
            index = gpu.index if gpu.index not in taken else max(taken) + 1
            labels[gpu.label] = f"GPU{index}"
            gpus[labels[gpu.label]] = replace(gpu, index=index)
    for nic in other.nics:
        if nic.label not in labels:
            labels[nic.label] = _free_label(nic.label, nics)
            nics[labels[nic.label]] = replace(nic, label=labels[nic.label])
    return Machine(
        host=one.host or other.host,
        gpus=tuple(sorted(gpus.values(), key=lambda gpu: gpu.index)),
        nics=tuple(nics.values()),
        paths=_joined_paths(one, other, labels),
        sources=tuple(dict.fromkeys((*one.sources, *other.sources))),
    )


def _free_label(label: str, taken: dict[str, Nic]) -> str:
    if label not in taken:
        return label
    return next(free for number in range(len(taken) + 1) if (free := f"NIC{number}") not in taken)


def _joined_paths(one: Machine, other: Machine, labels: dict[str, str]) -> dict[tuple[str, str], Path]:
    paths = dict(one.paths)
    for (start, end), path in other.paths.items():
        pair = labels.get(start, start), labels.get(end, end)
        pair = pair if pair in paths or pair[::-1] not in paths else pair[::-1]
        known = paths.get(pair)
        paths[pair] = path if known is None else _better(known, path)
    return paths


def _better(known: Path, path: Path) -> Path:
    if known.kind == path.kind:
        return _filled(known, path)
    if known.kind in _OWN_LINKS or path.kind in _OWN_LINKS:
        return known if known.kind in _OWN_LINKS else path
    return path if (known.kind, path.kind) in (("PHB", "NODE"), ("PCIE", path.kind)) else known


def _filled(known: _Told, told: _Told) -> _Told:
    """What is known, and where it says nothing, what the other source says."""
    changes: dict[str, Any] = {}
    for field in fields(known):
        ours, theirs = getattr(known, field.name), getattr(told, field.name)
        if isinstance(ours, Pcie) and isinstance(theirs, Pcie):
            changes[field.name] = _filled(ours, theirs)
        elif ours is None or (field.name in ("nvlinks_down", "bonded") and theirs):
            changes[field.name] = theirs
    return replace(known, **changes)
