"""Reads whether this is a container, and what the PCI bus shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceops.machine.files import entries, exists, text

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


@dataclass(frozen=True)
class PlatformFacts:
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
