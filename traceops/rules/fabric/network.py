"""TO-P003 and TO-P004: sockets in place of the fast network, and NICs far from their GPUs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, Severity
from traceops.core.rule import Verdict, described
from traceops.fabric import nccl
from traceops.fabric.fabric import Circumstances, Fabric, at_least, hosts_text, quoted
from traceops.fabric.model import Gpu, Machine, Nic, Path, PathKind, is_rdma
from traceops.fabric.talks import Talk, distance, job_ranks, members, nearest_nics, nic_name, ranks_in, receiver, sender
from traceops.rules.fabric.claims import FarNic, Sockets
from traceops.rules.fabric.graph import set_to

SOCKETS = described("fabric", "TO-P003")
FAR_NIC = described("fabric", "TO-P004")
_OUTSIDE = ("NET", "COLLNET")
_SLOW_NETWORK = "Socket"
_CHOOSING = ("NCCL_SOCKET_IFNAME", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA", "NCCL_SOCKET_FAMILY")


class _Seen(Struct, frozen=True):
    """What a log and the topologies show of the network. between: talks over sockets that leave their host. fast:
    devices of faster networks. asked_for: settings that ask for sockets. nothing_faster: a topology names all networks
    of a host, and none is faster."""

    log: nccl.NcclLog
    talked: Sequence[Talk]
    over_sockets: Sequence[Talk]
    between: Sequence[Talk]
    fast: Sequence[Nic]
    asked_for: Sequence[nccl.NcclSetting]
    nothing_faster: bool

    @property
    def connected(self) -> bool:
        return any(communicator.connections for communicator in self.log.communicators)


def judge_sockets(fabric: Fabric, talked: Sequence[Talk], known: Circumstances) -> Verdict:
    """TO-P003: data goes over TCP sockets, or a fast network's plugin did not start."""
    if (log := fabric.log) is None or not (log.networks or log.communicators or log.plugin_failures):
        return SOCKETS.not_evaluated(reason("fabric", "no_log"))
    seen = _seen(fabric, log, talked)
    over_sockets = seen.over_sockets
    if not over_sockets and not log.plugin_failures:
        unknown = nccl.why_not_told(log)
        return SOCKETS.not_evaluated(unknown) if unknown else SOCKETS.clear(_clear(log, talked))
    # Single devices of a network failed, beside which others may work
    only_devices = {event.kind for event in log.network_events if event.failed} == {"device_failed"}
    if not (over_sockets or seen.connected or log.networks or nccl.failed_are_informed(log)) and only_devices:
        return SOCKETS.not_evaluated(reason("fabric", "one_device"))
    return SOCKETS.verdict(_finding(fabric, seen, known))


def _seen(fabric: Fabric, log: nccl.NcclLog, talked: Sequence[Talk]) -> _Seen:
    over_sockets = [talk for talk in talked if is_socket(talk)]
    between = [talk for talk in over_sockets if not talk.inside]
    fast = [nic for machine in fabric.machines for nic in machine.nics if (is_rdma(nic) and nic.up is not False)]
    nothing_faster = not fast and any(nccl.names_all_nics(machine, log) for machine in fabric.machines)
    return _Seen(log, talked, over_sockets, between, fast, nccl.asked_for_sockets(log), nothing_faster)


def _finding(fabric: Fabric, seen: _Seen, known: Circumstances) -> Finding:
    log, over_sockets = seen.log, seen.over_sockets
    severity, claim = _without_plugin(seen) if log.plugin_failures else _over_sockets(seen, known.slow)
    inside_too = bool(seen.between) and len(seen.between) < len(over_sockets)
    if inside_too:
        severity = at_least("warning", severity)
    claim = replace(claim, inside_too=inside_too, settings=(*claim.settings, *set_to(seen.asked_for)))
    pairs = len({members(talk) for talk in over_sockets})
    evidence = [
        *([Evidence(Fact.PAIRS_OF_RANKS_OVER_SOCKETS, pairs)] if pairs else []),
        *quoted(log.plugin_failures, Fact.NCCL),
        *quoted((setting.quote for setting in seen.asked_for), Fact.NCCL),
        *quoted((talk.connection.quote for talk in over_sockets), Fact.NCCL, 2),
    ]
    ranks = ranks_in(job_ranks(fabric), (end for talk in over_sockets for end in members(talk)))
    if severity == "info":
        return SOCKETS.finding(severity, "medium", claim, evidence, ranks=ranks)
    impact = known.lost_ms if over_sockets else None
    evidence += known.saved if over_sockets else ()
    return SOCKETS.finding(severity, "high", claim, evidence, ranks=ranks, impact_ms=impact)


def _without_plugin(seen: _Seen) -> tuple[Severity, Sockets]:
    """A network's plugin did not start: with what NCCL goes on, as far as the log shows."""
    log = seen.log
    if not seen.connected and log.networks:
        return "warning", Sockets(case="in_its_place", ways=tuple(sorted({network.plugin for network in log.networks})))
    if not seen.connected and nccl.has_no_network(log):
        # The settings that choose a network, where one was to be chosen and is not there
        chosen = {one.name: one for one in log.settings if one.name in _CHOOSING}
        absent = any(event.kind in ("no_interface", "no_network", "plugin_missing") for event in log.network_events)
        return "error", Sockets(case="not_started", settings=set_to([*chosen.values()]) if absent else ())
    if not seen.connected:
        if nccl.failed_are_informed(log):
            return "warning", Sockets(case="log_ends", remark="goes_on")
        return "info", Sockets(case="not_informed", remark="not_informed")
    if seen.over_sockets:
        return "error" if seen.between else "warning", Sockets(case="fell_back")
    if others := tuple(sorted({talk.way for talk in seen.talked if talk.connection.transport == "NET"})):
        return "info", Sockets(case="in_its_place", ways=others)
    if nccl.all_ranks_told(log):
        return "info", Sockets(case="not_needed")
    return "info", Sockets(case="not_logged", remark="part_of_ranks")


def _over_sockets(seen: _Seen, slow: Severity | None) -> tuple[Severity, Sockets]:
    """Data goes over sockets, and nothing failed: whether there is a faster way."""
    severity = at_least("warning", slow)
    if not seen.between:
        return severity, Sockets(case="inside")
    # Ways to other hosts, faster than sockets, that ranks of the same communicators take
    mixed = {id(talk.communicator) for talk in seen.between}
    if ways := sorted(
        {
            talk.way
            for talk in seen.talked
            if talk.connection.transport == "NET"
            and not talk.inside
            and not is_socket(talk)
            and id(talk.communicator) in mixed
        }
    ):
        return severity, Sockets(case="mixed", remark="missing_there", ways=tuple(ways))
    if seen.fast:
        return severity, Sockets(case="beside_faster", faster=tuple(map(nic_name, seen.fast[:4])))
    if seen.asked_for and not seen.nothing_faster:
        return severity, Sockets(case="between_hosts")
    # This is information, however slow: nothing better is known, and TO-C001 shows what it costs.
    if seen.nothing_faster:
        return "info", Sockets(case="nothing_faster", remark="by_topology")
    return "info", Sockets(case="between_hosts", remark="unknown")


def is_socket(talk: Talk) -> bool:
    return talk.connection.transport == "NET" and talk.connection.detail.startswith(_SLOW_NETWORK)


def _clear(log: nccl.NcclLog, talked: Sequence[Talk]) -> str:
    if used := sorted({talk.way for talk in talked if talk.connection.transport in _OUTSIDE}):
        return reason("fabric", "networks_used", ways=used)
    if log.communicators:
        return reason("fabric", "no_network_used")
    return reason("fabric", "network_named", networks=sorted({network.plugin for network in log.networks}))


# TO-P004: NICs far from the GPU that sends or receives through them.

_CHOICE = "NCCL_IB_HCA"

# NCCL uses GPUDirect RDMA within PCIe switches, which these change, and C2C.
_NO_GDR: tuple[PathKind, ...] = ("NODE", "SYS")
_GDR_SETTINGS = ("NCCL_NET_GDR_LEVEL", "NCCL_IB_GDR_LEVEL", "NCCL_IB_CUDA_SUPPORT")


class _Far(Struct, frozen=True):
    """One end of a talk at a far NIC: what it is, and the paths to that NIC and to the nearest ones."""

    claim: FarNic
    talk: Talk
    path: Path
    best: Path


def judge_far_nic(fabric: Fabric, talked: Sequence[Talk]) -> Verdict:
    """TO-P004: a rank sends through a NIC that is farther from its GPU than another one."""
    if (log := fabric.log) is None:
        return FAR_NIC.not_evaluated(reason("fabric", "no_log"))
    names = {setting.name for setting in log.settings}
    count: Counter[str] = Counter()
    alike: dict[FarNic, list[_Far]] = defaultdict(list)
    for far in _far_ends(log, talked, names, count):
        alike[far.claim].append(far)
    if not alike and not count["seen"]:
        key = "nic_contradicted" if count["contradicted"] else "nic_unplaced" if count["unplaced"] else "no_nic"
        return FAR_NIC.not_evaluated(reason("fabric", key))
    job = job_ranks(fabric)
    findings = [_far_finding(claim, found, job, chosen=_CHOICE in names) for claim, found in alike.items()]
    return FAR_NIC.verdict(*findings, clear=reason("fabric", "nics_near", count=count["seen"]))


def _far_ends(log: nccl.NcclLog, talked: Sequence[Talk], names: set[str], count: Counter[str]) -> Iterator[_Far]:
    """Ends of talks whose NIC is farther from the GPU than another one. names: of settings in the log. count: how many
    NICs are `seen`, `unplaced`, and `contradicted` by how NCCL uses them."""
    networks: dict[tuple[str | None, int | None], list[nccl.Network]] = defaultdict(list)
    for network in log.networks:
        networks[network.host, network.pid].append(network)
    for talk in talked:
        if talk.connection.transport != "NET" or is_socket(talk) or talk.at_nic is None:
            continue
        count["unplaced"] += talk.nic_machine is not None and bool(talk.nic_machine.nics) and talk.nic_gpu is None
        own = networks[talk.at_nic.host, talk.at_nic.pid]
        for machine, gpu, nic in _ends(own, talk):
            path = machine.path(gpu.label, nic.label)
            near, best = nearest_nics(machine, gpu, nic)
            if path is None or best is None:
                continue
            if talk.connection.gdr and path.kind in _NO_GDR and names.isdisjoint(_GDR_SETTINGS):
                count["contradicted"] += 1
                continue
            count["seen"] += 1
            if distance(path) > distance(best):
                listed = {name.partition(":")[0] for network in own for _, name in network.devices}
                claim = FarNic(
                    gpu=gpu.label,
                    does="receives" if talk.connection.of_receiver else "sends",
                    nic=nic_name(nic),
                    near=tuple(map(nic_name, near[:4])),
                    path=path.kind,
                    across=path.kind == "SYS",
                    best=best.kind,
                    usable=_CHOICE in names or any(other.name in listed for other in near),
                )
                yield _Far(claim, talk, path, best)


def _far_finding(claim: FarNic, found: Sequence[_Far], job: Mapping[Hashable, int], *, chosen: bool) -> Finding:
    """A far NIC, on whichever hosts. chosen: a setting names the NICs that NCCL may take."""
    talks = [one.talk for one in found]
    hosts = hosts_text((talk.nic_machine.host for talk in talks if talk.nic_machine is not None), "").strip()
    evidence = [
        Evidence(Fact.PATH_TO_THE_NIC_IN_USE, claim.path),
        Evidence(Fact.PATH_TO_THE_NEAREST_NIC, claim.best),
        *quoted((talk.connection.quote for talk in talks), Fact.NCCL, 2),
        *quoted((own.quote for own in (found[0].path, found[0].best) if own.quote is not None), Fact.TOPOLOGY, 2),
    ]
    ranks = ranks_in(job, {receiver(one) if one.connection.of_receiver else sender(one) for one in talks})
    severity: Severity = "warning" if claim.path == "SYS" and claim.usable else "info"
    confidence: Confidence = "high" if claim.usable and chosen else "medium"
    return FAR_NIC.finding(severity, confidence, replace(claim, hosts=hosts or None), evidence, ranks=ranks)


def _ends(networks: Sequence[nccl.Network], talk: Talk) -> list[tuple[Machine, Gpu, Nic]]:
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
