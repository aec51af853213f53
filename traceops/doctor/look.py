"""Looks around on this host: what it is, what it has, and what of it hurts a job over several GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from traceops.core.errors import InputError
from traceops.doctor.here import Here
from traceops.doctor.look_see import Run, Seen, see
from traceops.doctor.looks.cgroups import look_at_limits
from traceops.doctor.looks.container import (
    look_at_container,
    look_at_fabric_manager,
    look_at_gdr,
    look_at_pcie_ways,
)
from traceops.doctor.looks.cpus import Near, look_at_cpus
from traceops.doctor.looks.efa import look_at_efa
from traceops.doctor.looks.files import listed
from traceops.doctor.looks.gpus import look_at_gpus
from traceops.doctor.looks.interfaces import Interface, look_at_interfaces
from traceops.doctor.looks.nvlink import (
    Links,
    look_at_lanes,
    look_at_nvlink,
    look_at_p2p,
    parse_nvlink_status,
    parse_p2p,
)
from traceops.doctor.looks.rdma import look_at_rdma, nics
from traceops.doctor.looks.smi import SmiGpu
from traceops.doctor.looks.software import look_at_software
from traceops.doctor.looks.xids import look_at_xids
from traceops.doctor.model import Look
from traceops.doctor.variables import check_variables
from traceops.fabric.model import Gpu, Machine, Nic
from traceops.fabric.readers.topo_matrix import read_topo_matrices
from traceops.launch.programs import NO_ANSWER, output

_MATRIX = "nvidia-smi topo -m"


def look_around(
    environ: Mapping[str, str], root: Path = Path("/"), run: Run = output
) -> tuple[Machine, tuple[Look, ...]]:
    """What this machine is and has, and everything that was looked at, in the order of the doctor's table.

    Programs and files are asked side by side, each with a deadline: it ends within 45 s whatever hangs. root and
    run: where files are read and how programs are run, for tests.
    """
    return judge(see(environ, root, run), environ)


def judge(seen: Seen, environ: Mapping[str, str]) -> tuple[Machine, tuple[Look, ...]]:
    """The machine, and the Looks that follow from what was read."""
    machine = _machine(seen)
    looks = [
        *_gpus(seen, machine),
        *_host(seen, environ, machine),
        *_network(seen),
        *_software(seen, environ),
    ]
    return machine, tuple(looks)


def _machine(seen: Seen) -> Machine:
    """GPUs of nvidia-smi with their places, NICs of /sys, and the paths of the matrix between them."""
    matrix = _matrix(seen)
    gpus = seen.driver.gpus if seen.driver else ()
    links = parse_nvlink_status(seen.nvlink.text)
    rows = {gpu.index: gpu for gpu in matrix.gpus}
    found = tuple(
        _gpu(gpu, rows.get(gpu.index), seen.near.get(gpu.bus_id or ""), links.get(gpu.index)) for gpu in gpus
    )
    return Machine(seen.host, found or matrix.gpus, _nics(seen, matrix), matrix.paths)


def _matrix(seen: Seen) -> Machine:
    try:
        machines = read_topo_matrices(_MATRIX, seen.matrix.text) if seen.matrix.text.strip() else ()
    except InputError:  # one GPU alone, or a driver that prints something else: there are no paths to know
        machines = ()
    return machines[0] if machines else Machine(seen.host)


def _gpu(gpu: SmiGpu, row: Gpu | None, near: Near | None, links: Links | None) -> Gpu:
    """One GPU from its three sources; the matrix's own numbers stand where /sys has none."""
    numa = near.numa if near and near.numa is not None else row.numa if row else None
    cpus = listed(near.cpus) if near and near.cpus else row.cpus if row else None
    return Gpu(
        gpu.index, gpu.name, gpu.bus_id, gpu.uuid, numa, cpus, gpu.pcie,
        len(links.up) if links else None, links.down if links else 0, min(links.up) if links and links.up else None,
    )  # fmt: skip


def _nics(seen: Seen, matrix: Machine) -> tuple[Nic, ...]:
    """RDMA devices under the labels the matrix gives them, then network cards that are no part of one."""
    labels = {nic.name: nic for nic in matrix.nics}
    found = []
    for nic in nics(seen.rdma or ()):
        row = labels.pop(nic.name, None)
        numa = nic.numa if nic.numa is not None else row.numa if row else None
        found.append(replace(nic, label=row.label if row else nic.name or nic.label, numa=numa))
    behind = {port.interface for one in seen.rdma or () for port in one.ports}
    cards = [_card(one) for one in seen.interfaces or () if one.physical and one.name not in behind]
    return (*found, *labels.values(), *cards)


def _card(one: Interface) -> Nic:
    speed = None if one.mbits is None else one.mbits / 8000
    return Nic(one.name, one.name, "Ethernet", speed_gbs=speed, bonded=bool(one.ports), up=one.up)


def _gpus(seen: Seen, machine: Machine) -> list[Look]:
    host, driver = seen.host, seen.driver
    if driver is None or not driver.gpus:
        why = f"no GPU to look at: {seen.smi.problem or 'nvidia-smi shows none'}"
        areas = (("GPU", "GPUs"), ("NVLink", "NVLink"), ("PCIe", "GPU link"), ("PCIe", "direct access (P2P)"))
        unseen = [Look(host, area, what, "none", "not_evaluated", why) for area, what in areas]
        if seen.around is None or not seen.around.has_gpus:
            if NO_ANSWER in (seen.smi.problem or ""):  # without a GPU it says so at once
                advice = (
                    "look for a driver that hangs: sudo dmesg | grep -i -e nvrm -e xid; it may take a reboot"
                )
                unseen[0] = replace(unseen[0], level="warning", advice=advice)
            return [*unseen, Look(host, "GPU", "Xid errors", "none", "not_evaluated", why)]
        return [*unseen, *look_at_xids(seen.log.text, seen.log.problem, {}, host)]
    gpus = driver.gpus
    labels = {gpu.bus_id: gpu.label for gpu in gpus if gpu.bus_id}
    links = parse_nvlink_status(seen.nvlink.text) if seen.nvlink.problem is None else None
    if not links and seen.nvlink.text.strip():  # words of another driver: no proof that there are none
        links = None
    looks = [*look_at_gpus(driver, host), *look_at_xids(seen.log.text, seen.log.problem, labels, host)]
    looks += look_at_nvlink(gpus, links, machine.paths, host)
    looks += look_at_lanes(gpus, host)
    virtual = seen.cpus.virtual if seen.cpus else None
    if len(gpus) > 1:
        looks += look_at_p2p(parse_p2p(seen.p2p.text), machine.paths, bool(virtual), host)
    else:
        looks.append(
            Look(host, "PCIe", "direct access (P2P)", "one GPU", "not_evaluated", "there is no pair of GPUs")
        )
    if seen.around is not None:
        told = any(gpu.fabric_state is not None for gpu in gpus)
        looks += look_at_fabric_manager(seen.around, told, len(gpus), host)
        looks += look_at_pcie_ways(seen.around, virtual, _all_linked(machine), len(gpus), host)
    return looks


def _all_linked(machine: Machine) -> bool:
    """Whether NVLink joins every pair of GPUs."""
    paths = [machine.path(one.label, other.label) for one, other in combinations(machine.gpus, 2)]
    return bool(paths) and all(path is not None and path.kind == "NV" for path in paths)


def _host(seen: Seen, environ: Mapping[str, str], machine: Machine) -> list[Look]:
    host, count = seen.host, len(machine.gpus)
    rdma = any(one.active for one in seen.rdma or ())
    looks: list[Look] = []
    if seen.cpus is not None:
        near = [(gpu.label, place) for gpu in machine.gpus if (place := seen.near.get(gpu.bus_id or ""))]
        quota = seen.limits.processors if seen.limits else None
        looks += look_at_cpus(seen.cpus, near, quota, host)
    else:
        looks.append(_late(host, "NUMA", "cores"))
    looks += (
        look_at_limits(seen.limits, count, rdma, host) if seen.limits else [_late(host, "limits", "limits")]
    )
    if seen.around is not None:
        looks += look_at_container(seen.around, environ, count, seen.smi.problem, host)
    else:
        looks.append(_late(host, "container", "container"))
    return looks


def _network(seen: Seen) -> list[Look]:
    host = seen.host
    if seen.rdma is None or seen.interfaces is None or seen.openable is None:
        return [_late(host, "network", "interfaces and RDMA devices")]
    active = [one for one in seen.rdma if one.active]
    looks = [
        *look_at_interfaces(seen.interfaces, bool(active), host),
        *look_at_rdma(seen.rdma, seen.openable, host),
    ]
    gpus = len(seen.driver.gpus) if seen.driver else 0
    if seen.plugin is not None:
        looks += look_at_efa(seen.rdma, seen.plugin, gpus, host)
    if seen.around is not None:
        efa = any(one.family == "EFA" for one in active)
        looks.append(look_at_gdr(seen.around, bool(active), efa, gpus, host))
    return looks


def _software(seen: Seen, environ: Mapping[str, str]) -> list[Look]:
    host, driver, software = seen.host, seen.driver, seen.software
    gpus = driver.gpus if driver else ()
    looks: list[Look] = []
    if software is not None:
        looks += look_at_software(software, driver.cuda if driver else None, len(gpus), host)
    else:
        looks.append(_late(host, "software", "torch"))
    here = Here(
        seen.interfaces,
        seen.rdma,
        None if driver is None and seen.around and seen.around.has_gpus else len(gpus),
        tuple(gpu.uuid for gpu in gpus if gpu.uuid),
        software.nccl if software else None,
        software.torch if software else None,
    )
    return [*looks, *check_variables(environ, host, here, seen.files or ())]


def _late(host: str, area: str, what: str) -> Look:
    return Look(
        host, area, what, "not known", "not_evaluated", "files of /proc and /sys did not answer in time"
    )
