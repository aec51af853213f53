"""TO-D105, TO-D308 and TO-D501 to TO-D503: PCIe on the host, the container, the driver, torch and NCCL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from traceops.core.rule import JudgedBy, described
from traceops.machine.look import Level, Look
from traceops.machine.platform import PlatformFacts, Software
from traceops.machine.smi_table import LostGpu
from traceops.machine.variables import version_of
from traceops.rules.machine.limits import looked

IOMMU_ACS = described("machine", "TO-D105", JudgedBy.DOCTOR)
CONTAINER_GPUS = described("machine", "TO-D308", JudgedBy.DOCTOR)
DRIVER = described("machine", "TO-D501", JudgedBy.DOCTOR)

_MISMATCH = "Driver/library version mismatch"


def judge_container(
    platform: PlatformFacts,
    environ: Mapping[str, str],
    gpus: int,
    smi_problem: str | None,
    host: str,
    *,
    timed_out: bool = False,
) -> tuple[Look, ...]:
    """The container, and GPUs that are here and cannot be used. gpus: as nvidia-smi counts; smi_problem: its error.
    timed_out: it gave no answer."""
    look = partial(looked, host, "container")
    numbers = {
        "kind": platform.kind,
        "gpu_files": platform.gpu_files,
        "on_bus": platform.on_bus,
        "of_driver": platform.of_driver,
    }
    looks = [look("seen", numbers, container=platform.kind or "none")]
    if not gpus and platform.has_gpus:
        because = _trouble(smi_problem or "", bool(platform.kind), timed_out)
        looks.append(looked(host, "driver", "silent", message=smi_problem, because=because))
    visible = environ.get("NVIDIA_VISIBLE_DEVICES")
    if platform.kind and 0 < gpus < platform.of_driver:
        looks.append(look("few_gpus", {"visible": visible}, gpus=gpus, all=platform.of_driver))
    elif gpus == 0 and visible in ("none", "void") and platform.on_bus:
        looks.append(look("kept_out", visible=visible))
    return tuple(looks)


def _trouble(message: str, contained: bool, timed_out: bool) -> str:
    """What keeps nvidia-smi from showing GPUs that are there, by its message."""
    if _MISMATCH in message:
        return "updated"
    if "device handle" in message or "is lost" in message:
        return "off_the_bus"
    if timed_out:
        return "hangs"
    if "Unknown Error" in message and contained:
        return "devices_lost"
    return "container" if contained else "not_loaded"


def judge_failed(message: str, host: str) -> Look:
    """nvidia-smi that failed, by its message alone: it does not show whether it ran in a container."""
    because = "updated" if _MISMATCH in message else "not_loaded"
    if "Unknown Error" in message:
        because = "maybe_devices_lost"
    return looked(host, "driver", "failed", message=message, because=because)


def judge_lost(lost: Sequence[LostGpu], host: str) -> list[Look]:
    """GPUs that nvidia-smi could not reach."""
    shown = [f"{gpu.label} ({gpu.said})" for gpu in lost]
    return [looked(host, "driver", "lost", {"gpus": [gpu.label for gpu in lost]}, gpus=shown)] if lost else []


def judge_pcie_ways(
    platform: PlatformFacts, virtual: bool | None, nvlinked: bool, gpus: int, host: str
) -> tuple[Look, ...]:
    """IOMMU and ACS on bare metal, where they lead what GPUs exchange over PCIe through the host, or break it.
    nvlinked: NVLink joins all GPUs, so only RDMA goes over PCIe."""
    look = partial(looked, host, "pcie_ways")
    if gpus < 1 or virtual is None:
        return ()
    if virtual:
        return (look("virtual"),)
    level: Level | None = "note" if nvlinked else None
    looks = []
    if platform.translated and gpus > 1:
        numbers = {"gpus": list(platform.translated)}
        looks.append(look("translates", numbers, level=level, count=len(platform.translated)))
    if platform.redirecting and gpus > 1:
        bridges = list(platform.redirecting)
        looks.append(look("redirects", {"bridges": bridges}, level=level, count=len(bridges)))
    return tuple(looks or [look("fine", acs_unseen=platform.redirecting is None)])


def judge_iommu_warning(linked: bool, host: str) -> Look:
    """RCCL's warning that the kernel was not told to pass addresses through. linked: XGMI or NVLink joins all GPUs."""
    return looked(host, "pcie_ways", "warned", level="note" if linked else None)


def judge_fabric_manager(platform: PlatformFacts, shown: bool, gpus: int, host: str) -> tuple[Look, ...]:
    """Whether NVSwitch has its manager, where the driver does not show its state (before Hopper). shown: it does."""
    if shown or not platform.switches or not gpus:
        return ()
    if platform.fabric_manager:
        return (looked(host, "nvswitch", "managed"),)
    return (looked(host, "nvswitch", "unseen" if platform.kind else "unmanaged", switches=platform.switches),)


# TO-D502 and TO-D503: versions of torch and NCCL that do not fit the machine or each other.

TORCH = described("machine", "TO-D502", JudgedBy.DOCTOR)
NCCL = described("machine", "TO-D503", JudgedBy.DOCTOR)
RULES = (TORCH, NCCL)


def judge_software(software: Software, driver_cuda: str | None, gpus: int, host: str) -> tuple[Look, ...]:
    """torch against the driver, and NCCL against what torch was built with."""
    return (_torch(software, driver_cuda, gpus, host), *_nccl(software, host))


def _torch(software: Software, driver_cuda: str | None, gpus: int, host: str) -> Look:
    numbers = {
        "python": software.python, "torch": software.torch, "cuda": software.cuda, "hip": software.hip,
        "nccl_wheels": dict(software.wheels), "driver_cuda": driver_cuda,
    }  # fmt: skip
    if software.torch is None:
        return looked(host, "torch", "absent", numbers, level=None if gpus else "warning")
    own, can = version_of(software.cuda or ""), version_of(driver_cuda or "")
    key = "fine"
    if gpus and not software.cuda and not software.hip:
        key = "for_cpu"
    elif own and can and own[:1] > can[:1] and not software.compat:
        key = "too_new"
    elif own and can and own[:2] > can[:2]:
        key = "newer"
    built = f"CUDA {software.cuda}" if software.cuda else f"ROCm {software.hip}" if software.hip else "the CPU only"
    fitting = "known" if driver_cuda else "unknown"
    found = f"{software.torch}, built for {built}"
    return looked(host, "torch", key, numbers, found=found, gpus=gpus, cuda=driver_cuda, fitting=fitting)


def _nccl(software: Software, host: str) -> list[Look]:
    numbers = {"wheels": dict(software.wheels), "needs": software.needs, "preloaded": dict(software.preloaded),
               "library_path": dict(software.found)}  # fmt: skip
    look = partial(looked, host, "nccl")
    looks = []
    if len(software.wheels) > 1:
        names = " ".join(f"nvidia-nccl-{cuda}" for cuda, _ in software.wheels)
        shown = [f"nvidia-nccl-{cuda} {version}" for cuda, version in software.wheels]
        looks.append(look("several", numbers, wheels=shown, names=names))
    elif software.wheels and software.needs and software.wheels[0][1] != software.needs:
        cuda, installed = software.wheels[0]
        looks.append(look("other", numbers, version=installed, needs=software.needs, cuda=cuda))
    elif software.nccl:
        looks.append(look("fine", numbers, version=software.nccl, of_wheel=bool(software.wheels)))
    expected = software.wheels[0][1] if software.wheels else software.needs
    # LD_PRELOAD always wins, LD_LIBRARY_PATH over some builds of torch only
    for key, libraries in (("preloaded", software.preloaded), ("on_path", software.found)):
        for path, version in libraries[:1]:
            if expected is not None and version != expected:
                numbers = {"path": path, "version": version}
                looks.append(look(key, numbers, path=path, version=version or "unknown", expected=expected))
    return looks
