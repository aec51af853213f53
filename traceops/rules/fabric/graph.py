"""TO-P006: rings of NCCL that carry less than the links between their GPUs, and links that are narrower one way."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.rule import Verdict, described
from traceops.fabric.fabric import Circumstances, Fabric, at_least, quoted
from traceops.fabric.model import Gpu, Machine, Path, same_host
from traceops.fabric.nccl import Communicator, GraphBandwidth, NcclLog, NcclSetting
from traceops.fabric.reference import RingLimit, ring_limit
from traceops.fabric.talks import RankGpus, names_are_of_several

BELOW_LINKS = described("fabric", "TO-P006")
RULES = (BELOW_LINKS,)

_RING = 4  # NCCL's number of the pattern
_PLANNED_SHARE = 0.6  # of the links' bandwidth: a search that finds the links plans 86 % and more
_MESH_SHARE = 1 / 3  # where not every pair has a link, rings need not reach what the narrowest cut gives
_SLOWEST_LINK = (12.0, "a PCIe 3.0 link of 16 lanes gives")  # GB/s as NCCL counts; slower ones join no GPUs that train
_SLOW_SHARE = 0.5
_LIMITING = (
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS", "NCCL_TOPO_FILE",
    "NCCL_GRAPH_FILE", "NCCL_ALGO",
)  # fmt: skip
_LINK_NAMES = {"NV": "NVLinks", "XGMI": "XGMI links"}
_NO_GRAPH = (
    "no graph of NCCL tells what its rings carry: NCCL_GRAPH_DUMP_FILE writes one, NCCL_DEBUG=INFO with "
    "NCCL_DEBUG_SUBSYS=INIT,GRAPH logs it"
)
_NO_LINKS = (
    "nothing tells how fast the links between the GPUs of NCCL's graph are: NCCL_TOPO_DUMP_FILE writes that, and "
    "NCCL_DEBUG_SUBSYS=INIT,GRAPH logs it"
)
_NOT_JOINED = "the GPUs of NCCL's rings are not all joined by links of their own, or nothing tells how fast these are"
_BETWEEN_HOSTS = "NCCL's rings leave the host, so its network devices set their pace"


class _Rings(Struct, frozen=True):
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
        if not rings.gpus and rings.gbs < _SLOW_SHARE * _SLOWEST_LINK[0]:
            findings.append(_below_any_link(rings, fabric.log, known))
            continue
        limit = ring_limit(rings.machine, rings.gpus)
        if limit is None or not _comparable(rings.graph, limit):
            apart += bool(rings.gpus)
            continue
        planned[id(rings.machine)] = max(rings.gbs, planned.get(id(rings.machine), 0.0))
        share = rings.gbs / limit.gbs
        judged.append(f"{rings.gbs:.4g} of {limit.gbs:.4g} GB/s")
        if share < (_PLANNED_SHARE if limit.whole else _MESH_SHARE):
            findings.append(_below(rings, limit, share, fabric.log, known))
    for machine in fabric.machines:
        findings += _one_sided(machine, planned.get(id(machine)))
    if not judged and not findings:
        seen = graphs - leave
        why = _NO_GRAPH if not graphs else _NOT_JOINED if apart else _NO_LINKS if seen else _BETWEEN_HOSTS
        return BELOW_LINKS.not_evaluated(why)
    said = "; ".join(dict.fromkeys(judged))
    return BELOW_LINKS.verdict(*_once(findings), clear=f"NCCL's rings plan for {said} that the links give")


def _once(findings: list[Finding]) -> list[Finding]:
    return list({found.message: found for found in findings}.values())


def _rings_of(fabric: Fabric) -> Iterator[_Rings | None]:
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
            if _leaves_host(communicator):
                yield None
                continue
            machine = _machine_of(fabric, communicator)
            gpus = [rank_gpus.gpu(machine, communicator.places.get(rank)) for rank in range(communicator.size)]
            used = communicator.coll_channels or graph.channels
            yield _placed(graph, machine, gpus, min(used, graph.channels))


def _comparable(graph: GraphBandwidth, limit: RingLimit) -> bool:
    """Between GPUs at PCIe switches only rings that stay there: many kinds of GPU have no P2P over PCIe at all."""
    return limit.kind in _LINK_NAMES or graph.intra_type in ("PIX", "PXB")


def _placed(graph: GraphBandwidth, machine: Machine | None, gpus: list[Gpu | None], channels: int) -> _Rings:
    """The rings with their GPUs; without any where one of them is not known."""
    known = tuple(gpu for gpu in gpus if gpu is not None)
    whole = len(known) == len(gpus) == len({gpu.index for gpu in known})
    nowhere = machine is None or not whole
    return _Rings(graph, machine or Machine(None), () if nowhere else known, channels)


def _by_index(machine: Machine | None, index: int) -> Gpu | None:
    return next((gpu for gpu in (machine.gpus if machine else ()) if gpu.index == index), None)


def _leaves_host(communicator: Communicator) -> bool:
    hosts = {place.host for place in communicator.places.values()}
    return (communicator.nodes or 1) > 1 or len(hosts) != 1 or names_are_of_several(communicator)


def _machine_of(fabric: Fabric, communicator: Communicator) -> Machine | None:
    host = next(iter(communicator.places.values())).host
    named = next((machine for machine in fabric.machines if machine.host and same_host(machine.host, host)), None)
    if named is not None:
        return named
    only = fabric.machines[0] if len(fabric.machines) == 1 else None
    return only if only is not None and only.host is None else None


def _below(rings: _Rings, limit: RingLimit, share: float, log: NcclLog | None, known: Circumstances) -> Finding:
    graph = rings.graph
    name = _LINK_NAMES.get(limit.kind)
    each = f" ({limit.count} a GPU)" if limit.count and limit.count > 1 and name else ""
    links = f"{name}{each}" if name else "PCIe links"
    over = "" if name is None or graph.intra_type in (None, "NVL", "NVB", "XGMI") else f", over {graph.intra_type}"
    made = f"{_channels(rings)}{over}"
    fewer = f" of the {graph.channels} that its search found" if rings.channels < graph.channels else ""
    where = f" of {rings.machine.host}" if rings.machine.host else ""
    settings = _limiting(log)
    return BELOW_LINKS.finding(
        at_least("warning", known.slow),
        "high" if limit.whole else "medium",
        f"NCCL's rings over {len(rings.gpus)} GPUs{where} carry {rings.gbs:.3g} GB/s ({made}{fewer}), "
        f"{100 * share:.0f} % of the {limit.gbs:.4g} GB/s that their {links} give one way.{_set_text(settings)}",
        [
            Evidence(Fact.NCCL_RINGS, round(rings.gbs, 2), "GB/s", round(limit.gbs * _PLANNED_SHARE, 1)),
            Evidence(Fact.LINKS_BY_NCCL, round(limit.gbs, 1), "GB/s"),
            *quoted((graph.quote,), Fact.NCCL),
            *quoted((one.quote for one in settings), Fact.NCCL),
            *quoted((limit.path.quote,) if limit.path.quote is not None else (), Fact.TOPOLOGY, 1),
            *known.saved,
        ],
        impact_ms=known.lost_ms,
    )


def _below_any_link(rings: _Rings, log: NcclLog | None, known: Circumstances) -> Finding:
    """Rings that are slow whatever joins their GPUs, where no topology tells what does."""
    graph, settings, (gbs, gives) = rings.graph, _limiting(log), _SLOWEST_LINK
    over = f" over {graph.intra_type}" if graph.intra_type else ""
    return BELOW_LINKS.finding(
        at_least("warning", known.slow),
        "medium",
        f"NCCL's rings within a host carry {rings.gbs:.3g} GB/s ({_channels(rings)}{over}), less than half of the "
        f"{gbs:g} GB/s that {gives} one way.{_set_text(settings)}",
        [
            Evidence(Fact.NCCL_RINGS, round(rings.gbs, 2), "GB/s", round(_SLOW_SHARE * gbs, 1)),
            *quoted((graph.quote,), Fact.NCCL),
            *quoted((one.quote for one in settings), Fact.NCCL),
            *known.saved,
        ],
        impact_ms=known.lost_ms,
    )


def _channels(rings: _Rings) -> str:
    return f"{rings.channels} channel{'' if rings.channels == 1 else 's'}"


def _set_text(settings: list[NcclSetting]) -> str:
    said = " and ".join(f"{one.name} was set to {one.value}" for one in settings)
    return f" The log says that {said}." if said else ""


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
        back = machine.paths.get((other, one))
        share = path.back_share
        if share is None and back is not None and path.kind == back.kind and path.count and back.count:
            share = back.count / path.count
        if share is None or share >= 1 or not (one.startswith("GPU") and other.startswith("GPU")):
            continue
        unit = "" if path.count else " GB/s"
        much = path.count or path.gbs or 0
        uneven.append((f"{much:.3g}{unit} from {one} to {other}, {much * share:.3g} back", path))
    if not uneven:
        return []
    kind = _LINK_NAMES.get(uneven[0][1].kind, "links")
    where = f" on {machine.host}" if machine.host else ""
    more = f"; and {len(uneven) - 6} more pairs" if len(uneven) > 6 else ""
    listed = "; ".join(said for said, _ in uneven[:6])
    rings = "" if planned is None else f" NCCL's rings carry {planned:.3g} GB/s, as the narrower way allows."
    return [
        BELOW_LINKS.finding(
            "warning",
            "high" if uneven[0][1].back_share is not None else "medium",
            f"The {kind} between GPUs{where} are narrower one way than the other: {listed}{more}.{rings}",
            [
                Evidence(Fact.PAIRS_THAT_ARE_NARROWER_ONE_WAY, len(uneven), "pairs"),
                *quoted((path.quote for _, path in uneven if path.quote is not None), Fact.TOPOLOGY),
            ],
        )
    ]
