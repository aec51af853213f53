"""A machine as a figure: boxes for GPUs and NICs in their NUMA nodes, lines for links, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.rank_text import ranks_text
from traceops.core.units import rate_text
from traceops.fabric.model import Gpu, Machine, Measured, Nic, same_host
from traceops.render.topology.shape import (
    NOT_KNOWN,
    WORDS,
    Joined,
    MachineShape,
    Node,
    Way,
    near_text,
    pcie_text,
    say,
    shape_of,
)

# The parts of a topology figure's drawing, as its template puts them into SVG.


class FigureText(Struct, frozen=True):
    """A line of text whose baseline begins at x, y."""

    x: float
    y: float
    text: str
    css: str = ""


class Box(Struct, frozen=True):
    """A rectangle with its text; title is what hovering shows."""

    x: float
    y: float
    width: float
    height: float
    css: str
    texts: tuple[FigureText, ...] = ()
    title: str = ""


class Line(Struct, frozen=True):
    """A path as SVG has it."""

    path: str
    css: str
    title: str = ""


class FigureDrawing(Struct):
    """A drawing of `width` by `height` px: boxes in the order in which they lie on each other, lines below them."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[FigureText] = field(default_factory=list)


LINE = 17  # px from one line of text to the next


def nic_lines(machine: Machine, nic: Nic, used: bool) -> list[tuple[str, str]]:
    """A NIC's label, name, kind and speed, the GPUs it is near, and what is wrong; each with its mark."""
    speed = "" if nic.speed_gbs is None else f"{rate_text(nic.speed_gbs)} GB/s"
    pcie, narrow = pcie_text(nic.pcie, [other.pcie for other in machine.nics])
    lines = (
        (nic.label, "who"),
        ("" if nic.name == nic.label else nic.name or "", ""),
        (" ".join(filter(None, (nic.kind, speed))), ""),
        (near_text(machine, nic), ""),
        ("bonded" if nic.bonded else "", ""),
        ("down" if nic.up is False else "", "bad"),
        (pcie if narrow else "", "bad"),
        ("NCCL uses it" if used else "", "who"),
    )
    return [(text, mark) for text, mark in lines if text]


def bar_lines(joined: Joined, name: str, width: float) -> list[tuple[str, str]]:
    """What a bar says in as many lines as it takes, what is wrong in lines of its own."""
    lines: list[tuple[str, str]] = []
    for parts, mark in (((name, *joined.texts), ""), *(((bad,), "bad") for bad in joined.bad)):
        line = ""
        for part in parts:
            longer = f"{line} · {part}" if line else part
            if line and text_width(longer, mark) > width:
                lines.append((line, mark))
                longer = part
            line = longer
        lines.append((cut(line, width, mark), mark))
    return lines


def bar_height(lines: Sequence[tuple[str, str]]) -> float:
    """px that a bar of so many lines takes."""
    return 8 + LINE * len(lines)


def links_name(joined: Joined) -> str:
    """What joins all GPUs."""
    return "Infinity Fabric" if "XGMI" in joined.kinds else WORDS["all_nvlink"]


def links_missing(gpu: Gpu, most: int) -> str:
    """'17/18 NVLinks' where some are down or siblings have more; empty else."""
    if gpu.nvlinks is None:
        return f"{gpu.nvlinks_down} NVLinks down" if gpu.nvlinks_down else ""
    whole = max(most, gpu.nvlinks + gpu.nvlinks_down)
    return f"{gpu.nvlinks}/{whole} NVLinks" if gpu.nvlinks < whole else ""


def nic_title(nic: Nic) -> str:
    """What hovering over a NIC shows."""
    speed = "" if nic.speed_gbs is None else f"{rate_text(nic.speed_gbs)} GB/s one way"
    about = [nic.name or "", nic.kind or "", speed, nic.bus_id or "", "bonded" if nic.bonded else ""]
    return "\n".join([nic.label, *filter(None, about)])


def text_width(text: str, css: str = "") -> float:
    """px of a text of 12 px in a wide typeface; what has a mark of its own is bold."""
    length = sum(
        8.8 if char.isupper() or not char.isascii() else 4.6 if char in ".,:;|ijl()[] '" else 7.4 for char in text
    )
    return length * (1.08 if css in ("who", "bad") else 1.0)


def cut(text: str, width: float, css: str = "") -> str:
    """As much of a text as so many px hold."""
    text = text[:200]
    if text_width(text, css) <= width:
        return text
    while text and text_width(text, css) + 9 > width:
        text = text[:-1]
    return f"{text}…"


_WIDE, _NARROW = 1200, 314  # px that a drawing may take
_DEVICE, _NARROW_DEVICE = 130, 122
_LEAST_NODE = 206  # px of a NUMA node: its CPUs in words
_PAD, _GAP, _MARGIN = 9, 8, 4
_TRUNK = 16  # between a bar at the top and what hangs off it
_LANE, _SIDE_LANE = 20, 32  # between the brackets of direct links
_RAIL = 7  # above a row of GPUs
_MOST_IN_ROW = 8


def draw(machine: Machine, shape: MachineShape, used: set[str], *, narrow: bool) -> FigureDrawing:
    """The shape of a machine from the top down; used: names of network devices that NCCL uses."""
    width, device = (_NARROW, _NARROW_DEVICE) if narrow else (_WIDE, _DEVICE)
    down = bool(shape.direct) and (narrow or len(machine.gpus) > _MOST_IN_ROW)
    plan = _Plan(machine, shape, used, width, device, down)
    if shape.direct and not down and not plan.in_one_row():
        plan = _Plan(machine, shape, used, width, device, True)
    return plan.drawing()


class _Plan:
    """Places a shape's parts; `down`: the GPUs in a column, with their brackets at its right."""

    def __init__(
        self, machine: Machine, shape: MachineShape, used: set[str], width: int, device: int, down: bool
    ) -> None:
        self._machine, self._shape, self._used = machine, shape, used
        self._device, self._down = device, down
        self._drawing = FigureDrawing()
        self._gpu_places: dict[str, tuple[float, float]] = {}
        self._order = [gpu.label for node in shape.nodes for gpu in node.gpus]
        self._space = width - 2 * _MARGIN - _TRUNK * ((shape.hub is not None) + (shape.far is not None))
        fitting = int((self._space - 2 * _PAD + _GAP) // (device + _GAP))
        most = 4 if len(machine.gpus) > _MOST_IN_ROW else _MOST_IN_ROW
        self._columns = 1 if down else max(min(fitting, most), 1)

    def in_one_row(self) -> bool:
        """Whether all GPUs stand beside each other."""
        return len(self._rows()) == 1 and all(len(node.gpus) <= self._across(node) for node in self._shape.nodes)

    def drawing(self) -> FigureDrawing:
        rows, shape, drawing = self._rows(), self._shape, self._drawing
        width = max((sum(map(self._width, row)) + 2 * _GAP * (len(row) - 1) for row in rows), default=0.0)
        y, trunk, side = float(_MARGIN), 0.0, len(rows) > 1 and shape.far is not None
        several = not self.in_one_row()
        if shape.hub is not None:
            trunk = float(_TRUNK) if several else 0.0
            y = self._bar(shape.hub, _MARGIN, y, trunk + width, "hub", links_name(shape.hub)) + _TRUNK
        elif shape.direct and not self._down:
            y += _LANE * (max(lane for _, _, lane in self._linked()) + 1) + 6
        left, hub_bottom = _MARGIN + trunk, y - _TRUNK
        tops: list[float] = []
        for row in rows:
            x, height = left, max(map(self._height, row))
            for node in row:
                tops += self._node(node, x, y, height, None if several else hub_bottom)
                x += self._width(node) + 2 * _GAP
            y += height + 2 * _GAP
        y -= 2 * _GAP
        if shape.hub is not None and several:
            # Lines from the bar at the top down the left side and above each row of GPUs
            rails = sorted(set(tops))
            x = _MARGIN + 5
            for rail in rails:
                reach = max(at for at, y in self._gpu_places.values() if y == rail + _RAIL)
                self._drawing.lines.append(Line(f"M{x:g},{rail:g} H{reach:g}", "hub"))
            self._drawing.lines.append(Line(f"M{x:g},{hub_bottom:g} V{max(rails):g}", "hub"))
        if shape.far is not None:
            y = self._far(shape.far, left, y + _TRUNK, width + (_TRUNK if side else 0), side)
        drawing.width = 2 * _MARGIN + trunk + width + (_TRUNK if side else 0)
        if shape.direct:
            self._brackets()
        drawing.height = y + _MARGIN
        return drawing

    def _far(self, far: Joined, left: float, top: float, width: float, side: bool) -> float:
        """The bar at the bottom with its lines to the NUMA nodes, from their sides where they are in several rows."""
        for box in self._drawing.boxes:
            if box.css == "numa":
                middle, end = box.x + box.width / 2, box.y + box.height
                last = not side or end + _TRUNK >= top
                around = "" if last else f"V{end + _GAP:g} H{left + width - 5:g} "
                self._drawing.lines.append(Line(f"M{middle:g},{end:g} {around}V{top:g}", "far"))
        return self._bar(far, left, top, width, "far", "Between NUMA nodes")

    def _rows(self) -> list[list[Node]]:
        """NUMA nodes beside each other as far as the width goes; one below the other in a column."""
        rows: list[list[Node]] = [[]]
        taken = 0.0
        for node in self._shape.nodes:
            width = self._width(node)
            if rows[-1] and (self._down or taken + width > self._space):
                rows.append([])
                taken = 0.0
            rows[-1].append(node)
            taken += width + 2 * _GAP
        return [row for row in rows if row]

    def _across(self, node: Node) -> int:
        return max(min(self._columns, max(len(node.gpus), len(node.nics))), 1)

    def _width(self, node: Node) -> float:
        across = self._across(node)
        return max(across * self._device + (across - 1) * _GAP + 2 * _PAD, _LEAST_NODE)

    def _height(self, node: Node) -> float:
        inner = self._width(node) - 2 * _PAD
        height = float(2 * _PAD + LINE)
        if node.gpus:
            height += -(-len(node.gpus) // self._across(node)) * (self._gpu_height() + _GAP + 4)
        if node.near is not None:
            height += bar_height(bar_lines(node.near, "PCIe", inner)) + _GAP
        if node.nics:
            height += -(-len(node.nics) // self._across(node)) * (self._nic_height() + _GAP)
        return height

    def _gpu_height(self) -> float:
        return 12 + LINE * max((len(self._gpu_lines(gpu)) for gpu in self._machine.gpus), default=1)

    def _gpu_lines(self, gpu: Gpu) -> list[tuple[str, str]]:
        """A GPU's label, its model where they differ, its PCIe link, missing NVLinks and fault; each with its mark."""
        gpus = self._machine.gpus
        model = (gpu.name or "").removeprefix("NVIDIA ") if len({other.name for other in gpus}) > 1 else ""
        pcie, narrow = pcie_text(gpu.pcie, [other.pcie for other in gpus])
        links = links_missing(gpu, max(other.nvlinks or 0 for other in gpus))
        fault = self._shape.faults.get(gpu.label, "")
        lines = ((gpu.label, "who"), (model, ""), (pcie, "bad" if narrow else ""), (links, "bad"), (fault, "bad"))
        return [line for line in lines if line[0]]

    def _nic_height(self) -> float:
        lines = [nic_lines(self._machine, nic, nic.name in self._used) for nic in self._machine.nics]
        return 12 + LINE * max(map(len, lines), default=1)

    def _node(self, node: Node, left: float, top: float, height: float, hub: float | None) -> list[float]:
        """Draw a NUMA node; returns the heights of the rails its GPUs hang off, where they are not in one row."""
        width, across = self._width(node), self._across(node)
        title = FigureText(left + _PAD, top + height - _PAD, cut(node.title, width - 2 * _PAD), "soft")
        self._drawing.boxes.append(Box(left, top, width, height, "numa", (title,), node.title))
        y, rails = top + _PAD + 4, []
        for start in range(0, len(node.gpus), across):
            for place, gpu in enumerate(node.gpus[start : start + across]):
                x = left + _PAD + place * (self._device + _GAP)
                # what hovering over a GPU shows
                gbs = None if gpu.nvlink_gbs is None else rate_text(gpu.nvlink_gbs)
                about = [
                    gpu.name,
                    gpu.bus_id,
                    gpu.cpus and f"near CPUs {gpu.cpus}",
                    say("gpu_links", links=gpu.nvlinks or None, gbs=gbs),
                ]
                self._device_box(
                    x, y, self._gpu_height(), "gpu", self._gpu_lines(gpu), "\n".join([gpu.label, *filter(None, about)])
                )
                self._gpu_places[gpu.label] = x + self._device / 2, y
                if self._shape.hub is not None:
                    rail = y - _RAIL if hub is None else hub
                    self._drawing.lines.append(Line(f"M{x + self._device / 2:g},{rail:g} V{y:g}", "hub"))
            rails.append(y - _RAIL)
            y += self._gpu_height() + _GAP + 4
        if node.near is not None:
            y -= 4
            y = self._bar(node.near, left + _PAD, y, width - 2 * _PAD, "near", "PCIe") + _GAP
        for start in range(0, len(node.nics), across):
            for place, nic in enumerate(node.nics[start : start + across]):
                x, used = left + _PAD + place * (self._device + _GAP), nic.name in self._used
                lines = nic_lines(self._machine, nic, used)
                self._device_box(x, y, self._nic_height(), "nic used" if used else "nic", lines, nic_title(nic))
            y += self._nic_height() + _GAP
        return rails

    def _device_box(
        self, x: float, y: float, height: float, css: str, lines: Sequence[tuple[str, str]], title: str
    ) -> None:
        texts = tuple(
            FigureText(x + 7, y + 17 + LINE * number, cut(text, self._device - 10, mark), mark)
            for number, (text, mark) in enumerate(lines)
        )
        self._drawing.boxes.append(Box(x, y, self._device, height, css, texts, title))

    def _bar(self, joined: Joined, x: float, y: float, width: float, css: str, name: str) -> float:
        """A bar that joins what hangs off it, with all that is known of it; returns where it ends."""
        lines = bar_lines(joined, name, width - 16)
        height = bar_height(lines)
        texts = tuple(
            FigureText(x + 8, y + 16 + LINE * number, text, mark) for number, (text, mark) in enumerate(lines)
        )
        title = "\n".join((name, *joined.texts, *joined.bad))
        self._drawing.boxes.append(Box(x, y, width, height, f"bar {css}{' wrong' if joined.bad else ''}", texts, title))
        return y + height

    def _ports(self, joined: Joined) -> tuple[float, float]:
        """Where a link leaves its two GPUs: each its own place on the box, so that brackets cross little."""
        order = {label: place for place, label in enumerate(self._order)}
        ports = []
        for own, other in (joined.pairs[0], joined.pairs[0][::-1]):
            partners = [pair[pair[0] == own] for one in self._shape.direct if own in (pair := one.pairs[0])]
            partners.sort(key=lambda label: (order[label] > order[own], -order[label]))
            ports.append(order[own] + (partners.index(other) + 1) / (len(partners) + 1))
        return min(ports), max(ports)

    def _linked(self) -> list[tuple[Joined, tuple[float, float], int]]:
        """Direct links with their two ports and their lane, short ones inside."""
        spans = {joined: self._ports(joined) for joined in self._shape.direct}
        linked = sorted(spans, key=lambda joined: (spans[joined][1] - spans[joined][0], spans[joined]))
        placed: list[tuple[Joined, tuple[float, float], int]] = []
        for joined in linked:  # each in the lowest lane in which it meets none before it
            low, high = spans[joined]
            taken = {lane for _, (a, b), lane in placed if low <= b and a <= high}
            placed.append((joined, spans[joined], min(set(range(len(spans))) - taken)))
        return placed

    def _brackets(self) -> None:
        """Direct links as brackets above a row of GPUs, or beside a column of them."""
        drawing, right = self._drawing, self._drawing.width - _MARGIN
        for joined, (start, end), lane in self._linked():
            (x1, y1), (x2, y2) = self._port_place(start), self._port_place(end)
            css = "hub wrong" if joined.bad else "hub"
            title = f"{'–'.join(joined.pairs[0])}: {' · '.join((*joined.texts, *joined.bad))}"
            if self._down:
                out = right + 8 + _SIDE_LANE * lane
                drawing.lines.append(Line(f"M{x1:g},{y1:g} H{out:g} V{y2:g} H{x2:g}", css, title))
                drawing.texts.append(FigureText(out + 3, (y1 + y2) / 2 + 4, joined.texts[0], "link"))
                drawing.width = max(drawing.width, out + 40)
            else:
                top = min(y1, y2) - _PAD - 6 - _LANE * lane
                whole = " · ".join(joined.texts[:2])
                text = whole if text_width(whole) < x2 - x1 else joined.texts[0]
                drawing.lines.append(Line(f"M{x1:g},{y1:g} V{top:g} H{x2:g} V{y2:g}", css, title))
                drawing.texts.append(FigureText(x1 + 4, top - 4, text, "link"))

    def _port_place(self, port: float) -> tuple[float, float]:
        x, y = self._gpu_places[self._order[int(port)]]
        along = port - int(port)
        if self._down:
            return x + self._device / 2, y + self._gpu_height() * along
        return x + self._device * (along - 0.5), y


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
    machine: Machine, measured: Sequence[Measured] = (), ways: Sequence[Way] = (), *, others: int = 0,
    faults: Mapping[str, str] | None = None,
) -> Figure:  # fmt: skip
    """A machine as two drawings, which the template puts into the page as inline SVG. measured: of any machines, those
    of other hosts are left out. ways: as `ways_on` or `tried_ways` has them. others: hosts that are alike, which the
    title counts. faults: what is wrong with GPUs themselves, by their labels."""
    own = [one for one in measured if machine.host is None or one.host is None or same_host(one.host, machine.host)]
    shape = replace(shape_of(machine, own, ways), faults=faults or {})
    used = {way.device.partition(":")[0] for way in ways if way.device}
    names = sorted({gpu.name for gpu in machine.gpus if gpu.name})
    gpus = f"{len(machine.gpus)} × {' and '.join(names)}" if names else count(machine.gpus, "GPU")
    title = (machine.host, gpus if machine.gpus else "no GPU", say("alike", others=others or None))
    return Figure(
        " · ".join(filter(None, title)), description(machine, shape), _collectives(own, len(machine.gpus)),
        _problems(machine, shape), shape.leaving,
        (draw(machine, shape, used, narrow=False), draw(machine, shape, used, narrow=True)),
    )  # fmt: skip


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
    text, known = "", list(alike.items())
    for said, pairs in known[:_MOST_DIRECT]:
        more = f" {say('more_pairs', more=len(pairs) - _MOST_DIRECT)}" if len(pairs) > _MOST_DIRECT else ""
        text += f" {', '.join(pairs[:_MOST_DIRECT])}{more}: {said}."
    left = sum(len(pairs) for _, pairs in known[_MOST_DIRECT:])
    return f"{text} {say('more_links', left=left)}" if left else text


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
