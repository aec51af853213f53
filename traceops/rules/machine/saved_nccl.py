"""What the log of NCCL or RCCL says that rules of a machine judge: IOMMU, NUMA balancing, GPUDirect RDMA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from traceops.fabric.fabric import Fabric
from traceops.fabric.host_names import same_host
from traceops.fabric.nccl import NcclLog
from traceops.machine.look import Look
from traceops.rules.machine.cpus import balancing_look
from traceops.rules.machine.gpudirect import judge_gdr_told
from traceops.rules.machine.judge import AREAS
from traceops.rules.machine.platform import judge_iommu_warning

_LINKS = ("NV", "XGMI")
_WHY = "NCCL's log tells of other things only"


def judge_log(fabric: Fabric, others: Sequence[Look]) -> list[Look]:
    """A look for each thing that the log tells of a host, and for the rest of their areas, that it does not.

    others: what other files told; what they judged is not judged again.
    """
    if fabric.log is None:
        return []
    told = [look for look in (*_warnings(fabric, fabric.log), *_gpudirect(fabric, fabric.log)) if _is_new(look, others)]
    return [*told, *_untold(told, others)]


def _is_new(look: Look, others: Sequence[Look]) -> bool:
    return not any(one.rule == look.rule and one.level != "not_evaluated" for one in others)


def _warnings(fabric: Fabric, log: NcclLog) -> list[Look]:
    """By RCCL's own warnings; one GPU reaches no other, whatever the IOMMU does."""
    looks = []
    for remark in log.host_remarks:
        host = remark.host or log.files[0]
        if remark.kind == "numa_balancing":
            looks.append(balancing_look(host))
        elif _gpus_of(log, remark.host) != 1:
            looks.append(judge_iommu_warning(_all_linked(fabric, remark.host), host))
    return looks


def _gpus_of(log: NcclLog, host: str) -> int:
    """How many GPUs of a host the log's communicators use; 0 where it does not tell."""
    return len(
        {
            place.bus_id or (place.pid, place.cuda_device)
            for one in log.communicators
            for place in one.places.values()
            if place.host == host
        }
    )


def _all_linked(fabric: Fabric, host: str) -> bool:
    """Whether NVLink or XGMI joins each pair of its GPUs, where a topology tells."""
    for machine in fabric.machines:
        if same_host(machine.host, host) or (machine.host is None and len(fabric.machines) == 1):
            paths = [machine.path(one.label, other.label) for one, other in combinations(machine.gpus, 2)]
            return bool(paths) and all(path is not None and path.kind in _LINKS for path in paths)
    return False


def _gpudirect(fabric: Fabric, log: NcclLog) -> list[Look]:
    """Of each host once: all its processes see the same cards."""
    devices: dict[tuple[str, str], dict[str, bool]] = {}
    for network in log.networks:
        own = devices.setdefault((network.host, network.plugin), {})
        for name, on in network.gdr.items():
            own[name] = own.get(name, True) and on
    looks = (
        judge_gdr_told(plugin, told, _names(fabric, host), host or log.files[0])
        for (host, plugin), told in devices.items()
    )
    return [look for look in looks if look is not None]


def _names(fabric: Fabric, host: str) -> list[str]:
    """Models of a host's GPUs, as far as topologies and nccl-tests tell."""
    names = [
        gpu.name for machine in fabric.machines if same_host(machine.host, host) for gpu in machine.gpus if gpu.name
    ]
    names += [rank.gpu for one in fabric.benchmarks for rank in one.ranks if same_host(rank.host, host)]
    return list(dict.fromkeys(names))


def _untold(told: Sequence[Look], others: Sequence[Look]) -> list[Look]:
    """Rules of the same areas of which nothing tells: a look in their area must not clear them."""
    first: Mapping[str, Look] = {look.area: look for look in reversed(told)}
    judged = {look.rule for look in (*told, *others)}
    seen = {look.area for look in others}
    return [
        Look(first[area].host, area, rule.title, "not known", "not_evaluated", _WHY, rule=rule.id)
        for area, rules in AREAS
        if area in first and area not in seen
        for rule in rules
        if rule.id not in judged
    ]
