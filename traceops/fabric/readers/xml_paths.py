"""How the devices in NCCL's topology XML reach each other, by NCCL's own rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from traceops.fabric.bus_ids import normal_bus_id
from traceops.fabric.model import Path, PathKind
from traceops.fabric.readers.plain_xml import Element

# What a link's other end is, by the first digits of its PCI class.
_SWITCH_CLASS = "0x068000"
_GPU_CLASSES = ("0x03", "0x12", "0x13")  # display controllers and, of AMD, processing accelerators
_LINK_KINDS: dict[str, PathKind] = {"nvlink": "NV", "xgmi": "XGMI"}  # by element: of NCCL, and of RCCL
_UNSEEN = "fffffff"  # in a virtual machine the switch is not visible: NCCL takes it for one

Device = tuple[str, Element, tuple[Element, ...]]


def machine_paths(path: str, devices: Sequence[Device]) -> dict[tuple[str, str], Path]:
    """The paths between all pairs of one host's devices, each given as its label, element and those around it.

    NVLinks directly or through NVSwitch, and RCCL's XGMI, come first; else where the tree's branches meet decides: PIX
    below one PCIe switch, PXB below several, PHB at the CPU, SYS between CPUs. A NIC that is on no PCI bus has no
    path: NCCL hangs it on the first CPU for want of a place.
    """
    gpus = [device for device in devices if device[1].tag == "gpu"]
    joined = {pair: (kind, *count) for tag, kind in _LINK_KINDS.items() for pair, count in _links(gpus, tag).items()}
    lines = {label: element.quote(path) for label, element, _ in devices}
    links = {label: _link(element).quote(path) for label, element, _ in devices}
    paths: dict[tuple[str, str], Path] = {}
    for (one, _, parents), (other, element, other_parents) in combinations(devices, 2):
        if (link := joined.get((one, other)) or joined.get((other, one))) is not None:
            kind, count, back = link
            wider = (one, other) if (one, other) in joined else (other, one)
            paths[wider if back is not None else (one, other)] = Path(
                kind, count, quote=links[wider[0] if back is not None else one], back_share=back
            )
        elif (met := _meeting(parents, other_parents)) is not None:
            paths[one, other] = Path(met, quote=lines[other] if element.tag == "net" else lines[one])
    return paths


def _link(gpu: Element) -> Element:
    """The first line that tells of a GPU's links to others."""
    return next((child for child in gpu.children if child.tag in _LINK_KINDS), gpu)


def _links(gpus: Sequence[Device], tag: str) -> dict[tuple[str, str], tuple[int, float | None]]:
    """Links of a kind between pairs of GPUs, and the share of them that leads back where it is not all.

    A switch gives each pair as many as the one with fewer has. Of a pair whose two ways differ the key has the wider.
    """
    by_bus = {_bus_id(parents): label for label, _, parents in gpus}
    direct: defaultdict[tuple[str, str], int] = defaultdict(int)
    switched: defaultdict[str, int] = defaultdict(int)
    for label, gpu, _ in gpus:
        for link in gpu.children:
            count = link.whole("count") or 0
            if link.tag != tag or count <= 0:
                continue
            target, end = link.attributes.get("target", "").lower(), link.attributes.get("tclass", "").lower()
            peer = by_bus.get(normal_bus_id(target))
            if end == _SWITCH_CLASS or target.startswith(_UNSEEN):
                switched[label] += count
            elif peer is not None and peer != label and (not end or end.startswith(_GPU_CLASSES)):
                direct[label, peer] += count
    tells = {one for one, _ in direct}  # a GPU without any such line may have been left out by who saved the file
    found: dict[tuple[str, str], tuple[int, float | None]] = {}
    for pair, count in direct.items():
        back = direct.get(pair[::-1], 0)
        if back < count and pair[1] in tells:
            found[pair] = count, back / count
        elif back <= count and pair[::-1] not in found:
            found[pair] = count, None
    for one, other in combinations(switched, 2):
        if (other, one) not in found:
            found.setdefault((one, other), (min(switched[one], switched[other]), None))
    return found


def _bus_id(parents: Sequence[Element]) -> str | None:
    return normal_bus_id(parents[-1].attributes.get("busid")) if parents else None


def _meeting(parents: Sequence[Element], others: Sequence[Element]) -> PathKind | None:
    ours, theirs = _branch(parents), _branch(others)
    if len(ours) < 2 or len(theirs) < 2:
        return None
    if ours[0] is not theirs[0]:
        return "SYS"
    common = sum(1 for one, other in zip(ours, theirs, strict=False) if one is other)
    if common < 2:
        return "PHB"
    # Switches passed: what is common ends with one, and each branch has its own device last.
    between = (len(ours) - common) + (len(theirs) - common)
    return "PIX" if between <= 2 else "PXB"


def _branch(parents: Sequence[Element]) -> list[Element]:
    """The CPU and the PCI functions down to a device."""
    return [parent for parent in parents if parent.tag in ("cpu", "pci")]
