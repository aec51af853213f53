"""What a figure of a machine says: devices by NUMA node, pairs of GPUs by what joins them, and the way NCCL took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from statistics import median

from msgspec import Struct, field

from traceops.core.claims import first_phrase
from traceops.core.rank_text import ranks_text
from traceops.core.units import rate_text
from traceops.doctor.model import Trial
from traceops.fabric.model import PATH_KINDS, Gpu, Machine, Measured, Nic, Pcie
from traceops.fabric.nccl import Network
from traceops.fabric.talks import Talk
from traceops.words.catalogue import texts

LINKS = ("NV", "XGMI")  # from GPU to GPU without PCIe
NOT_KNOWN = "path not known"
_NEAR = ("PIX", "PXB", "PHB", "NODE")  # inside a NUMA node
SLOW_PAIR = 0.7  # of the median of alike pairs: slower, and the pair is named
_MOST_NAMED = 3
WORDS = texts("views", "topology")
say = partial(first_phrase, "views", "topology")

Pair = tuple[str, str]


class Way(Struct, frozen=True):
    """How NCCL took two GPUs of a machine, by their labels; `other` None where it leaves the host. how: ``P2P/CUMEM``,
    ``SHM/direct``, ``NET/Socket``. device: the network device's name, where known."""

    one: str
    other: str | None
    how: str
    device: str | None = None


class Joined(Struct, frozen=True):
    """Pairs of GPUs that the same thing joins. texts: what there is to say, shortest first; bad: what is wrong. kinds:
    of their paths, as `Pcie` and LINKS name them, without those that are not known."""

    pairs: tuple[Pair, ...]
    texts: tuple[str, ...]
    bad: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset()


class Node(Struct, frozen=True):
    """A NUMA node, or devices of which none is known: `number` None. near: its pairs of GPUs over PCIe."""

    title: str
    number: int | None
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    near: Joined | None = None


class MachineShape(Struct, frozen=True):
    """hub: every pair of GPUs has links (NVLink, Infinity Fabric). direct: some have, each pair by itself. far: pairs
    of several NUMA nodes without links. leaving: ways to other hosts. faults: of GPUs, by their labels."""

    nodes: tuple[Node, ...]
    hub: Joined | None
    direct: tuple[Joined, ...]
    far: Joined | None
    leaving: tuple[str, ...]
    faults: Mapping[str, str] = field(default_factory=dict)


def shape_of(machine: Machine, measured: Sequence[Measured] = (), ways: Sequence[Way] = ()) -> MachineShape:
    """The parts of a machine as the figure draws them; `measured` and `ways` are of this machine."""
    places = _places(machine)
    say = _Speaker(machine, pair_bandwidths(measured), ways)
    pairs = list(combinations((gpu.label for gpu in machine.gpus), 2))
    linked = [pair for pair in pairs if (path := machine.path(*pair)) is not None and path.kind in LINKS]
    others = [pair for pair in pairs if pair not in set(linked)]
    in_order = dict.fromkeys(places[label] for label, _ in _devices(machine))
    keys = sorted(in_order, key=lambda key: (key is None, key if isinstance(key, int) else len(in_order)))
    nodes = tuple(_node(machine, key, places, others, say, len(keys)) for key in keys)
    far = [pair for pair in others if places[pair[0]] != places[pair[1]]]
    all_linked = bool(linked) and not others
    return MachineShape(
        nodes, say.joined(linked) if all_linked else None,
        () if all_linked else tuple(say.joined([pair]) for pair in linked), say.joined(far) if far else None,
        tuple(sorted({way.how for way in ways if way.other is None})),
    )  # fmt: skip


def _node(
    machine: Machine, key: int | str | None, places: Mapping[str, int | str | None], pairs: Sequence[Pair],
    say: _Speaker, nodes: int,
) -> Node:  # fmt: skip
    """What lies in one NUMA node. pairs: those without links."""
    gpus = tuple(gpu for gpu in machine.gpus if places[gpu.label] == key)
    nics = tuple(nic for nic in machine.nics if places[nic.label] == key)
    near = [pair for pair in pairs if {gpu.label for gpu in gpus}.issuperset(pair)]
    number = key if isinstance(key, int) else None
    if not isinstance(key, int):
        node_title = WORDS["node.unknown" if key is None or nodes == 1 else "node.alone"]
    else:
        cpus = {gpu.cpus for gpu in gpus if gpu.cpus}
        node_title = f"NUMA {key}" + (f" · CPUs {cpus.pop().replace('-', '–')}" if len(cpus) == 1 else "")
    return Node(node_title, number, gpus, nics, say.joined(near) if near else None)


def pair_bandwidths(measured: Sequence[Measured]) -> dict[Pair, float]:
    """GB/s between two GPUs by their labels, at the largest message; of both directions the slower."""
    found: dict[Pair, tuple[int, float]] = {}
    for one in measured:
        if one.op != "send_recv" or len(one.gpus) != 2:
            continue
        low, high = sorted(one.gpus)
        before = found.get(pair := (f"GPU{low}", f"GPU{high}"))
        if before is None or (-one.bytes, one.busbw_gbs) < (-before[0], before[1]):
            found[pair] = (one.bytes, one.busbw_gbs)
    return {pair: gbs for pair, (_, gbs) in found.items()}


def ways_on(machine: Machine, talked: Iterable[Talk], networks: Iterable[Network] = ()) -> tuple[Way, ...]:
    """The ways NCCL took from a machine's GPUs, each once; `networks` name its network devices."""
    names = {number: name for network in networks for number, name in network.devices}
    ways: dict[Way, None] = {}
    for talk in talked:
        one, other = talk.gpus
        if talk.machine is not machine or one is None or (talk.inside and other is None):
            continue
        leaves = None not in (talk.source and talk.source.host, talk.destination and talk.destination.host)
        if talk.inside or leaves:
            device = None if talk.connection.of_receiver else talk.connection.device
            label = None if other is None else other.label
            ways[Way(one.label, label, talk.way, None if device is None else names.get(device))] = None
    return tuple(ways)


def tried_ways(machine: Machine, trials: Iterable[Trial]) -> tuple[Way, ...]:
    """The ways NCCL took in trials with the environment as it is: of pairs, and of all GPUs where it was one way."""
    ways: dict[Way, None] = {}
    for trial in trials:
        if not trial.as_it_is or trial.outcome != "ok":
            continue
        hows = [how for how in trial.transports if not how.startswith(("NVLS", "COLLNET"))]  # of no pair
        if len(trial.gpus) == 2 or len(hows) == 1:
            for one, other in combinations(sorted(trial.gpus), 2):
                ways |= {Way(f"GPU{one}", f"GPU{other}", how): None for how in hows}
    labels = {gpu.label for gpu in machine.gpus}
    return tuple(way for way in ways if way.one in labels and way.other in labels)


def pcie_text(pcie: Pcie | None, siblings: Iterable[Pcie | None]) -> tuple[str, bool]:
    """'Gen5 ×16', and whether it is narrower than the slot or its siblings; empty where nothing is known."""
    if pcie is None:
        return "", False
    widths = [other.width for other in siblings if other is not None and other.width]
    most = max([*widths, pcie.most_width or 0, pcie.width or 0])
    narrow = bool(pcie.width) and (pcie.width or 0) < most
    width = f"×{pcie.width}" if pcie.width else ""
    generation = f"Gen{pcie.generation}" if pcie.generation else ""
    return " ".join(part for part in (generation, f"{width} of ×{most}" if narrow else width) if part), narrow


def near_text(machine: Machine, nic: Nic) -> str:
    """'PIX to GPU0–1': the GPUs that a NIC is nearest to; empty where no path is known."""
    kinds: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in machine.gpus:
        if (path := machine.path(nic.label, gpu.label)) is not None:
            kinds[path.kind].append(gpu)
    for kind in PATH_KINDS:
        if kind in kinds:
            gpus = kinds[kind]
            if len(gpus) == len(machine.gpus) > 1:
                return f"{kind} to all GPUs"
            return f"{kind} to GPU{ranks_text([gpu.index for gpu in gpus], 2)}"
    return ""


class _Speaker:
    """Puts into words what joins pairs of one machine."""

    def __init__(self, machine: Machine, gbs: Mapping[Pair, float], ways: Sequence[Way]) -> None:
        self._machine, self._gbs = machine, gbs
        self._hows: dict[frozenset[str], set[str]] = defaultdict(set)
        for way in ways:
            if way.other is not None:
                self._hows[frozenset((way.one, way.other))].add(way.how)

    def joined(self, pairs: Sequence[Pair]) -> Joined:
        kinds = {self._kind(pair) for pair in pairs}
        measured = {pair: self._gbs[pair] for pair in pairs if pair in self._gbs}
        hows = sorted({how for pair in pairs for how in self._hows.get(frozenset(pair), ())})
        linked = all((path := self._machine.path(*pair)) is not None and path.kind in LINKS for pair in pairs)
        texts = [", ".join(sorted(kinds, key=_kind_order)), _range(list(measured.values()))]
        texts += [f"NCCL: {', '.join(hows)}"] if hows else []
        # What NCCL leaves unused of what joins these pairs.
        left = linked and _any(hows, "SHM", "NET")
        around = not linked and _any(hows, "NET")
        bad = ([WORDS["unused"]] if left else [WORDS["network"]] if around else []) + _slow(measured)
        known = frozenset(path.kind for pair in pairs if (path := self._machine.path(*pair)) is not None)
        return Joined(tuple(pairs), tuple(text for text in texts if text), tuple(bad), known)

    def _kind(self, pair: Pair) -> str:
        if (path := self._machine.path(*pair)) is None:
            return NOT_KNOWN
        if path.kind != "NV":
            return path.kind
        if path.count and path.back_share is not None:
            return say("both_ways", count=path.count, back=round(path.count * path.back_share))
        return f"NV{path.count or ''}"


def _slow(measured: Mapping[Pair, float]) -> list[str]:
    """The slowest of the pairs that are far below their median."""
    middle = median(measured.values()) if measured else 0.0
    slow = sorted((gbs, pair) for pair, gbs in measured.items() if gbs < SLOW_PAIR * middle)
    return [f"{one}–{other} only {rate_text(gbs)} GB/s" for gbs, (one, other) in slow[:_MOST_NAMED]]


def _devices(machine: Machine) -> list[tuple[str, int | None]]:
    """Every device and its NUMA node as the source says it."""
    return [(gpu.label, gpu.numa) for gpu in machine.gpus] + [(nic.label, nic.numa) for nic in machine.nics]


def _places(machine: Machine) -> dict[str, int | str | None]:
    """Each device's NUMA node; where that is not known, devices near each other share a made-up one."""
    places: dict[str, int | str | None] = {label: numa for label, numa in _devices(machine) if numa is not None}
    unknown = [label for label, numa in _devices(machine) if numa is None]
    near: dict[str, list[str]] = defaultdict(list)
    for (one, other), path in machine.paths.items():
        if path.kind in _NEAR:
            near[one].append(other)
            near[other].append(one)
    for start in unknown:
        if start in places:
            continue
        cluster, queue = {start}, [start]
        while queue:
            further = set(near[queue.pop()]) - cluster
            cluster |= further
            queue += further
        known = [places[label] for label in sorted(cluster) if places.get(label) is not None]
        name = known[0] if known else min(cluster) if len(cluster) > 1 else None
        places.update({label: name for label in cluster if places.get(label) is None})
    return places


def _any(hows: Iterable[str], *transports: str) -> bool:
    return any(how.split("/")[0] in transports for how in hows)


def _kind_order(text: str) -> tuple[int, str]:
    kinds: tuple[str, ...] = PATH_KINDS
    kind = text.rstrip("0123456789")
    return (kinds.index(kind) if kind in kinds else len(kinds), text)


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = rate_text(min(values)), rate_text(max(values))
    return f"{low} GB/s" if low == high else f"{low}–{high} GB/s"
