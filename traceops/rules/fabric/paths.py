"""TO-P001, TO-P002 and TO-P005: GPUs that are far apart, links that are not used, and links that are narrow."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct

from traceops.across.links import link_by_name
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, Severity
from traceops.core.rule import Verdict, described
from traceops.fabric.fabric import Circumstances, Fabric, at_least, hosts_text, quoted
from traceops.fabric.model import Gpu, Machine, Nic, Path, Quote, is_rdma
from traceops.fabric.nccl import NcclLog, NcclSetting
from traceops.fabric.talks import Talk, distance, gpu_pairs, job_ranks, members, nearest_nics, nic_name, ranks_in

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


NARROW_LINK = described("fabric", "TO-P005")
WIDTHS_RULES = (NARROW_LINK,)


class _Width(Struct, frozen=True):
    """One number of one device: more is better. most: that device and slot allow, where that is known."""

    device: str
    kind: Hashable  # devices of one kind are siblings
    value: float
    quotes: tuple[Quote, ...] = ()
    most: float | None = None


# Of one GPU [NVIDIA's data sheets up to NVLink 5]. More than that in a matrix's row are those of a switch, which
# every path to another GPU counts again.
_MOST_NVLINKS = 18
_MESHES = (4, 8)  # GPUs of a whole mesh: of some of them only, the links differ by design


def judge_widths(fabric: Fabric) -> Verdict:
    """TO-P005, machine by machine; siblings are devices of the same name on the same host."""
    findings: list[Finding] = []
    compared = 0
    for machine in fabric.machines:
        for metric, unit, read in _METRICS:
            widths = read(machine)
            by_kind: dict[Hashable, list[_Width]] = defaultdict(list)
            for width in widths:
                by_kind[width.kind].append(width)
            for siblings in by_kind.values():
                if len(siblings) < 2:
                    continue
                compared += len(siblings)
                findings += _below(machine, metric, unit, siblings)
        findings += _links_down(machine)
    if not findings and not compared:
        return NARROW_LINK.not_evaluated("no width or speed of two devices of a kind is known")
    return NARROW_LINK.verdict(*findings, clear=f"{compared} widths and speeds equal their siblings'")


def _below(machine: Machine, metric: str, unit: str, siblings: Sequence[_Width]) -> list[Finding]:
    """One finding for all devices below what most of their siblings have."""
    counts = Counter(width.value for width in siblings)
    usual = max(counts, key=lambda value: (counts[value], value))
    low = [width for width in siblings if width.value < usual]
    if not low:
        return []
    named = ", ".join(f"{width.device} ({_amount(width.value, unit)})" for width in low[:8])
    where = f" on {machine.host}" if machine.host else ""
    made_so = all(width.most is not None and width.value >= width.most for width in low)
    return [
        NARROW_LINK.finding(
            "info" if made_so else "warning",
            "high" if counts[usual] > len(low) else "medium",
            f"{metric} of {named}{where} {'are' if metric.endswith('s') else 'is'} below the {usual:g} {unit} of "
            f"{'its' if len(low) == 1 else 'their'} siblings"
            f"{': the slot allows no more' if made_so else ''}.",
            [
                *(
                    Evidence(Fact.WIDTH, width.value, unit, usual, subject=f"{metric} of {width.device}")
                    for width in low[:8]
                ),
                *quoted((quote for width in low for quote in width.quotes), Fact.TOPOLOGY, 2),
            ],
        )
    ]


def _amount(value: float, unit: str) -> str:
    """'1 link', '12 links', '25 GB/s a link'."""
    return f"{value:g} {unit.removesuffix('s') if value == 1 and unit in ('links', 'lanes') else unit}"


def _links_down(machine: Machine) -> list[Finding]:
    """NVLinks that exist and are down on one GPU, while a sibling has all of its own."""
    gpus = [gpu for gpu in machine.gpus if gpu.nvlinks != 0 or not _is_bridged(machine)]
    down = [gpu for gpu in gpus if gpu.nvlinks_down]
    if not down or len(down) == len(gpus):  # a board may leave some unconnected on every GPU
        return []
    return [
        NARROW_LINK.finding(
            "warning",
            "high",
            f"NVLinks are down: {', '.join(f'{gpu.nvlinks_down} of {gpu.label}' for gpu in down)}.",
            [Evidence(Fact.NVLINKS_DOWN, gpu.nvlinks_down, "links", 0, subject=gpu.label) for gpu in down[:8]],
        )
    ]


def _gpu_lanes(machine: Machine) -> list[_Width]:
    return [
        _Width(gpu.label, gpu.name, gpu.pcie.width, most=gpu.pcie.most_width)
        for gpu in machine.gpus
        if gpu.pcie is not None and gpu.pcie.width
    ]


def _gpu_generation(machine: Machine) -> list[_Width]:
    return [
        _Width(gpu.label, gpu.name, gpu.pcie.most_generation)
        for gpu in machine.gpus
        if gpu.pcie is not None and gpu.pcie.most_generation
    ]


def _nvlinks(machine: Machine) -> list[_Width]:
    """Links of each GPU: as it says itself, else as the matrix' row says, where that is whole."""
    told = [_Width(gpu.label, gpu.name, gpu.nvlinks) for gpu in machine.gpus if gpu.nvlinks is not None]
    widths = told if len(told) == len(machine.gpus) else _of_the_matrix(machine)
    return [width for width in widths if width.value or not _is_bridged(machine)]


def _is_bridged(machine: Machine) -> bool:
    """Whether bridges join GPUs two by two, so that one without NVLink may just have no bridge."""
    pairs = {frozenset(ends) for ends, path in machine.paths.items() if path.kind == "NV"}
    joined = Counter(label for pair in pairs for label in pair)
    return max(joined.values(), default=0) <= 1


def _of_the_matrix(machine: Machine) -> list[_Width]:
    """The sum of a row, or, where a switch joins the GPUs, what most of its paths say."""
    rows: list[tuple[Gpu, list[int], tuple[Quote, ...]]] = []
    for gpu in machine.gpus:
        paths = [machine.path(gpu.label, other.label) for other in machine.gpus if other is not gpu]
        known = [path for path in paths if path is not None]
        counts = [count for path in known if (count := _links(path)) is not None]
        if len(counts) < len(machine.gpus) - 1:
            return []
        rows.append((gpu, counts, tuple(path.quote for path in known if path.quote is not None)))
    switched = any(sum(counts) > _MOST_NVLINKS for _, counts, _ in rows)
    if not any(sum(counts) for _, counts, _ in rows):
        return []
    if not switched and not _is_bridged(machine) and len(rows) not in _MESHES:
        return []
    return [
        _Width(gpu.label, gpu.name, max(counts, default=0) if switched else sum(counts), quotes)
        for gpu, counts, quotes in rows
    ]


def _links(path: Path) -> int | None:
    return path.count if path.kind == "NV" else 0


def _nic_lanes(machine: Machine) -> list[_Width]:
    return [
        _Width(nic.name or nic.label, _role(machine, nic), nic.pcie.width, most=nic.pcie.most_width)
        for nic in _single(machine)
        if nic.pcie is not None and nic.pcie.width
    ]


def _nic_speed(machine: Machine) -> list[_Width]:
    """A card with several ports, all of them slower than those of other cards, is another card."""
    nics = [nic for nic in _single(machine) if nic.speed_gbs and nic.up is not False]
    ports: dict[str, list[float]] = defaultdict(list)
    for nic in nics:
        ports[_card(nic)].append(nic.speed_gbs or 0.0)
    most = {card: max(speeds) for card, speeds in ports.items() if card and len(speeds) > 1}
    return [
        _Width(nic.name or nic.label, (_role(machine, nic), most.get(_card(nic))), (nic.speed_gbs or 0.0) * 8)
        for nic in nics
    ]


def _card(nic: Nic) -> str:
    """Its PCI device without the function, which is one a port; empty where it is not known."""
    return (nic.bus_id or "").rpartition(".")[0]


def _role(machine: Machine, nic: Nic) -> Hashable:
    """Its network and how near it is to any GPU: ports for storage are slower on purpose, and farther."""
    paths = (machine.path(gpu.label, nic.label) for gpu in machine.gpus)
    return nic.kind, min((distance(path) for path in paths if path is not None), default=None)


def _single(machine: Machine) -> list[Nic]:
    """NICs of the fast network that are no bonds: a port for management differs from the rest on purpose."""
    return [nic for nic in machine.nics if not nic.bonded and is_rdma(nic)]


def _gpu_link_gbs(machine: Machine) -> list[_Width]:
    return [_Width(gpu.label, gpu.name, gpu.nvlink_gbs) for gpu in machine.gpus if gpu.nvlink_gbs]


# What is compared: its name, its unit, and how to read it. A GPU at rest lowers its PCIe generation by itself, so of
# generations only what the link can reach is compared.
_METRICS: tuple[tuple[str, str, Callable[[Machine], list[_Width]]], ...] = (
    ("PCIe width", "lanes", _gpu_lanes),
    ("PCIe generation", "generation", _gpu_generation),
    ("NVLinks", "links", _nvlinks),
    ("NVLink speed", "GB/s a link", _gpu_link_gbs),
    ("PCIe width", "lanes", _nic_lanes),
    ("Network speed", "Gbit/s", _nic_speed),
)
