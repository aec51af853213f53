"""Whether this is a container, what it keeps from the job, and what stands between devices on PCIe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceops.doctor.looks.files import entries, exists, text
from traceops.doctor.model import Level, Look

_BRIDGE_CLASS = "0x0604"
_NVIDIA, _DISPLAY = "0x10de", ("0x0300", "0x0302")
_ACS = 0x000D
_REDIRECTS = 0x4 | 0x8  # requests, completions: both go up to the host bridge
_FIRST_EXTENDED = 0x100
_FABRIC_MANAGER = "nv-fabricmanage"  # the kernel keeps 15 letters of a name
_DMABUF_KERNEL = (5, 12)


@dataclass(frozen=True)
class Surroundings:
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


def read_surroundings(environ: Mapping[str, str], root: Path) -> Surroundings:
    """What files and variables tell of the container and the PCI bus."""
    devices = entries(root / "sys/bus/pci/devices")
    gpus = [
        one
        for one in devices
        if text(one / "vendor") == _NVIDIA and (text(one / "class") or "")[:6] in _DISPLAY
    ]
    return Surroundings(
        _kind(environ, root),
        sum(1 for entry in entries(root / "dev") if re.fullmatch(r"nvidia\d+", entry.name)),
        len(gpus),
        len(entries(root / "proc/driver/nvidia/gpus")),
        tuple(one.name for one in gpus if (text(one / "iommu_group/type") or "").startswith("DMA")),
        _redirecting(gpus),
        any(exists(root / "sys/module" / name) for name in ("nvidia_peermem", "nv_peer_mem")),
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
    """Bridges on the way from GPUs to the host that ACS makes send everything up."""
    above: dict[str, Path] = {}
    for gpu in gpus:
        try:
            way = gpu.resolve()
        except OSError:
            continue
        for folder in way.parents:
            if (text(folder / "class") or "").startswith(_BRIDGE_CLASS):
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


def look_at_container(
    around: Surroundings, environ: Mapping[str, str], gpus: int, smi_problem: str | None, host: str
) -> tuple[Look, ...]:
    """The container, and GPUs that are here and cannot be used. gpus: as nvidia-smi counts; smi_problem: its error."""
    facts = {
        "kind": around.kind,
        "gpu_files": around.gpu_files,
        "on_bus": around.on_bus,
        "of_driver": around.of_driver,
    }
    looks = [Look(host, "container", "container", around.kind or "none", facts=facts)]
    looks += _driver_trouble(around, gpus, smi_problem, host)
    visible = environ.get("NVIDIA_VISIBLE_DEVICES")
    if around.kind and 0 < gpus < around.of_driver:
        looks.append(
            Look(host, "container", "GPUs of this container", f"{gpus} of the host's {around.of_driver}", "note",
                 "ranks in other containers of this host cannot be reached by NVLink or shared memory as it is",
                 "give one container all GPUs of the job (--gpus all --ipc=host)", {"visible": visible})
        )  # fmt: skip
    elif gpus == 0 and visible in ("none", "void") and around.on_bus:
        looks.append(
            Look(host, "container", "NVIDIA_VISIBLE_DEVICES", visible, "warning", "it keeps GPUs out",
                 "docker run --gpus all, or -e NVIDIA_VISIBLE_DEVICES=all")
        )  # fmt: skip
    return tuple(looks)


def _driver_trouble(around: Surroundings, gpus: int, problem: str | None, host: str) -> list[Look]:
    if gpus or not around.has_gpus:
        return []
    said = problem or "it shows none"
    if "Driver/library version mismatch" in said:
        advice = "the driver was updated under it: reboot, or unload and load the nvidia modules"
    elif "device handle" in said or "is lost" in said:
        advice = "a GPU fell off the bus: sudo dmesg | grep -iE 'xid|nvrm'; power the host off and on"
    elif "no answer" in said:
        advice = "the driver hangs: sudo dmesg | grep -iE 'xid|nvrm'; reboot the host"
    elif "Unknown Error" in said and around.kind:
        advice = "the container lost its devices (after systemctl daemon-reload): start it again"
    elif around.kind:
        advice = "start the container with its GPUs: docker run --gpus all, with nvidia-container-toolkit on the host"
    else:
        advice = "install the NVIDIA driver, or load it: sudo modprobe nvidia; see dmesg | grep NVRM"
    return [
        Look(host, "driver", "NVIDIA driver", "does not answer", "error",
             f"GPUs are there and nvidia-smi does not show them: {said}", advice)
    ]  # fmt: skip


def look_at_pcie_ways(
    around: Surroundings, virtual: bool | None, nvlinked: bool, gpus: int, host: str
) -> tuple[Look, ...]:
    """IOMMU and ACS on bare metal, where they lead what GPUs exchange over PCIe through the host, or break it.

    nvlinked: NVLink joins all GPUs, so only RDMA goes over PCIe.
    """
    if gpus < 1 or virtual is None:
        return ()
    if virtual:
        return (
            Look(host, "PCIe", "IOMMU and ACS", "virtual machine", "not_evaluated", "the host decides them"),
        )  # fmt: skip
    looks = []
    level: Level = "note" if nvlinked else "warning"
    if around.translated and gpus > 1:
        looks.append(
            Look(host, "PCIe", "IOMMU", f"translates for {len(around.translated)} GPUs", level,
                 "direct access between GPUs over PCIe is slow or hangs, GPUDirect RDMA is slow",
                 "boot with iommu=pt (or off in the BIOS: VT-d, AMD-Vi)", {"gpus": list(around.translated)})
        )  # fmt: skip
    if around.redirecting and gpus > 1:
        looks.append(
            Look(host, "PCIe", "ACS", f"on at {len(around.redirecting)} bridges", level,
                 "PCIe switches send all that GPUs and NICs exchange up to the CPU",
                 "turn it off in the BIOS, or for each bridge: sudo setpci -s BRIDGE ECAP_ACS+0x6.w=0000",
                 {"bridges": list(around.redirecting)})
        )  # fmt: skip
    if not looks:
        acs = "ACS not readable without root" if around.redirecting is None else "ACS off"
        looks = [Look(host, "PCIe", "IOMMU and ACS", f"IOMMU does not translate, {acs}")]
    return tuple(looks)


def look_at_fabric_manager(around: Surroundings, told: bool, gpus: int, host: str) -> tuple[Look, ...]:
    """Whether NVSwitch has its manager, where the driver does not tell (before Hopper). told: it does."""
    what = "NVSwitch fabric"
    if told or not around.switches or not gpus:
        return ()
    if around.fabric_manager:
        return (Look(host, "NVLink", what, "fabric manager runs"),)
    if around.kind:
        why = "whether the fabric manager runs is not seen from inside a container"
        return (Look(host, "NVLink", what, "not known", "not_evaluated", why),)
    why = "the fabric manager does not run: CUDA programs end with 'system not yet initialized'"
    advice = "sudo systemctl start nvidia-fabricmanager (its version must be the driver's)"
    return (Look(host, "NVLink", what, f"{around.switches} switches, no manager", "error", why, advice),)


def look_at_gdr(around: Surroundings, rdma: bool, efa: bool, gpus: int, host: str) -> Look:
    """Whether NICs can reach GPU memory (GPUDirect RDMA)."""
    what = "GPUDirect RDMA"
    if not rdma or not gpus:
        return Look(
            host,
            "network",
            what,
            "not known",
            "not_evaluated",
            f"there is no {'GPU' if rdma else 'RDMA device'}",
        )
    if around.peermem:
        return Look(host, "network", what, "nvidia-peermem is loaded")
    if around.dmabuf or efa:
        return Look(host, "network", what, "through dma-buf")
    return Look(
        host, "network", what, "no", "warning", "neither nvidia-peermem nor dma-buf: data go through the host's memory",
        "on the host: sudo modprobe nvidia-peermem (or the driver's open kernel modules on Linux 5.12 and newer)",
    )  # fmt: skip
