"""Reads whether this is a container, and what the PCI bus shows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from traceops.machine.files import entries, exists, text

# Reads what nvidia-smi says of NVLinks and of direct access between GPUs.


_GPU = re.compile(r"GPU (\d{1,4}): ")
_LINK = re.compile(r"\s*Link (\d{1,3}): (.*)")
_SPEED = re.compile(r"(\d{1,5}(?:\.\d+)?) GB/s")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NAMED = re.compile(r"GPU (\d{1,4}): (.{1,200}?) \(UUID: ([^)]{1,80})\)")
_SAID = frozenset(("OK", "CNS", "GNS", "TNS", "NS", "DR", "U", "X"))  # of `topo -p2p`; `topo -m` says PIX, NV4, SYS


class Links(Struct, frozen=True):
    """NVLinks of one GPU: GB/s one way of each that is up, and how many exist and are not up."""

    up: tuple[float, ...]
    down: int


def parse_nvlink_status(text: str) -> dict[int, Links]:
    """What ``nvidia-smi nvlink -s`` says, by GPU; a GPU without NVLink has no links."""
    speeds: dict[int, list[float]] = {}
    down: dict[int, int] = defaultdict(int)
    gpu: int | None = None
    for line in text.splitlines():
        if head := _GPU.match(line):
            gpu = int(head[1])
            speeds.setdefault(gpu, [])
        elif gpu is not None and (link := _LINK.match(line)):
            speed = _SPEED.match(link[2])
            if speed:
                speeds[gpu].append(float(speed[1]))
            elif "inactive" in link[2].lower():
                down[gpu] += 1
    return {index: Links(tuple(found), down[index]) for index, found in speeds.items()}


def named_gpus(text: str) -> tuple[tuple[int, str, str], ...]:
    """Index, name and UUID of the GPUs that ``nvidia-smi nvlink -s`` lists, each once."""
    found = (_NAMED.match(line) for line in text.splitlines())
    return tuple(dict.fromkeys((int(head[1]), head[2], head[3]) for head in found if head))


def parse_p2p(text: str) -> dict[tuple[int, int], str]:
    """What ``nvidia-smi topo -p2p r`` says of each pair: ``OK``, ``CNS``, ``GNS``, ``TNS``, ``NS``, ``DR``, ``U``.

    Other matrices in the text are passed over; of several of this kind the first counts.
    """
    return next(iter(p2p_matrices(text)), {})


def p2p_matrices(text: str) -> list[dict[tuple[int, int], str]]:
    """What each matrix of ``nvidia-smi topo -p2p`` in the text says of each pair."""
    columns: list[int] = []
    found: list[dict[tuple[int, int], str]] = []
    pairs: dict[tuple[int, int], str] = {}
    for line in _COLOUR.sub("", text).splitlines():
        words = line.split()
        labels = [re.fullmatch(r"GPU(\d{1,4})", word) for word in words]
        if words and all(labels):
            columns = [int(label[1]) for label in labels if label]
            pairs = {}
        elif columns and words and labels[0] and len(words) == len(columns) + 1 and _SAID.issuperset(words[1:]):
            row = int(labels[0][1])
            for column, word in zip(columns, words[1:], strict=True):
                if column != row:
                    pairs.setdefault((row, column), word)
            if pairs and not (found and found[-1] is pairs):
                found.append(pairs)
    return found


_BRIDGE_CLASS = "0x0604"
_NVIDIA, _DISPLAY = "0x10de", ("0x0300", "0x0302")
_ACS = 0x000D
_REDIRECTS = 0x4 | 0x8  # requests, completions: both go up to the host bridge
_FIRST_EXTENDED = 0x100
_FABRIC_MANAGER = "nv-fabricmanage"  # the kernel keeps 15 letters of a name
# One of these is enough for NCCL: NVIDIA/nccl@5067397:src/transport/net_ib/gdr.cc; nv_peer_mem makes the last two.
_PEER_MEMORY = (
    "module/nvidia_peermem", "module/nv_peer_mem", "kernel/mm/memory_peers/nv_mem", "kernel/mm/memory_peers/nv_mem_nc",
)  # fmt: skip
_DMABUF_KERNEL = (5, 12)


class PlatformFacts(Struct, frozen=True):
    """kind: ``docker``, ``Kubernetes``, ``Apptainer``, …; None outside of containers.

    gpu_files: /dev/nvidia0 and so on. on_bus: NVIDIA GPUs that PCI shows. of_driver: those the driver has.
    translated: PCI addresses of GPUs behind an IOMMU that translates. redirecting: bridges above GPUs whose ACS
    sends what one GPU writes to another over the host bridge; None where nobody may read it.
    peermem: the module for GPUDirect RDMA is loaded. dmabuf: kernel and driver can do without it. switches: NVSwitches
    of this host. fabric_manager: its program is seen to run.
    """

    kind: str | None
    gpu_files: int
    on_bus: int
    of_driver: int
    translated: tuple[str, ...] = ()
    redirecting: tuple[str, ...] | None = None
    peermem: bool = False
    dmabuf: bool = False
    switches: int = 0
    fabric_manager: bool = False

    @property
    def has_gpus(self) -> bool:
        """Whether anything shows NVIDIA GPUs, whatever nvidia-smi says."""
        return bool(self.gpu_files or self.on_bus or self.of_driver)


def read_platform(environ: Mapping[str, str], root: Path) -> PlatformFacts:
    """What files and variables tell of the container and the PCI bus."""
    devices = entries(root / "sys/bus/pci/devices")
    gpus = [one for one in devices if text(one / "vendor") == _NVIDIA and (text(one / "class") or "")[:6] in _DISPLAY]
    return PlatformFacts(
        _kind(environ, root),
        sum(1 for entry in entries(root / "dev") if re.fullmatch(r"nvidia\d+", entry.name)),
        len(gpus),
        len(entries(root / "proc/driver/nvidia/gpus")),
        tuple(one.name for one in gpus if (text(one / "iommu_group/type") or "").startswith("DMA")),
        _redirecting(gpus),
        any(exists(root / "sys" / path) for path in _PEER_MEMORY),
        _dmabuf(root),
        sum(1 for entry in entries(root / "dev") if re.fullmatch(r"nvidia-nvswitch\d+", entry.name)),
        any(
            (text(one / "comm") or "").startswith(_FABRIC_MANAGER)
            for one in entries(root / "proc")
            if one.name.isdigit()
        ),
    )


def _kind(environ: Mapping[str, str], root: Path) -> str | None:
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "Apptainer"
    if exists(root / "run/.containerenv"):
        return "podman"
    if exists(root / ".dockerenv"):
        return "docker"
    groups = text(root / "proc/1/cgroup") or ""
    named = {"kubepods": "Kubernetes", "docker": "docker", "containerd": "containerd", "lxc": "LXC"}
    return next((kind for part, kind in named.items() if part in groups), None)


def _redirecting(gpus: Sequence[Path]) -> tuple[str, ...] | None:
    """Bridges inside PCIe switches above GPUs that ACS makes send everything up.

    Below a port of the root nothing goes from device to device, so ACS there leads nothing astray.
    """
    above: dict[str, Path] = {}
    for gpu in gpus:
        try:
            way = gpu.resolve()
        except OSError:
            continue
        for folder in way.parents:
            if all((text(one / "class") or "").startswith(_BRIDGE_CLASS) for one in (folder, folder.parent)):
                above[folder.name] = folder
    answers = {name: acs_redirects(_config(folder)) for name, folder in above.items()}
    if not answers or all(answer is None for answer in answers.values()):
        return None
    return tuple(sorted(name for name, answer in answers.items() if answer))


def _config(folder: Path) -> bytes:
    try:
        return (folder / "config").read_bytes()
    except OSError:
        return b""


def acs_redirects(config: bytes) -> bool | None:
    """Whether a bridge's configuration space has ACS redirect on; None where only root may read that far."""
    if len(config) < 4096:
        return None
    at = _FIRST_EXTENDED
    for _ in range(64):
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return bool(int.from_bytes(config[at + 6 : at + 8], "little") & _REDIRECTS)
        at = header >> 20
        if at < _FIRST_EXTENDED:
            return False
    return False


def _dmabuf(root: Path) -> bool:
    """GPUDirect RDMA without a module of its own wants Linux 5.12 and the driver's open kernel modules."""
    release = re.match(r"(\d+)\.(\d+)", text(root / "proc/sys/kernel/osrelease") or "")
    new = release is not None and (int(release[1]), int(release[2])) >= _DMABUF_KERNEL
    return new and "Open Kernel Module" in (text(root / "proc/driver/nvidia/version") or "")
