"""TO-P005: a device whose PCIe or NVLink connection is narrower or slower than its siblings'."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.rule import Verdict, described
from traceops.fabric.fabric import Fabric, quoted
from traceops.fabric.model import Gpu, Machine, Nic, Path, Quote, is_rdma
from traceops.fabric.talks import distance

NARROW_LINK = described("fabric", "TO-P005")
RULES = (NARROW_LINK,)


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
