"""What the boxes and bars of a topology figure say, in lines that fit their width."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.units import rate_text
from traceops.fabric.model import Gpu, Machine, Nic
from traceops.render.topology.shape import Joined, near_text, pcie_text

LINE = 17  # px from one line of text to the next


def gpu_lines(machine: Machine, gpu: Gpu, fault: str) -> list[tuple[str, str]]:
    """A GPU's label, its model where they differ, its PCIe link, missing NVLinks and fault; each with its mark."""
    gpus = machine.gpus
    lines = [(gpu.label, "who")]
    if len({other.name for other in gpus}) > 1 and gpu.name:
        lines.append((gpu.name.removeprefix("NVIDIA "), ""))
    pcie, narrow = pcie_text(gpu.pcie, [other.pcie for other in gpus])
    if pcie:
        lines.append((pcie, "bad" if narrow else ""))
    most = max((other.nvlinks or 0 for other in gpus), default=0)
    if links := links_missing(gpu, most):
        lines.append((links, "bad"))
    if fault:
        lines.append((fault, "bad"))
    return lines


def nic_lines(machine: Machine, nic: Nic, used: bool) -> list[tuple[str, str]]:
    """A NIC's label, name, kind and speed, the GPUs it is near, and what is wrong; each with its mark."""
    lines = [(nic.label, "who")]
    if nic.name and nic.name != nic.label:
        lines.append((nic.name, ""))
    about = [nic.kind or "", "" if nic.speed_gbs is None else f"{rate_text(nic.speed_gbs)} GB/s"]
    lines += [(text, "") for text in (" ".join(filter(None, about)), near_text(machine, nic)) if text]
    if nic.bonded:
        lines.append(("bonded", ""))
    if nic.up is False:
        lines.append(("down", "bad"))
    pcie, narrow = pcie_text(nic.pcie, [other.pcie for other in machine.nics])
    if narrow:
        lines.append((pcie, "bad"))
    return lines + ([("NCCL uses it", "who")] if used else [])


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
    return "Infinity Fabric" if "XGMI" in joined.kinds else "NVLink between all GPUs"


def links_missing(gpu: Gpu, most: int) -> str:
    """'17/18 NVLinks' where some are down or siblings have more; empty else."""
    if gpu.nvlinks is None:
        return f"{gpu.nvlinks_down} NVLinks down" if gpu.nvlinks_down else ""
    whole = max(most, gpu.nvlinks + gpu.nvlinks_down)
    return f"{gpu.nvlinks}/{whole} NVLinks" if gpu.nvlinks < whole else ""


def gpu_title(gpu: Gpu) -> str:
    """What hovering over a GPU shows."""
    about = [gpu.name or "", gpu.bus_id or "", "" if gpu.cpus is None else f"near CPUs {gpu.cpus}"]
    if gpu.nvlinks:
        each = "" if gpu.nvlink_gbs is None else f" of {rate_text(gpu.nvlink_gbs)} GB/s one way"
        about.append(f"{gpu.nvlinks} NVLinks{each}")
    return "\n".join([gpu.label, *filter(None, about)])


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
