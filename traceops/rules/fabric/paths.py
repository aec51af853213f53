"""TO-P001, TO-P002 and TO-P005: GPUs that are far apart, links that are not used, and links that are narrow."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from traceops.across.links import link_by_name
from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, Severity
from traceops.core.rule import Verdict, described
from traceops.fabric.fabric import Circumstances, Fabric, at_least, hosts_text, quoted
from traceops.fabric.model import Gpu, Machine, Nic, Path, Quote, is_rdma
from traceops.fabric.nccl import NcclLog, NcclSetting
from traceops.fabric.talks import Talk, distance, gpu_pairs, job_ranks, members, nearest_nics, nic_name, ranks_in
from traceops.rules.fabric.claims import BOUNDS, AcrossNuma, LinksDown, NarrowLink, UnusedLinks
from traceops.rules.fabric.graph import set_to

ACROSS_NUMA_NODES = described("fabric", "TO-P001")
UNUSED_LINKS = described("fabric", "TO-P002")
NARROW_LINK = described("fabric", "TO-P005")
_MOST_PAIRS = 6
_MOST_DEVICES = 8

_Pair = tuple[Gpu, Gpu, Path]


class _Across(Struct, frozen=True):
    """What machines share that are one finding. measured: the host, where its pairs were measured."""

    severity: Severity
    claim: AcrossNuma
    measured: str | None


def judge_across_nodes(fabric: Fabric, talked: Sequence[Talk], known: Circumstances) -> Verdict:
    """TO-P001: GPUs that reach each other only across NUMA nodes."""
    of_machine: dict[int, list[Talk]] = defaultdict(list)
    for talk in talked:
        of_machine[id(talk.machine)].append(talk)
    logged = any(one.connections for one in (fabric.log.communicators if fabric.log is not None else ()))
    alike: dict[_Across, list[tuple[Machine, list[Evidence], list[Talk]]]] = defaultdict(list)
    judged = 0
    for machine in fabric.machines:
        own = of_machine[id(machine)]
        used = _used(machine, own)
        pairs = list(gpu_pairs(machine, used))
        judged += len(pairs)
        if across := [(one, other, path) for one, other, path in pairs if path.kind == "SYS"]:
            between = [talk for talk in own if any({one, other} == set(talk.gpus) for one, other, _ in across)]
            evidence = _paths_taken(across, len(pairs), between)
            found, measured = _across(machine, pairs, across, between, known, logged=logged)
            alike[found].append((machine, [*evidence, *_nics(machine, used), *measured], between))
    if not alike and not judged:
        return ACROSS_NUMA_NODES.not_evaluated(reason("fabric", "no_paths"))
    job = job_ranks(fabric)
    findings = [
        ACROSS_NUMA_NODES.finding(
            one.severity,
            "high" if one.severity == "info" else "medium",
            replace(one.claim, gpus=one.claim.gpus + hosts_text((machine.host for machine, *_ in found), "on")),
            found[0][1],
            ranks=ranks_in(job, {end for *_, between in found for talk in between for end in members(talk)}),
        )
        for one, found in alike.items()
    ]
    return ACROSS_NUMA_NODES.verdict(*findings, clear=reason("fabric", "none_across", pairs=judged))


def _across(
    machine: Machine,
    pairs: Sequence[_Pair],
    across: Sequence[_Pair],
    between: Sequence[Talk],
    known: Circumstances,
    *,
    logged: bool,
) -> tuple[_Across, list[Evidence]]:
    """What there is to find on a machine with pairs across nodes, and its numbers. between: talks of these pairs."""
    severity, weight = _weight(known, between)
    given, nearer = _measured(known, machine, across), _measured(known, machine, pairs, "SYS")
    if given is not None and nearer is not None and 2 * given < nearer:
        severity = at_least(severity, "warning")
    numbers = []
    if given is not None:
        numbers.append(Evidence(Fact.SLOWEST_PAIR_ACROSS_NODES, round(given, 2), "GB/s"))
    if nearer is not None:
        numbers.append(Evidence(Fact.SLOWEST_NEARER_PAIR, round(nearer, 2), "GB/s"))
    if known.exposed_pct is not None:
        share = round(known.exposed_pct, 1)
        numbers.append(Evidence(Fact.EXPOSED_TRANSFER, share, f"% of {known.words.the}", BOUNDS.exposed_pct))
    nodes = sorted({gpu.numa for one, other, _ in across for gpu in (one, other) if gpu.numa is not None})
    claim = AcrossNuma(
        pair=f"{across[0][0].label} and {across[0][1].label}" if len(across) == 1 else None,
        count=len(across),
        gpus=_listed(across),
        nodes=tuple(nodes) if len(nodes) > 1 else (),
        weight=weight,
        way=_way(between, by_others=_are_joined(pairs, across), hung=known.hung, logged=logged),
        took=tuple(sorted({talk.way for talk in between})),
    )
    return _Across(severity, claim, None if given is None else machine.host), numbers


def _paths_taken(across: Sequence[_Pair], pairs: int, between: Sequence[Talk]) -> list[Evidence]:
    return [
        Evidence(Fact.PAIRS_OF_GPUS_ACROSS_NUMA_NODES, len(across), f"of {pairs}"),
        *quoted((path.quote for *_, path in across if path.quote is not None), Fact.TOPOLOGY),
        *quoted((talk.connection.quote for talk in between), Fact.NCCL),
    ]


def _weight(known: Circumstances, between: Sequence[Talk]) -> tuple[Severity, str]:
    """Far apart alone is information; with a hang that P2P explains or with time lost it is more."""
    if known.hung and (not between or any(talk.connection.transport == "P2P" for talk in between)):
        return "warning", "hung"
    slow = known.slow or (known.exposed_pct or 0.0) >= BOUNDS.exposed_pct
    return ("warning", "slow") if slow else ("info", "alone")


def _measured(known: Circumstances, machine: Machine, pairs: Sequence[_Pair], leave_out: str = "") -> float | None:
    """The slowest of the pairs as measured, GB/s, without those of one kind; None where none was measured."""
    wanted = {frozenset((one.index, other.index)) for one, other, path in pairs if path.kind != leave_out}
    rows = (row for row in known.measured if row.op == "send_recv" and row.host in (None, machine.host))
    return min((row.busbw_gbs for row in rows if frozenset(row.gpus) in wanted), default=None)


def _used(machine: Machine, own: Sequence[Talk]) -> list[Gpu]:
    """The GPUs that ranks of the log run on, all of the machine where no log says it."""
    seen = [gpu for talk in own for gpu in talk.gpus if gpu is not None]
    return sorted(set(seen), key=lambda gpu: gpu.index) or list(machine.gpus)


def _are_joined(pairs: Sequence[_Pair], across: Sequence[_Pair]) -> bool:
    """Whether links of other GPUs lead from one GPU to the other of every pair across nodes."""
    group = {gpu: {gpu} for one, other, _ in pairs for gpu in (one, other)}
    for one, other, path in pairs:
        if path.kind in ("NV", "XGMI") and group[one] is not group[other]:
            group[one] |= group[other]
            for gpu in group[other]:
                group[gpu] = group[one]
    return all(other in group[one] for one, other, _ in across)


def _way(between: Sequence[Talk], *, by_others: bool, hung: bool, logged: bool) -> str:
    """Which way NCCL took, and which it could take. by_others: links of other GPUs join these. hung: ranks hang, and
    the other way is advised for that. logged: NCCL's log tells of connections."""
    if not between:
        return "joined" if by_others else "not_logged" if logged else "no_log"
    transport = between[0].connection.transport
    if hung and transport == "P2P":
        return "hung"
    return transport if transport in ("P2P", "SHM", "NET") else "other"


_BONDED = Evidence(Fact.A_BONDED_NIC, "one device for NCCL, near one node")


def _nics(machine: Machine, used: Sequence[Gpu]) -> list[Evidence]:
    """Which NICs are near which GPU: what a way over the network would take."""
    near = [(gpu, *nearest_nics(machine, gpu)) for gpu in used[:_MOST_PAIRS]]
    found = [
        Evidence(Fact.NEAREST_NICS, f"{', '.join(map(nic_name, nics))} ({path.kind})", subject=gpu.label)
        for gpu, nics, path in near
        if path is not None
    ]
    bonded = any(nic.bonded for _, nics, _ in near for nic in nics)
    return [*found, *[_BONDED] * bonded]


def _listed(pairs: Sequence[_Pair]) -> str:
    """'GPU0 and GPU1', or 'Pairs of GPU0, GPU1 with GPU2, GPU3' where these are all pairs between the two sides."""
    near = dict.fromkeys(one.label for one, _, _ in pairs)
    far = dict.fromkeys(other.label for _, other, _ in pairs)
    if len(pairs) > 1 and near.keys().isdisjoint(far) and len(pairs) == len(near) * len(far):
        return f"Pairs of {', '.join(near)} with {', '.join(far)}"
    more = f" and {len(pairs) - _MOST_PAIRS} more pairs" if len(pairs) > _MOST_PAIRS else ""
    return "; ".join(f"{one.label} and {other.label}" for one, other, _ in pairs[:_MOST_PAIRS]) + more


# TO-P002: GPUs that are near each other and do not use their link.

_SWITCHED_OFF = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
_NEAR = ("PIX", "PXB")  # NCCL uses P2P over PCIe up to here by default [NCCL, paths.cc]


class _Has(Struct, frozen=True):
    """What a pair has and does not use, by the key of its words. certain: more than a guess."""

    key: str
    device: str | None = None
    link: str | None = None
    path: str | None = None

    @property
    def certain(self) -> bool:
        return self.key in ("nvlink", "xgmi", "by_name")


def judge_unused_links(fabric: Fabric, talked: Sequence[Talk], known: Circumstances) -> Verdict:
    """TO-P002: GPUs of one host that talk through host memory or the network though P2P is there."""
    inside = [talk for talk in talked if talk.inside]
    if not inside or fabric.log is None:
        return UNUSED_LINKS.not_evaluated(reason("fabric", "no_ways"))
    off = [setting.name for setting in _switched_off(fabric.log)]
    slower: dict[_Has, list[Talk]] = defaultdict(list)
    for talk in inside:
        passes_by = talk.connection.transport in ("SHM", "NET")
        if passes_by and (has := _lost_link(talk, known.device, off, bool(fabric.log.p2p_disabled))) is not None:
            slower[has].append(talk)
    pairs = len({members(talk) for talk in inside})
    findings = [_unused(fabric, fabric.log, has, missed, pairs, known) for has, missed in slower.items()]
    return UNUSED_LINKS.verdict(*findings, clear=reason("fabric", "ways", ways=sorted({talk.way for talk in inside})))


def _unused(
    fabric: Fabric, log: NcclLog, has: _Has, missed: Sequence[Talk], pairs: int, known: Circumstances
) -> Finding:
    """Talks that go past what their pairs have. pairs: of all that talk inside a host."""
    settings = _switched_off(log, over_pcie=not has.certain)
    transports = {talk.connection.transport for talk in missed}
    certain = has.certain or bool(settings)
    claim = UnusedLinks(
        through="both" if len(transports) > 1 else "network" if transports == {"NET"} else "memory",
        ways=tuple(sorted({talk.way for talk in missed})),
        has=has.key,
        device=has.device,
        link=has.link,
        path=has.path,
        because="set" if settings else "refused" if log.p2p_disabled else "unknown",
        settings=set_to(settings),
    )
    topology = (talk.path.quote for talk in missed if talk.path is not None and talk.path.quote is not None)
    evidence = [
        Evidence(Fact.PAIRS_OF_RANKS_WITHOUT_P2P, len({members(talk) for talk in missed}), f"of {pairs}"),
        *quoted((talk.connection.quote for talk in missed), Fact.NCCL),
        *quoted((setting.quote for setting in settings), Fact.NCCL),
        *quoted(log.p2p_disabled, Fact.NCCL, 2),
        *quoted(topology, Fact.TOPOLOGY, 1),
    ]
    ranks = ranks_in(job_ranks(fabric), (end for talk in missed for end in members(talk)))
    if not certain:
        return UNUSED_LINKS.finding("info", "medium", claim, evidence, ranks=ranks)
    severity = at_least("warning", known.slow)
    evidence += known.saved
    return UNUSED_LINKS.finding(severity, "high", claim, evidence, ranks=ranks, impact_ms=known.lost_ms)


def _lost_link(talk: Talk, device: str | None, switched_off: Sequence[str], no_p2p: bool) -> _Has | None:
    """What the pair has and does not use; None where nothing shows that it has anything better. no_p2p: NCCL says that
    GPUs cannot reach each other directly; over PCIe that is how many kinds are made."""
    if (path := talk.path) is not None and path.kind in ("NV", "XGMI"):
        return _Has("xgmi" if path.kind == "XGMI" else "nvlink")
    name = next((gpu.name for gpu in talk.gpus if gpu is not None and gpu.name), None) or device
    if path is None and name is not None and (known := link_by_name(name)) is not None:
        return _Has("by_name", device=name, link=known.link)
    if path is not None and path.kind in _NEAR and not no_p2p:
        return _Has("switch", path=path.kind)
    if path is None and not no_p2p and any(name.startswith("NCCL_P2P") for name in switched_off):
        return _Has("p2p_off")
    if talk.connection.transport == "NET" and "NCCL_SHM_DISABLE" in switched_off:
        return _Has("shm_off")
    return None


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
        for metric, unit, widths in (*_gpu_widths(machine), *_nic_widths(machine)):
            by_kind: dict[Hashable, list[_Width]] = defaultdict(list)
            for width in widths:
                by_kind[width.kind].append(width)
            for siblings in by_kind.values():
                if len(siblings) > 1:
                    compared += len(siblings)
                    findings += _below(machine, metric, unit, siblings)
        findings += _links_down(machine)
    if not findings and not compared:
        return NARROW_LINK.not_evaluated(reason("fabric", "no_widths"))
    return NARROW_LINK.verdict(*findings, clear=reason("fabric", "widths_equal", count=compared))


def _below(machine: Machine, metric: str, unit: str, siblings: Sequence[_Width]) -> list[Finding]:
    """One finding for all devices below what most of their siblings have."""
    counts = Counter(width.value for width in siblings)
    usual = max(counts, key=lambda value: (counts[value], value))
    if not (low := [width for width in siblings if width.value < usual]):
        return []
    made_so = all(width.most is not None and width.value >= width.most for width in low)
    claim = NarrowLink(
        metric="Number of NVLinks" if metric == "NVLinks" else metric,
        count=len(low),
        devices=tuple(f"{_amount(width.value, unit)} on {width.device}" for width in low[:_MOST_DEVICES]),
        host=machine.host,
        usual=_amount(usual, unit),
        made_so=made_so,
    )
    if len(low) == 1:
        claim = replace(claim, device=low[0].device, one=_amount(low[0].value, unit))
    evidence = [
        *(
            Evidence(Fact.WIDTH, one.value, unit, usual, subject=f"{metric} of {one.device}")
            for one in low[:_MOST_DEVICES]
        ),
        *quoted((quote for width in low for quote in width.quotes), Fact.TOPOLOGY, 2),
    ]
    severity: Severity = "info" if made_so else "warning"
    confidence: Confidence = "high" if counts[usual] > len(low) else "medium"
    return [NARROW_LINK.finding(severity, confidence, claim, evidence)]


def _amount(value: float, unit: str) -> str:
    """'1 link', '12 links', '25 GB/s a link'."""
    return f"{value:g} {unit.removesuffix('s') if value == 1 and unit in ('links', 'lanes') else unit}"


def _links_down(machine: Machine) -> list[Finding]:
    """NVLinks that exist and are down on one GPU, while a sibling has all of its own."""
    gpus = [gpu for gpu in machine.gpus if gpu.nvlinks != 0 or not _is_bridged(machine)]
    down = [gpu for gpu in gpus if gpu.nvlinks_down]
    if not down or len(down) == len(gpus):  # a board may leave some unconnected on every GPU
        return []
    claim = LinksDown(count=len(down), gpus=tuple(f"{gpu.nvlinks_down} of {gpu.label}" for gpu in down))
    if len(down) == 1:
        claim = replace(claim, gpu=down[0].label, one=down[0].nvlinks_down)
    shown = down[:_MOST_DEVICES]
    evidence = [Evidence(Fact.NVLINKS_DOWN, gpu.nvlinks_down, "links", 0, subject=gpu.label) for gpu in shown]
    return [NARROW_LINK.finding("warning", "high", claim, evidence)]


def _gpu_widths(machine: Machine) -> Iterator[tuple[str, str, list[_Width]]]:
    """What is compared of GPUs: its name, its unit, and each one's. A GPU at rest lowers its PCIe generation by itself,
    so of generations only what the link can reach is compared."""
    slots = [(gpu, gpu.pcie) for gpu in machine.gpus if gpu.pcie is not None]
    lanes = [_Width(gpu.label, gpu.name, pcie.width, most=pcie.most_width) for gpu, pcie in slots if pcie.width]
    yield "PCIe width", "lanes", lanes
    generations = [_Width(gpu.label, gpu.name, pcie.most_generation) for gpu, pcie in slots if pcie.most_generation]
    yield "PCIe generation", "generation", generations
    # Links of each GPU: as it says itself, else as the matrix' row says, where that is whole
    own = [_Width(gpu.label, gpu.name, gpu.nvlinks) for gpu in machine.gpus if gpu.nvlinks is not None]
    links = own if len(own) == len(machine.gpus) else _of_the_matrix(machine)
    yield "NVLinks", "links", [width for width in links if width.value or not _is_bridged(machine)]
    speeds = [_Width(gpu.label, gpu.name, gpu.nvlink_gbs) for gpu in machine.gpus if gpu.nvlink_gbs]
    yield "NVLink speed", "GB/s a link", speeds


def _nic_widths(machine: Machine) -> Iterator[tuple[str, str, list[_Width]]]:
    """The same of NICs of the fast network that are no bonds: a port for management differs from the rest on purpose.
    A card with several ports, all of them slower than those of other cards, is another card."""
    nics = [(nic, _role(machine, nic)) for nic in machine.nics if not nic.bonded and is_rdma(nic)]
    lanes = [
        _Width(nic.name or nic.label, role, nic.pcie.width, most=nic.pcie.most_width)
        for nic, role in nics
        if nic.pcie is not None and nic.pcie.width
    ]
    yield "PCIe width", "lanes", lanes
    fast = [
        (nic, role, nic.speed_gbs, (nic.bus_id or "").rpartition(".")[0])  # a PCI device has one function a port
        for nic, role in nics
        if nic.speed_gbs and nic.up is not False
    ]
    ports = Counter(card for *_, card in fast if card)
    most = {card: max(gbs for *_, gbs, own in fast if own == card) for card, count in ports.items() if count > 1}
    speeds = [_Width(nic.name or nic.label, (role, most.get(card)), gbs * 8) for nic, role, gbs, card in fast]
    yield "Network speed", "Gbit/s", speeds


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


def _role(machine: Machine, nic: Nic) -> Hashable:
    """Its network and how near it is to any GPU: ports for storage are slower on purpose, and farther."""
    paths = (machine.path(gpu.label, nic.label) for gpu in machine.gpus)
    return nic.kind, min((distance(path) for path in paths if path is not None), default=None)
