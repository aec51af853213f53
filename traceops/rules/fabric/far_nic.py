"""TO-P004: NICs far from the GPU that sends or receives through them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from traceops.core.findings import Evidence
from traceops.core.rule import Rule, Verdict
from traceops.fabric.circumstances import hosts_text, quoted
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Gpu, Machine, Nic, Path, PathKind
from traceops.fabric.nccl import Network
from traceops.fabric.talks import Talk, distance, job_ranks, nearest_nics, nic_name, ranks_in, receiver, sender
from traceops.rules.fabric.network import NO_LOG, is_socket

FAR_NIC = Rule(
    id="TO-P004",
    title="The NIC in use is far from its GPU",
    fires=(
        "From NCCL's log and a topology: a rank sends through a NIC that is farther from its GPU, or from the GPU "
        "that sends for it (PXN), than another NIC of the same network and speed; or receives through one, where only "
        "the receiver tells. Warning across NUMA nodes. Info otherwise, and where NCCL does not list the nearer NIC "
        "although no NCCL_IB_HCA excludes it. Confidence is high where NCCL_IB_HCA names NICs: left alone, NCCL takes "
        "a farther NIC that it reaches with more bandwidth. Not judged where the topology has no bus ids and the ranks "
        "do not have all its GPUs, as in a container or a part of a host that Slurm shares: there a rank counts the "
        "GPUs that it sees. Nor where NCCL uses GPUDirect RDMA on a way across host bridges without "
        "NCCL_NET_GDR_LEVEL: the topology is likely of other GPUs."
    ),
    advice=(
        "Let NCCL choose (remove NCCL_IB_HCA), or name the NICs near the GPUs in it; in virtual machines and "
        "containers NCCL may not see the PCIe tree: give it one with NCCL_TOPO_FILE."
    ),
)
RULES = (FAR_NIC,)

# NCCL uses GPUDirect RDMA within PCIe switches, which these change, and C2C.
_NO_GDR: tuple[PathKind, ...] = ("NODE", "SYS")
_GDR_SETTINGS = ("NCCL_NET_GDR_LEVEL", "NCCL_IB_GDR_LEVEL", "NCCL_IB_CUDA_SUPPORT")
_NO_PLACE = "no rank goes through a NIC of which the log and a topology tell the place"
_UNPLACED = (
    "which of the topology's GPUs a rank runs on is not known: it has no bus ids, and a rank counts the GPUs that it "
    "sees; `nvidia-smi -q` beside the matrix has them, and the XML of NCCL_TOPO_DUMP_FILE"
)
_CONTRADICTED = (
    "NCCL uses GPUDirect RDMA where the topology has the NIC far from the GPU: where neither NCCL_NET_GDR_LEVEL nor "
    "C2C lets it, the topology is of other GPUs"
)


@dataclass(frozen=True)
class _Far:
    """A GPU that sends or receives through a far NIC, on whichever host. usable: NCCL could take the near ones, as far
    as known."""

    gpu: str
    does: str
    nic: str
    near: tuple[str, ...]
    path: PathKind
    best: PathKind
    usable: bool


def judge_far_nic(fabric: Fabric, talked: Sequence[Talk]) -> Verdict:
    """TO-P004: a rank sends through a NIC that is farther from its GPU than another one."""
    log = fabric.log
    if log is None:
        return FAR_NIC.not_evaluated(NO_LOG)
    seen = contradicted = unplaced = 0
    job = job_ranks(fabric)
    far: dict[_Far, list[tuple[Talk, Path, Path]]] = defaultdict(list)
    networks: dict[tuple[str | None, int | None], list[Network]] = defaultdict(list)
    for network in log.networks:
        networks[network.host, network.pid].append(network)
    names = {setting.name for setting in log.settings}
    is_chosen = "NCCL_IB_HCA" in names
    for talk in talked:
        if talk.connection.transport != "NET" or is_socket(talk) or talk.at_nic is None:
            continue
        unplaced += talk.nic_machine is not None and bool(talk.nic_machine.nics) and talk.nic_gpu is None
        own = networks[talk.at_nic.host, talk.at_nic.pid]
        for machine, gpu, nic in _ends(own, talk):
            path = machine.path(gpu.label, nic.label)
            near, best = nearest_nics(machine, gpu, nic)
            if path is None or best is None:
                continue
            if talk.connection.gdr and path.kind in _NO_GDR and names.isdisjoint(_GDR_SETTINGS):
                contradicted += 1
                continue
            seen += 1
            if distance(path) > distance(best):
                listed = {name.partition(":")[0] for network in own for _, name in network.devices}
                usable = is_chosen or any(other.name in listed for other in near)
                does = "receives" if talk.connection.of_receiver else "sends"
                key = _Far(gpu.label, does, nic_name(nic), tuple(map(nic_name, near)), path.kind, best.kind, usable)
                far[key].append((talk, path, best))
    findings = [
        FAR_NIC.finding(
            "warning" if one.path == "SYS" and one.usable else "info",
            "high" if one.usable and is_chosen else "medium",
            _far_message(one, hosts_text((t.nic_machine.host for t, *_ in found if t.nic_machine is not None), "of")),
            [
                Evidence("path to the NIC in use", one.path),
                Evidence("path to the nearest NIC", one.best),
                *quoted((talk.connection.quote for talk, *_ in found), "NCCL", 2),
                *quoted((path.quote for path in found[0][1:] if path.quote is not None), "topology", 2),
            ],
            ranks=ranks_in(job, {receiver(t) if t.connection.of_receiver else sender(t) for t, *_ in found}),
        )
        for one, found in far.items()
    ]
    if not findings and not seen:
        return FAR_NIC.not_evaluated(_CONTRADICTED if contradicted else _UNPLACED if unplaced else _NO_PLACE)
    by = f"{seen} connection{'' if seen == 1 else 's'}"
    clear = f"all NICs in use whose place is known (by {by}) are nearest to their GPU"
    return FAR_NIC.verdict(*findings, clear=clear)


def _far_message(one: _Far, hosts: str) -> str:
    unlisted = "" if one.usable else ", but NCCL lists none of them: a port may be down, or not meant for it"
    return (
        f"{one.gpu}{hosts} {one.does} through {one.nic}, which lies {_far(one.path)} from it, while "
        f"{', '.join(one.near[:4])} {'is' if len(one.near) == 1 else 'are'} near ({one.best}){unlisted}."
    )


def _ends(networks: Sequence[Network], talk: Talk) -> list[tuple[Machine, Gpu, Nic]]:
    """The GPU whose process sends or receives and the NIC it uses, where both are known. networks: of that process."""
    gpu, machine = talk.nic_gpu, talk.nic_machine
    if gpu is None or machine is None or talk.connection.device is None:
        return []
    names = {
        name.partition(":")[0]
        for network in networks
        for number, name in network.devices
        if number == talk.connection.device
    }
    return [(machine, gpu, nic) for nic in machine.nics if nic.name in names or nic.label in names][:1]


def _far(path: PathKind) -> str:
    return "across NUMA nodes (SYS)" if path == "SYS" else f"farther ({path})"
