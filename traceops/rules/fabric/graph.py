"""TO-P006: rings of NCCL that carry less than the links between their GPUs, and links that are narrower one way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding
from traceops.core.rule import Verdict, described
from traceops.fabric.fabric import Circumstances, Fabric, at_least, quoted
from traceops.fabric.model import Gpu, Machine, Path, same_host
from traceops.fabric.nccl import Communicator, GraphBandwidth, NcclLog, NcclSetting
from traceops.fabric.reference import RingLimit, ring_limit
from traceops.fabric.talks import RankGpus, names_are_of_several
from traceops.rules.fabric.claims import BOUNDS, OneSided, Rings, SlowRings

BELOW_LINKS = described("fabric", "TO-P006")
_RING = 4  # NCCL's number of the pattern
_LIMITING = (
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS", "NCCL_TOPO_FILE",
    "NCCL_GRAPH_FILE", "NCCL_ALGO",
)  # fmt: skip
_MOST_PAIRS = 6
LINK_NAMES = {"NV": "NVLinks", "XGMI": "XGMI links"}


class _Plan(Struct, frozen=True):
    """A ring graph of one host's GPUs. channels: those that collectives use, where fewer than the search found."""

    graph: GraphBandwidth
    machine: Machine
    gpus: tuple[Gpu, ...]
    channels: int

    @property
    def gbs(self) -> float:
        return self.graph.intra_gbs * self.channels / self.graph.channels


def judge_graph(fabric: Fabric, known: Circumstances) -> Verdict:
    """TO-P006: graphs against links, and links one way against the other."""
    findings = []
    judged: list[str] = []
    graphs, leave, apart = 0, 0, 0
    planned: dict[int, float] = {}
    for rings in _rings_of(fabric):
        graphs += 1
        if rings is None:
            leave += 1
            continue
        if not rings.gpus and rings.gbs < BOUNDS.slow_share * BOUNDS.any_link_gbs:
            findings.append(_below_any_link(rings, fabric.log, known))
            continue
        limit = ring_limit(rings.machine, rings.gpus)
        # Between GPUs at PCIe switches only rings that stay there: many kinds of GPU have no P2P over PCIe at all.
        if limit is None or not (limit.kind in LINK_NAMES or rings.graph.intra_type in ("PIX", "PXB")):
            apart += bool(rings.gpus)
            continue
        planned[id(rings.machine)] = max(rings.gbs, planned.get(id(rings.machine), 0.0))
        share = rings.gbs / limit.gbs
        judged.append(f"{rings.gbs:.4g} of {limit.gbs:.4g} GB/s")
        if share < (BOUNDS.planned_share if limit.whole else BOUNDS.mesh_share):
            findings.append(_below(rings, limit, share, fabric.log, known))
    for machine in fabric.machines:
        findings += _one_sided(machine, planned.get(id(machine)))
    if not judged and not findings:
        seen = graphs > leave
        key = "no_graph" if not graphs else "not_joined" if apart else "no_links" if seen else "between_hosts"
        return BELOW_LINKS.not_evaluated(reason("fabric", key))
    if not findings:
        return BELOW_LINKS.clear(reason("fabric", "rings_fit", judged="; ".join(dict.fromkeys(judged))))
    return BELOW_LINKS.verdict(*{found.message: found for found in findings}.values())  # equal ones once


def _rings_of(fabric: Fabric) -> Iterator[_Plan | None]:
    """Every ring graph; None for one that leaves its host. Of a graph whose GPUs nobody knows: without machine."""
    for graph in fabric.graphs:
        if graph.pattern != _RING:
            continue
        if graph.leaves_host or len(graph.devices) < 2:
            yield None
            continue
        machine = fabric.machines[0] if len(fabric.machines) == 1 else None
        yield _placed(graph, machine, [_by_index(machine, device) for device in graph.devices], graph.channels)
    rank_gpus = RankGpus(fabric.log)
    for communicator in fabric.log.communicators if fabric.log is not None else ():
        for graph in communicator.graphs:
            if graph.pattern != _RING or communicator.size < 2:
                continue
            hosts = {place.host for place in communicator.places.values()}
            if (communicator.nodes or 1) > 1 or len(hosts) != 1 or names_are_of_several(communicator):
                yield None
                continue
            machine = _machine_of(fabric, communicator)
            gpus = [rank_gpus.gpu(machine, communicator.places.get(rank)) for rank in range(communicator.size)]
            used = communicator.coll_channels or graph.channels
            yield _placed(graph, machine, gpus, min(used, graph.channels))


def _placed(graph: GraphBandwidth, machine: Machine | None, gpus: list[Gpu | None], channels: int) -> _Plan:
    """The rings with their GPUs; without any where one of them is not known."""
    known = tuple(gpu for gpu in gpus if gpu is not None)
    whole = len(known) == len(gpus) == len({gpu.index for gpu in known})
    nowhere = machine is None or not whole
    return _Plan(graph, machine or Machine(None), () if nowhere else known, channels)


def _by_index(machine: Machine | None, index: int) -> Gpu | None:
    return next((gpu for gpu in (machine.gpus if machine else ()) if gpu.index == index), None)


def _machine_of(fabric: Fabric, communicator: Communicator) -> Machine | None:
    host = next(iter(communicator.places.values())).host
    named = next((machine for machine in fabric.machines if machine.host and same_host(machine.host, host)), None)
    if named is not None:
        return named
    only = fabric.machines[0] if len(fabric.machines) == 1 else None
    return only if only is not None and only.host is None else None


def _below(rings: _Plan, limit: RingLimit, share: float, log: NcclLog | None, known: Circumstances) -> Finding:
    graph, settings = rings.graph, _limiting(log)
    name = LINK_NAMES.get(limit.kind)
    claim = Rings(
        gpus=len(rings.gpus),
        host=rings.machine.host,
        gbs=rings.gbs,
        pct=100 * share,
        limit=limit.gbs,
        channels=rings.channels,
        found=graph.channels if rings.channels < graph.channels else None,
        over=None if name is None or graph.intra_type in ("NVL", "NVB", "XGMI") else graph.intra_type,
        links=name or "PCIe links",
        per_gpu=limit.count if limit.count and limit.count > 1 and name else None,
        settings=set_to(settings),
    )
    evidence = [
        Evidence(Fact.NCCL_RINGS, round(rings.gbs, 2), "GB/s", round(limit.gbs * BOUNDS.planned_share, 1)),
        Evidence(Fact.LINKS_BY_NCCL, round(limit.gbs, 1), "GB/s"),
        *quoted((graph.quote,), Fact.NCCL),
        *quoted((one.quote for one in settings), Fact.NCCL),
        *quoted((limit.path.quote,) if limit.path.quote is not None else (), Fact.TOPOLOGY, 1),
        *known.saved,
    ]
    confidence: Confidence = "high" if limit.whole else "medium"
    severity = at_least("warning", known.slow)
    return BELOW_LINKS.finding(severity, confidence, claim, evidence, impact_ms=known.lost_ms)


def _below_any_link(rings: _Plan, log: NcclLog | None, known: Circumstances) -> Finding:
    """Rings that are slow whatever joins their GPUs, where no topology shows what does."""
    settings, slowest, over = _limiting(log), BOUNDS.any_link_gbs, rings.graph.intra_type or None
    claim = SlowRings(gbs=rings.gbs, slowest=slowest, channels=rings.channels, over=over, settings=set_to(settings))
    evidence = [
        Evidence(Fact.NCCL_RINGS, round(rings.gbs, 2), "GB/s", round(BOUNDS.slow_share * slowest, 1)),
        *quoted((rings.graph.quote,), Fact.NCCL),
        *quoted((one.quote for one in settings), Fact.NCCL),
        *known.saved,
    ]
    severity = at_least("warning", known.slow)
    return BELOW_LINKS.finding(severity, "medium", claim, evidence, impact_ms=known.lost_ms)


def set_to(settings: Sequence[NcclSetting]) -> tuple[str, ...]:
    """'NCCL_P2P_DISABLE was set to 1' of each."""
    return tuple(f"{one.name} was set to {one.value}" for one in settings)


def _limiting(log: NcclLog | None) -> list[NcclSetting]:
    found: dict[str, NcclSetting] = {}
    for setting in log.settings if log is not None else ():
        if setting.name in _LIMITING and setting.value.strip() not in ("", "0"):
            found.setdefault(setting.name, setting)
    return list(found.values())


def _one_sided(machine: Machine, planned: float | None) -> list[Finding]:
    """One finding for all pairs of a machine that have fewer links one way than the other; planned: of rings there."""
    uneven: list[tuple[str, Path]] = []
    for (one, other), path in machine.paths.items():
        share = _share_back(path, machine.paths.get((other, one)))
        if share is None or share >= 1 or not (one.startswith("GPU") and other.startswith("GPU")):
            continue
        unit = "" if path.count else " GB/s"
        much = path.count or path.gbs or 0
        uneven.append((f"{much:.3g}{unit} from {one} to {other}, {much * share:.3g} back", path))
    if not uneven:
        return []
    claim = OneSided(
        links=LINK_NAMES.get(uneven[0][1].kind, "links"),
        host=machine.host,
        count=len(uneven),
        pairs=tuple(text for text, _ in uneven[:_MOST_PAIRS]),
        more=len(uneven) - _MOST_PAIRS if len(uneven) > _MOST_PAIRS else None,
        planned=planned,
    )
    evidence = [
        Evidence(Fact.PAIRS_THAT_ARE_NARROWER_ONE_WAY, len(uneven), "pairs"),
        *quoted((path.quote for _, path in uneven if path.quote is not None), Fact.TOPOLOGY),
    ]
    confidence: Confidence = "high" if uneven[0][1].back_share is not None else "medium"
    return [BELOW_LINKS.finding("warning", confidence, claim, evidence)]


def _share_back(path: Path, back: Path | None) -> float | None:
    """How much of a path's bandwidth the way back has."""
    if path.back_share is None and back is not None and path.kind == back.kind and path.count and back.count:
        return back.count / path.count
    return path.back_share
