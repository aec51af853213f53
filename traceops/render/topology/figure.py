"""A machine as boxes and bars: GPUs and NICs in their NUMA nodes, what joins them, and what was measured on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.rank_text import ranks_text
from traceops.core.units import rate_text
from traceops.fabric.model import Machine, Measured, same_host
from traceops.render.topology.layout import FigureDrawing, draw, links_missing, links_name
from traceops.render.topology.shape import NOT_KNOWN, Joined, MachineShape, Way, pcie_text, shape_of

_MOST_DIRECT = 8  # pairs, and ways to be joined, in a description


class Figure(Struct, frozen=True):
    """One machine for wide and for narrow screens; title and description for who does not see it."""

    title: str
    description: str
    bandwidth: str
    problems: tuple[str, ...]
    leaving: tuple[str, ...]
    drawings: tuple[FigureDrawing, FigureDrawing]


def topology_figure(
    machine: Machine,
    measured: Sequence[Measured] = (),
    ways: Sequence[Way] = (),
    *,
    others: int = 0,
    faults: Mapping[str, str] | None = None,
) -> Figure:
    """A machine as two drawings, which the template puts into the page as inline SVG.

    measured: of any machines, those of other hosts are left out. ways: as `ways_on` or `tried_ways` has them.
    others: hosts that are alike, which the title counts. faults: what is wrong with GPUs themselves, by their labels.
    """
    own = [one for one in measured if machine.host is None or one.host is None or same_host(one.host, machine.host)]
    shape = replace(shape_of(machine, own, ways), faults=faults or {})
    used = {way.device.partition(":")[0] for way in ways if way.device}
    return Figure(
        _title(machine, others),
        description(machine, shape),
        _collectives(own, len(machine.gpus)),
        _problems(machine, shape),
        shape.leaving,
        (draw(machine, shape, used, narrow=False), draw(machine, shape, used, narrow=True)),
    )


def _title(machine: Machine, others: int) -> str:
    names = sorted({gpu.name for gpu in machine.gpus if gpu.name})
    parts = [machine.host or ""]
    if machine.gpus:
        parts.append(f"{len(machine.gpus)} × {' and '.join(names)}" if names else count(machine.gpus, "GPU"))
    else:
        parts.append("no GPU")
    if others:
        parts.append(f"and {others} more host{'s' if others > 1 else ''} of the same make")
    return " · ".join(part for part in parts if part)


def description(machine: Machine, shape: MachineShape) -> str:
    """The devices and what joins the GPUs, in a few sentences."""
    numas = sum(node.number is not None for node in shape.nodes)
    if any(node.number is None and node.gpus for node in shape.nodes):
        numas = 0  # how many there are is not known
    parts = [count(machine.gpus, "GPU") if machine.gpus else "No GPU"]
    parts += [count(machine.nics, "network device")] if machine.nics else []
    text = ", ".join(parts) + (f" on {numas} NUMA node{'s' if numas > 1 else ''}" if numas else "") + "."
    if shape.hub is not None:
        known = ", ".join(said for said in shape.hub.texts if said != "NV")  # NCCL's log counts no links
        text += f" {links_name(shape.hub)}{': ' if known else ''}{known}."
    text += _direct_text(shape.direct)
    for node in shape.nodes:
        if node.near is not None:
            indices = ranks_text([gpu.index for gpu in node.gpus], 4)
            way = "" if node.near.texts == (NOT_KNOWN,) else " over PCIe"
            text += f" GPU {indices}{way}: {', '.join(node.near.texts)}."
    if shape.far is not None:
        text += f" Between NUMA nodes: {', '.join(shape.far.texts)}."
    return text


def _direct_text(direct: Sequence[Joined]) -> str:
    """' GPU0–GPU1, GPU2–GPU3: NV4.': pairs that are joined alike, together."""
    alike: dict[str, list[str]] = {}
    for one in direct:
        alike.setdefault(", ".join(one.texts), []).append("–".join(one.pairs[0]))
    text = ""
    for said, pairs in list(alike.items())[:_MOST_DIRECT]:
        more = f" and {len(pairs) - _MOST_DIRECT} more pairs" if len(pairs) > _MOST_DIRECT else ""
        text += f" {', '.join(pairs[:_MOST_DIRECT])}{more}: {said}."
    left = sum(len(pairs) for pairs in list(alike.values())[_MOST_DIRECT:])
    return f"{text} {left} more pairs have links." if left else text


def _problems(machine: Machine, shape: MachineShape) -> tuple[str, ...]:
    joined = [shape.hub, *shape.direct, *(node.near for node in shape.nodes), shape.far]
    found = [
        f"{'–'.join(one.pairs[0])}: {bad}" if len(one.pairs) == 1 and "–" not in bad else bad
        for one in joined
        if one is not None
        for bad in one.bad
    ]
    most = max((gpu.nvlinks or 0 for gpu in machine.gpus), default=0)
    for gpu in machine.gpus:
        text, narrow = pcie_text(gpu.pcie, [other.pcie for other in machine.gpus])
        found += [f"{gpu.label}: PCIe {text}"] if narrow else []
        found += [f"{gpu.label}: {links}"] if (links := links_missing(gpu, most)) else []
        found += [f"{gpu.label}: {fault}"] if (fault := shape.faults.get(gpu.label)) else []
    return tuple(dict.fromkeys(found))


def _collectives(measured: Sequence[Measured], gpus: int) -> str:
    """'all_reduce 340 GB/s, all_gather 331 GB/s': bus bandwidth of all GPUs at the largest message."""
    best: dict[str, Measured] = {}
    for one in measured:
        whole = one.op != "send_recv" and len(one.gpus) == gpus
        if whole and (one.op not in best or one.bytes > best[one.op].bytes):
            best[one.op] = one
    return ", ".join(f"{op} {rate_text(one.busbw_gbs)} GB/s" for op, one in best.items())


def count(things: Sequence[object], noun: str) -> str:
    """'1 GPU', '2 GPUs'."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
