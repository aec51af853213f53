"""TO-P003: sockets in place of the fast network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Severity
from traceops.core.rule import Verdict, described
from traceops.fabric.fabric import Circumstances, Fabric, at_least, hosts_text, quoted
from traceops.fabric.model import Gpu, Machine, Nic, Path, PathKind, is_rdma
from traceops.fabric.nccl import (
    NcclLog,
    Network,
    all_ranks_told,
    asked_for_sockets,
    failed_are_informed,
    has_no_network,
    names_all_nics,
    why_not_told,
)
from traceops.fabric.talks import Talk, distance, job_ranks, members, nearest_nics, nic_name, ranks_in, receiver, sender

SOCKETS = described("fabric", "TO-P003")

RULES = (SOCKETS,)

_OUTSIDE = ("NET", "COLLNET")
_SLOW_NETWORK = "Socket"
_CHOOSING = ("NCCL_SOCKET_IFNAME", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA", "NCCL_SOCKET_FAMILY")
_ONE_DEVICE = (
    "NCCL could not open or query a network device, and without INFO lines of that process (NCCL_DEBUG=INFO) the log "
    "does not tell which others it uses"
)
NO_LOG = "no log of NCCL says which network it uses (NCCL_DEBUG=INFO)"


def judge_sockets(fabric: Fabric, talked: Sequence[Talk], known: Circumstances) -> Verdict:
    """TO-P003: data goes over TCP sockets, or a fast network's plugin did not start."""
    log = fabric.log
    if log is None or not (log.networks or log.communicators or log.plugin_failures):
        return SOCKETS.not_evaluated(NO_LOG)
    over_sockets = [talk for talk in talked if is_socket(talk)]
    fast = [nic for machine in fabric.machines for nic in machine.nics if _is_fast(nic)]
    asked_for = asked_for_sockets(log)
    nothing_faster = not fast and any(names_all_nics(machine, log) for machine in fabric.machines)
    evidence = [
        *quoted(log.plugin_failures, Fact.NCCL),
        *quoted((setting.quote for setting in asked_for), Fact.NCCL),
        *quoted((talk.connection.quote for talk in over_sockets), Fact.NCCL, 2),
    ]
    if not over_sockets and not log.plugin_failures:
        networks = sorted({network.plugin for network in log.networks})
        used = sorted({talk.way for talk in talked if talk.connection.transport in _OUTSIDE})
        if unknown := why_not_told(log):
            return SOCKETS.not_evaluated(unknown)
        return SOCKETS.clear(_clear(networks, used, bool(log.communicators)))
    between = [talk for talk in over_sockets if not talk.inside]
    pairs = len({members(talk) for talk in over_sockets})
    if pairs:
        evidence.insert(0, Evidence(Fact.PAIRS_OF_RANKS_OVER_SOCKETS, pairs))
    severity: Severity
    connected = any(communicator.connections for communicator in log.communicators)
    if not (over_sockets or connected or log.networks or failed_are_informed(log)) and _only_devices(log):
        return SOCKETS.not_evaluated(_ONE_DEVICE)
    if log.plugin_failures and not connected and log.networks:
        severity = "warning"
        instead = ", ".join(sorted({network.plugin for network in log.networks}))
        message = f"A network's plugin did not start; NCCL uses the network {instead} in its place."
    elif log.plugin_failures and not connected and not has_no_network(log):
        severity = "warning" if failed_are_informed(log) else "info"
        message = _what_instead(log)
    elif log.plugin_failures and not connected:
        severity = "error"
        message = f"NCCL's network did not start, and no connection was made{_by_settings(log)}."
    elif log.plugin_failures:
        severity = "error" if between else "warning" if over_sockets else "info"
        others = sorted({talk.way for talk in talked if talk.connection.transport == "NET"})
        so = (
            "; no rank needed the network in this run."
            if all_ranks_told(log)
            else "; the log does not tell of all ranks' connections, and none that it has is over the network."
        )
        if over_sockets:
            so = ", and NCCL fell back to sockets."
        elif others:
            so = f"; NCCL goes over {', '.join(others)} in its place."
        message = f"A network's plugin did not start{so}"
    elif between and (faster := _faster_beside(talked, between)):
        severity = at_least("warning", known.slow)
        message = (
            f"Some ranks go over TCP sockets between hosts and others of their communicator over {', '.join(faster)}: "
            "where the sockets are, a plugin, driver or device is missing."
        )
    elif between and (fast or (asked_for and not nothing_faster)):
        severity = at_least("warning", known.slow)
        have = f" though there {'is' if len(fast) == 1 else 'are'} {', '.join(map(nic_name, fast[:4]))}" if fast else ""
        message = f"NCCL goes over TCP sockets between hosts{have}."
    elif between:
        severity = "info"  # however slow: nothing better is known of, and TO-C001 tells what it costs
        message = (
            "NCCL goes over TCP sockets between hosts, and their topology names no faster network."
            if nothing_faster
            else "NCCL goes over TCP sockets between hosts; nothing in its log tells of a faster network. If these "
            "hosts have InfiniBand, RoCE or EFA, its plugin or drivers are missing where the ranks run."
        )
    else:
        severity = at_least("warning", known.slow)
        message = "NCCL sends over TCP sockets between GPUs of one host, the slowest way there is."
    if between and len(between) < len(over_sockets):
        severity = at_least("warning", severity)
        message += " GPUs of one host use them too, which is the slowest way there is."
    if asked_for:
        message += f" {' and '.join(f'{s.name} was set to {s.value}' for s in asked_for)}."
    return SOCKETS.verdict(
        SOCKETS.finding(
            severity,
            "medium" if severity == "info" else "high",
            message,
            [*evidence, *(known.saved if over_sockets and severity != "info" else ())],
            ranks=ranks_in(job_ranks(fabric), (end for talk in over_sockets for end in members(talk))),
            impact_ms=known.lost_ms if over_sockets and severity != "info" else None,
        )
    )


def _what_instead(log: NcclLog) -> str:
    if failed_are_informed(log):
        return (
            "A network's plugin did not start, and the log ends before it names another network: NCCL normally goes on "
            "over sockets."
        )
    return (
        "A network's plugin is absent or does not suit this machine. NCCL normally goes on over sockets then; this log "
        "has no INFO lines of that process, so it cannot tell: NCCL_DEBUG=INFO would say which network is in use."
    )


def _only_devices(log: NcclLog) -> bool:
    """Whether all that failed are single devices of a network, beside which others may work."""
    return {event.kind for event in log.network_events if event.failed} == {"device_failed"}


def _by_settings(log: NcclLog) -> str:
    """The settings that choose a network, where one was to be chosen and is not there."""
    chosen = {s.name: s.value for s in log.settings if s.name in _CHOOSING}
    if not any(event.kind in ("no_interface", "no_network", "plugin_missing") for event in log.network_events):
        return ""
    return "".join(f"; {name} was set to {value}" for name, value in chosen.items())


def _faster_beside(talked: Sequence[Talk], over_sockets: Sequence[Talk]) -> list[str]:
    """Ways to other hosts, faster than sockets, that ranks of the same communicators take."""
    mixed = {id(talk.communicator) for talk in over_sockets}
    return sorted(
        {
            talk.way
            for talk in talked
            if talk.connection.transport == "NET"
            and not talk.inside
            and not is_socket(talk)
            and id(talk.communicator) in mixed
        }
    )


def is_socket(talk: Talk) -> bool:
    return talk.connection.transport == "NET" and talk.connection.detail.startswith(_SLOW_NETWORK)


def _is_fast(nic: Nic) -> bool:
    return is_rdma(nic) and nic.up is not False


def _clear(networks: Sequence[str], used: Sequence[str], talked: bool) -> str:
    if used:
        return f"between ranks NCCL goes over {', '.join(used)}"
    if talked:
        return "no rank sends over the network"
    return f"the network is {', '.join(networks)}; no connection over sockets is in the log"


# TO-P004: NICs far from the GPU that sends or receives through them.


FAR_NIC = described("fabric", "TO-P004")
FAR_NIC_RULES = (FAR_NIC,)

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


class _Far(Struct, frozen=True):
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
                Evidence(Fact.PATH_TO_THE_NIC_IN_USE, one.path),
                Evidence(Fact.PATH_TO_THE_NEAREST_NIC, one.best),
                *quoted((talk.connection.quote for talk, *_ in found), Fact.NCCL, 2),
                *quoted((path.quote for path in found[0][1:] if path.quote is not None), Fact.TOPOLOGY, 2),
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
