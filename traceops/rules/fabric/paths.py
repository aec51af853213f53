"""TO-P001: pairs of GPUs that are far apart."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from traceops.across.links import link_by_name
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Severity
from traceops.core.rule import Verdict, described
from traceops.fabric.fabric import Circumstances, Fabric, at_least, hosts_text, quoted
from traceops.fabric.model import Gpu, Machine, Path
from traceops.fabric.nccl import NcclLog, NcclSetting
from traceops.fabric.talks import Talk, gpu_pairs, job_ranks, members, nearest_nics, nic_name, ranks_in

ACROSS_NUMA_NODES = described("fabric", "TO-P001")

RULES = (ACROSS_NUMA_NODES,)

_EXPOSED_PCT = 20.0  # of the step: from there on a slow path is more than information
_MOST_PAIRS = 6


# What machines share that are one finding: how severe, the pairs, what is to say, and, if it was measured, the host.
_Across = tuple[Severity, str, str, str | None]


def judge_across_nodes(fabric: Fabric, talked: Sequence[Talk], known: Circumstances) -> Verdict:
    """TO-P001: GPUs that reach each other only across NUMA nodes."""
    of_machine: dict[int, list[Talk]] = defaultdict(list)
    for talk in talked:
        of_machine[id(talk.machine)].append(talk)
    job = job_ranks(fabric)
    logged = any(one.connections for one in (fabric.log.communicators if fabric.log is not None else ()))
    alike: dict[_Across, list[tuple[Machine, list[Evidence], list[Talk]]]] = defaultdict(list)
    judged = 0
    for machine in fabric.machines:
        own = of_machine[id(machine)]
        used = _used(machine, own)
        pairs = list(gpu_pairs(machine, used))
        judged += len(pairs)
        across = [(one, other, path) for one, other, path in pairs if path.kind == "SYS"]
        if not across:
            continue
        between = [talk for talk in own if _is_one_of(talk, across)]
        severity, why = _weight(known, between)
        given, nearer = _measured(known, machine, across), _measured(known, machine, pairs, "SYS")
        if given is not None and nearer is not None and 2 * given < nearer:
            severity = at_least(severity, "warning")
        ways = _ways(between, by_others=_are_joined(pairs, across), hung=known.hung, logged=logged)
        message = (
            f"reach each other only through PCIe and the link between the processors (SYS{_nodes(across)}), the "
            f"slowest path inside a host{why}. {ways}"
        )
        evidence = [
            Evidence(Fact.PAIRS_OF_GPUS_ACROSS_NUMA_NODES, len(across), f"of {len(pairs)}"),
            *quoted((path.quote for *_, path in across if path.quote is not None), Fact.TOPOLOGY),
            *quoted((talk.connection.quote for talk in between), Fact.NCCL),
        ]
        evidence += _nics(machine, used)
        if given is not None:
            evidence.append(Evidence(Fact.SLOWEST_PAIR_ACROSS_NODES, round(given, 2), "GB/s"))
        if nearer is not None:
            evidence.append(Evidence(Fact.SLOWEST_NEARER_PAIR, round(nearer, 2), "GB/s"))
        if known.exposed_pct is not None:
            evidence.append(
                Evidence(Fact.EXPOSED_TRANSFER, round(known.exposed_pct, 1), f"% of {known.words.the}", _EXPOSED_PCT)
            )
        measured = None if given is None else machine.host
        alike[severity, _listed(across), message, measured].append((machine, evidence, between))
    findings = [
        ACROSS_NUMA_NODES.finding(
            severity,
            "high" if severity == "info" else "medium",
            f"{listed}{hosts_text((machine.host for machine, *_ in found), 'on')} {message}",
            found[0][1],
            ranks=ranks_in(job, {end for *_, between in found for talk in between for end in members(talk)}),
        )
        for (severity, listed, message, _), found in alike.items()
    ]
    if not findings and not judged:
        return ACROSS_NUMA_NODES.not_evaluated("the paths between GPUs of one host are not known")
    return ACROSS_NUMA_NODES.verdict(*findings, clear=f"none of {judged} pairs of GPUs lies across NUMA nodes")


def _weight(known: Circumstances, between: Sequence[Talk]) -> tuple[Severity, str]:
    """Far apart alone is information; with a hang that P2P explains or with time lost it is more."""
    if known.hung and (not between or any(talk.connection.transport == "P2P" for talk in between)):
        return (
            "warning",
            "; ranks hang in a collective, as they do where the driver promises P2P that is broken: try "
            "NCCL_P2P_DISABLE=1",
        )
    if known.slow or (known.exposed_pct or 0.0) >= _EXPOSED_PCT:
        return "warning", "; and communication holds this run up"
    return "info", ": slower than between GPUs of one node, and no sign of a fault by itself"


def _measured(
    known: Circumstances, machine: Machine, pairs: Sequence[tuple[Gpu, Gpu, Path]], leave_out: str = ""
) -> float | None:
    """The slowest of the pairs as measured, GB/s, without those of one kind; None where none was measured."""
    wanted = {frozenset((one.index, other.index)) for one, other, path in pairs if path.kind != leave_out}
    rows = (row for row in known.measured if row.op == "send_recv" and row.host in (None, machine.host))
    return min((row.busbw_gbs for row in rows if frozenset(row.gpus) in wanted), default=None)


def _used(machine: Machine, own: Sequence[Talk]) -> list[Gpu]:
    """The GPUs that ranks of the log run on, all of the machine where no log says it."""
    seen = [gpu for talk in own for gpu in talk.gpus if gpu is not None]
    return sorted(set(seen), key=lambda gpu: gpu.index) or list(machine.gpus)


def _is_one_of(talk: Talk, pairs: Sequence[tuple[Gpu, Gpu, Path]]) -> bool:
    return any({one, other} == set(talk.gpus) for one, other, _ in pairs)


def _are_joined(pairs: Sequence[tuple[Gpu, Gpu, Path]], across: Sequence[tuple[Gpu, Gpu, Path]]) -> bool:
    """Whether links of other GPUs lead from one GPU to the other of every pair across nodes."""
    group = {gpu: {gpu} for one, other, _ in pairs for gpu in (one, other)}
    for one, other, path in pairs:
        if path.kind in ("NV", "XGMI") and group[one] is not group[other]:
            group[one] |= group[other]
            for gpu in group[other]:
                group[gpu] = group[one]
    return all(other in group[one] for one, other, _ in across)


def _ways(between: Sequence[Talk], *, by_others: bool, hung: bool, logged: bool) -> str:
    """Which way NCCL took, and which it could take. by_others: links of other GPUs join these.

    hung: ranks hang, and the other way is advised for that. logged: NCCL's log tells of connections.
    """
    if not between and by_others:
        return "Links of other GPUs join them, though, and NCCL takes a ring over those where there is one."
    if not between and logged:
        return "NCCL's log does not tell which way it takes between these."
    if not between:
        return "NCCL's log (NCCL_DEBUG=INFO) would say which way it takes."
    took = sorted({talk.way for talk in between})
    could = {
        "P2P": "through host memory (NCCL_P2P_DISABLE=1) may be faster",
        "SHM": "P2P through both processors (NCCL_P2P_LEVEL=SYS) may be faster, if the driver allows it",
        "NET": "it could go through host memory (SHM), which needs room in /dev/shm and ranks that share IPC",
    }
    transport = between[0].connection.transport
    if hung and transport == "P2P":
        return f"NCCL took {', '.join(took)}."
    return f"NCCL took {', '.join(took)}; {could.get(transport, 'nothing faster is known')}."


def _nics(machine: Machine, used: Sequence[Gpu]) -> list[Evidence]:
    """Which NICs are near which GPU: what a way over the network would take."""
    near = [(gpu, *nearest_nics(machine, gpu)) for gpu in used[:_MOST_PAIRS]]
    told = [
        Evidence(Fact.NEAREST_NICS, f"{', '.join(map(nic_name, nics))} ({path.kind})", subject=gpu.label)
        for gpu, nics, path in near
        if path is not None
    ]
    bonded = [nic for _, nics, _ in near for nic in nics if nic.bonded]
    return [*told, *([Evidence(Fact.A_BONDED_NIC, "one device for NCCL, near one node")] if bonded else [])]


def _listed(pairs: Sequence[tuple[Gpu, Gpu, Path]]) -> str:
    """'GPU0 and GPU1', or 'Pairs of GPU0, GPU1 with GPU2, GPU3' where these are all pairs between the two sides."""
    near = dict.fromkeys(one.label for one, _, _ in pairs)
    far = dict.fromkeys(other.label for _, other, _ in pairs)
    if len(pairs) > 1 and near.keys().isdisjoint(far) and len(pairs) == len(near) * len(far):
        return f"Pairs of {', '.join(near)} with {', '.join(far)}"
    more = f" and {len(pairs) - _MOST_PAIRS} more pairs" if len(pairs) > _MOST_PAIRS else ""
    return "; ".join(f"{one.label} and {other.label}" for one, other, _ in pairs[:_MOST_PAIRS]) + more


def _nodes(pairs: Sequence[tuple[Gpu, Gpu, Path]]) -> str:
    nodes = sorted({gpu.numa for one, other, _ in pairs for gpu in (one, other) if gpu.numa is not None})
    return f", NUMA nodes {', '.join(map(str, nodes))}" if len(nodes) > 1 else ""


# TO-P002: GPUs that are near each other and do not use their link.


UNUSED_LINKS = described("fabric", "TO-P002")
UNUSED_LINKS_RULES = (UNUSED_LINKS,)

_SWITCHED_OFF = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
_NEAR = ("PIX", "PXB")  # NCCL uses P2P over PCIe up to here by default [NCCL, paths.cc]


def judge_unused_links(fabric: Fabric, talked: Sequence[Talk], known: Circumstances) -> Verdict:
    """TO-P002: GPUs of one host that talk through host memory or the network though P2P is there."""
    inside = [talk for talk in talked if talk.inside]
    if not inside:
        return UNUSED_LINKS.not_evaluated(
            "no log of NCCL says which way GPUs of one host talk (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH)"
        )
    assert fabric.log is not None
    reasons: dict[str, list[Talk]] = defaultdict(list)
    off = [setting.name for setting in _switched_off(fabric.log)]
    for talk in inside:
        if talk.connection.transport in ("SHM", "NET"):
            reason = _lost_link(talk, known.device, off, bool(fabric.log.p2p_disabled))
            if reason:
                reasons[reason].append(talk)
    findings = []
    for reason, missed in reasons.items():
        has_links = reason.startswith(("NVLink", "XGMI"))
        settings = _switched_off(fabric.log, over_pcie=not has_links)
        ways = sorted({talk.way for talk in missed})
        pairs = {members(talk) for talk in missed}
        through = "the network" if all(t.connection.transport == "NET" for t in missed) else "host memory"
        if len({talk.connection.transport for talk in missed}) > 1:
            through = "host memory and the network"
        because = (
            f" The log says that {' and '.join(f'{s.name} was set to {s.value}' for s in settings)}."
            if settings
            else " NCCL found that they cannot reach each other directly: look at the driver, at `nvidia-smi nvlink "
            "-s` and `nvidia-smi topo -p2p r`, and for virtual machines that get single GPUs."
            if fabric.log.p2p_disabled
            else " No variable in the log switches P2P off: look for isolated containers (each rank must see all "
            "GPUs' devices and share IPC), IOMMU or ACS, and a driver without P2P."
        )
        evidence = [
            Evidence(Fact.PAIRS_OF_RANKS_WITHOUT_P2P, len(pairs), f"of {len({members(talk) for talk in inside})}"),
            *quoted((talk.connection.quote for talk in missed), Fact.NCCL),
            *quoted((setting.quote for setting in settings), Fact.NCCL),
            *quoted(fabric.log.p2p_disabled, Fact.NCCL, 2),
            *quoted(
                (t.path.quote for t in missed if t.path is not None and t.path.quote is not None), Fact.TOPOLOGY, 1
            ),
        ]
        certain = has_links or bool(settings)
        evidence += known.saved if certain else ()
        findings.append(
            UNUSED_LINKS.finding(
                at_least("warning", known.slow) if certain else "info",
                "high" if certain else "medium",
                f"GPUs of one host talk through {through} ({', '.join(ways)}) though {reason}.{because}",
                evidence,
                ranks=ranks_in(job_ranks(fabric), (end for talk in missed for end in members(talk))),
                impact_ms=known.lost_ms if certain else None,
            )
        )
    used = sorted({talk.way for talk in inside})
    return UNUSED_LINKS.verdict(*findings, clear=f"GPUs of one host talk by {', '.join(used)}")


def _lost_link(talk: Talk, device: str | None, switched_off: Sequence[str], no_p2p: bool) -> str:
    """What the pair has and does not use; empty where nothing says that it has anything better.

    no_p2p: NCCL says that GPUs cannot reach each other directly; over PCIe that is how many kinds are made.
    """
    path = talk.path
    if path is not None and path.kind in ("NV", "XGMI"):
        return "XGMI connects them" if path.kind == "XGMI" else "NVLink connects them"
    name = next((gpu.name for gpu in talk.gpus if gpu is not None and gpu.name), None) or device
    if path is None and name is not None and (known := link_by_name(name)) is not None:
        return f"NVLink connects GPUs of this kind ({name}: {known.link})"
    if path is not None and path.kind in _NEAR and not no_p2p:
        return f"they hang at the same PCIe switches ({path.kind}), near enough for P2P"
    if path is None and not no_p2p and any(name.startswith("NCCL_P2P") for name in switched_off):
        return "nothing says that P2P would not work: it was switched off"
    if talk.connection.transport == "NET" and "NCCL_SHM_DISABLE" in switched_off:
        return "host memory is faster: it was switched off"
    return ""


def _switched_off(log: NcclLog, *, over_pcie: bool = False) -> list[NcclSetting]:
    """The settings that keep GPUs from P2P or host memory; over_pcie: also those that leave NVLink alone."""
    levels = ("LOC", "0", "NVL") if over_pcie else ("LOC", "0")
    found: dict[str, NcclSetting] = {}
    for setting in log.settings:
        level = setting.name == "NCCL_P2P_LEVEL" and setting.value.strip().upper() not in levels
        off = re.match(r"\s*0", setting.value) is not None and setting.name != "NCCL_P2P_LEVEL"
        if setting.name in _SWITCHED_OFF and not level and not off:
            found.setdefault(setting.name, setting)
    return list(found.values())
