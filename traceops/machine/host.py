"""Makes one Machine of what was read of a host: GPUs, network devices, and the paths between them."""

from __future__ import annotations

from dataclasses import replace

from traceops.core.errors import InputError
from traceops.fabric.model import Gpu, Machine, Nic
from traceops.fabric.readers.topo_matrix import read_topo_matrices
from traceops.machine.cpus import Near
from traceops.machine.files import listed
from traceops.machine.interfaces import Interface
from traceops.machine.nvlink import Links, parse_nvlink_status
from traceops.machine.probe import HostFacts
from traceops.machine.rdma import nics
from traceops.machine.smi import SmiGpu

_MATRIX = "nvidia-smi topo -m"


def machine_of(facts: HostFacts) -> Machine:
    """GPUs of nvidia-smi with their places, NICs of /sys, and the paths of the matrix between them."""
    matrix = _matrix(facts)
    gpus = facts.driver.gpus if facts.driver else ()
    links = parse_nvlink_status(facts.nvlink.text)
    rows = {gpu.index: gpu for gpu in matrix.gpus}
    found = tuple(
        _gpu(gpu, rows.get(gpu.index), facts.near.get(gpu.bus_id or ""), links.get(gpu.index)) for gpu in gpus
    )
    return Machine(facts.host, found or matrix.gpus, _nics(facts, matrix), matrix.paths)


def _matrix(facts: HostFacts) -> Machine:
    try:
        machines = read_topo_matrices(_MATRIX, facts.matrix.text) if facts.matrix.text.strip() else ()
    except InputError:  # one GPU alone, or a driver that prints something else: there are no paths to know
        machines = ()
    return machines[0] if machines else Machine(facts.host)


def _gpu(gpu: SmiGpu, row: Gpu | None, near: Near | None, links: Links | None) -> Gpu:
    """One GPU from its three sources; the matrix's own numbers stand where /sys has none."""
    numa = near.numa if near and near.numa is not None else row.numa if row else None
    cpus = listed(near.cpus) if near and near.cpus else row.cpus if row else None
    return Gpu(
        gpu.index, gpu.name, gpu.bus_id, gpu.uuid, numa, cpus, gpu.pcie,
        len(links.up) if links else None, links.down if links else 0, min(links.up) if links and links.up else None,
    )  # fmt: skip


def _nics(facts: HostFacts, matrix: Machine) -> tuple[Nic, ...]:
    """RDMA devices under the labels the matrix gives them, then network cards that are no part of one."""
    labels = {nic.name: nic for nic in matrix.nics}
    found = []
    for nic in nics(facts.rdma or ()):
        row = labels.pop(nic.name, None)
        numa = nic.numa if nic.numa is not None else row.numa if row else None
        found.append(replace(nic, label=row.label if row else nic.name or nic.label, numa=numa))
    behind = {port.interface for one in facts.rdma or () for port in one.ports}
    cards = [_card(one) for one in facts.interfaces or () if one.physical and one.name not in behind]
    return (*found, *labels.values(), *cards)


def _card(one: Interface) -> Nic:
    speed = None if one.mbits is None else one.mbits / 8000
    return Nic(one.name, one.name, "Ethernet", speed_gbs=speed, bonded=bool(one.ports), up=one.up)
