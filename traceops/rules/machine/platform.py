"""TO-D105, TO-D308 and TO-D501: PCIe on the host, the container, and the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceops.core.rule import JudgedBy, described
from traceops.machine.look import Level, Look
from traceops.machine.platform import PlatformFacts, Software
from traceops.machine.smi_table import LostGpu
from traceops.machine.variables import version_of
from traceops.rules.machine.links import NVSWITCH

IOMMU_ACS = described("machine", "TO-D105", JudgedBy.DOCTOR)
CONTAINER_GPUS = described("machine", "TO-D308", JudgedBy.DOCTOR)
DRIVER = described("machine", "TO-D501", JudgedBy.DOCTOR)


_MISMATCH = "Driver/library version mismatch"
_RELOAD = "the driver was updated under it: reboot, or unload and load the nvidia modules"
_LOAD = "install the NVIDIA driver, or load it: sudo modprobe nvidia; see dmesg | grep NVRM"


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

    timed_out: it gave no answer.
    """
    facts = {
        "kind": platform.kind,
        "gpu_files": platform.gpu_files,
        "on_bus": platform.on_bus,
        "of_driver": platform.of_driver,
    }
    looks = [Look(host, "container", "container", platform.kind or "none", facts=facts)]
    looks += _driver_trouble(platform, gpus, smi_problem, timed_out, host)
    visible = environ.get("NVIDIA_VISIBLE_DEVICES")
    if platform.kind and 0 < gpus < platform.of_driver:
        looks.append(
            Look(host, "container", "GPUs of this container", f"{gpus} of the host's {platform.of_driver}", "note",
                 "ranks in other containers of this host cannot be reached by NVLink or shared memory as it is",
                 "give one container all GPUs of the job (--gpus all --ipc=host)", {"visible": visible},
                 rule=CONTAINER_GPUS.id)
        )  # fmt: skip
    elif gpus == 0 and visible in ("none", "void") and platform.on_bus:
        looks.append(
            Look(host, "container", "NVIDIA_VISIBLE_DEVICES", visible, "warning", "it keeps GPUs out",
                 "docker run --gpus all, or -e NVIDIA_VISIBLE_DEVICES=all", rule=CONTAINER_GPUS.id)
        )  # fmt: skip
    return tuple(looks)


def _driver_trouble(platform: PlatformFacts, gpus: int, problem: str | None, timed_out: bool, host: str) -> list[Look]:
    if gpus or not platform.has_gpus:
        return []
    said = problem or "it shows none"
    if _MISMATCH in said:
        advice = _RELOAD
    elif "device handle" in said or "is lost" in said:
        advice = "a GPU fell off the bus: sudo dmesg | grep -iE 'xid|nvrm'; power the host off and on"
    elif timed_out:
        advice = "the driver hangs: sudo dmesg | grep -iE 'xid|nvrm'; reboot the host"
    elif "Unknown Error" in said and platform.kind:
        advice = "the container lost its devices (after systemctl daemon-reload): start it again"
    elif platform.kind:
        advice = "start the container with its GPUs: docker run --gpus all, with nvidia-container-toolkit on the host"
    else:
        advice = _LOAD
    return [
        Look(host, "driver", "NVIDIA driver", "does not answer", "error",
             f"GPUs are there and nvidia-smi does not show them: {said}", advice, rule=DRIVER.id)
    ]  # fmt: skip


def judge_failed(said: str, host: str) -> Look:
    """nvidia-smi that failed, by its words alone: whether it ran in a container they do not tell."""
    advice = _RELOAD if _MISMATCH in said else _LOAD
    if "Unknown Error" in said:
        advice = f"a container that lost its devices (after systemctl daemon-reload): start it again; else {_LOAD}"
    why = f"nvidia-smi says: {said}"
    return Look(host, "driver", "NVIDIA driver", "does not answer", "error", why, advice, rule=DRIVER.id)


def judge_lost(lost: Sequence[LostGpu], host: str) -> list[Look]:
    """GPUs that nvidia-smi could not reach."""
    if not lost:
        return []
    shown = ", ".join(f"{gpu.label} ({gpu.said})" for gpu in lost)
    return [
        Look(host, "driver", "lost GPU", shown, "error",
             "the driver gets no answer from it, so no program can use it",
             "see why: sudo dmesg | grep -iE 'xid|nvrm'; power the host off and on, and if it comes again have the "
             "card and its power supply looked at", {"gpus": [gpu.label for gpu in lost]}, rule=DRIVER.id)
    ]  # fmt: skip


def judge_pcie_ways(
    platform: PlatformFacts, virtual: bool | None, nvlinked: bool, gpus: int, host: str
) -> tuple[Look, ...]:
    """IOMMU and ACS on bare metal, where they lead what GPUs exchange over PCIe through the host, or break it.

    nvlinked: NVLink joins all GPUs, so only RDMA goes over PCIe.
    """
    if gpus < 1 or virtual is None:
        return ()
    if virtual:
        return (
            Look(host, "PCIe", "IOMMU and ACS", "virtual machine", "not_evaluated", "the host decides them",
                 rule=IOMMU_ACS.id),
        )  # fmt: skip
    looks = []
    level: Level = "note" if nvlinked else "warning"
    if platform.translated and gpus > 1:
        looks.append(
            Look(host, "PCIe", "IOMMU", f"translates for {len(platform.translated)} GPUs", level,
                 "direct access between GPUs over PCIe is slow or hangs, GPUDirect RDMA is slow",
                 "boot with iommu=pt (or off in the BIOS: VT-d, AMD-Vi)", {"gpus": list(platform.translated)},
                 rule=IOMMU_ACS.id)
        )  # fmt: skip
    if platform.redirecting and gpus > 1:
        looks.append(
            Look(host, "PCIe", "ACS", f"on at {len(platform.redirecting)} bridges", level,
                 "PCIe switches send all that GPUs and NICs exchange up to the CPU",
                 "turn it off in the BIOS, or for each bridge: sudo setpci -s BRIDGE ECAP_ACS+0x6.w=0000",
                 {"bridges": list(platform.redirecting)}, rule=IOMMU_ACS.id)
        )  # fmt: skip
    if not looks:
        acs = "ACS not readable without root" if platform.redirecting is None else "ACS off"
        looks = [Look(host, "PCIe", "IOMMU and ACS", f"IOMMU does not translate, {acs}", rule=IOMMU_ACS.id)]
    return tuple(looks)


def judge_iommu_warning(linked: bool, host: str) -> Look:
    """RCCL's warning that the kernel was not told to pass addresses through. linked: XGMI or NVLink joins all GPUs."""
    return Look(
        host, "PCIe", "IOMMU", "the kernel runs without iommu=pt", "note" if linked else "warning",
        "RCCL warns that GPUs which reach each other may then hang, unless passthrough is this kernel's default",
        "see sudo dmesg | grep 'Default domain type': where it says Translated, boot with iommu=pt", rule=IOMMU_ACS.id,
    )  # fmt: skip


def judge_fabric_manager(platform: PlatformFacts, told: bool, gpus: int, host: str) -> tuple[Look, ...]:
    """Whether NVSwitch has its manager, where the driver does not tell (before Hopper). told: it does."""
    what = "NVSwitch fabric"
    if told or not platform.switches or not gpus:
        return ()
    if platform.fabric_manager:
        return (Look(host, "NVLink", what, "fabric manager runs", rule=NVSWITCH.id),)
    if platform.kind:
        why = "whether the fabric manager runs is not seen from inside a container"
        return (Look(host, "NVLink", what, "not known", "not_evaluated", why, rule=NVSWITCH.id),)
    why = "the fabric manager does not run: CUDA programs end with 'system not yet initialized'"
    advice = "sudo systemctl start nvidia-fabricmanager (its version must be the driver's)"
    return (
        Look(host, "NVLink", what, f"{platform.switches} switches, no manager", "error", why, advice, rule=NVSWITCH.id),
    )


# TO-D502 and TO-D503: versions of torch and NCCL that do not fit the machine or each other.


TORCH = described("machine", "TO-D502", JudgedBy.DOCTOR)
NCCL = described("machine", "TO-D503", JudgedBy.DOCTOR)
RULES = (TORCH, NCCL)


def judge_software(software: Software, driver_cuda: str | None, gpus: int, host: str) -> tuple[Look, ...]:
    """torch against the driver, and NCCL against what torch was built with."""
    facts: dict[str, object] = {
        "python": software.python, "torch": software.torch, "cuda": software.cuda, "hip": software.hip,
        "nccl_wheels": dict(software.wheels), "driver_cuda": driver_cuda,
    }  # fmt: skip
    return (_torch(software, driver_cuda, gpus, host, facts), *_nccl(software, host))


def _torch(software: Software, driver_cuda: str | None, gpus: int, host: str, facts: dict[str, object]) -> Look:
    what = "torch"
    if software.torch is None:
        return Look(host, "software", what, "not installed", "error" if gpus else "warning",
                    "this Python cannot train, nor test a process group", "pip install 'torch>=2.6'",
                    facts, rule=TORCH.id)  # fmt: skip
    built = f"CUDA {software.cuda}" if software.cuda else f"ROCm {software.hip}" if software.hip else "the CPU only"
    found = f"{software.torch}, built for {built}"
    runs = f"CUDA {driver_cuda} or older" if driver_cuda else "a CUDA that the driver runs"
    fitting = f"install torch built for {runs}: see 'Get started' of pytorch.org"
    if gpus and not software.cuda and not software.hip:
        return Look(
            host, "software", what, found, "error", f"it cannot use the {gpus} GPUs", fitting, facts, rule=TORCH.id
        )
    own, can = version_of(software.cuda or ""), version_of(driver_cuda or "")
    if own and can and own[:1] > can[:1] and not software.compat:
        return Look(host, "software", what, found, "error",
                    f"the driver runs CUDA up to {driver_cuda}: torch sees no GPU",
                    f"update the driver, or {fitting}", facts, rule=TORCH.id)  # fmt: skip
    if own and can and own[:2] > can[:2]:
        return Look(host, "software", what, found, "note",
                    f"newer than the driver's CUDA {driver_cuda}: it runs, but kernels cannot be compiled when needed",
                    f"update the driver, or {fitting}", facts, rule=TORCH.id)  # fmt: skip
    return Look(host, "software", what, found, facts=facts, rule=TORCH.id)


def _nccl(software: Software, host: str) -> list[Look]:
    facts = {"wheels": dict(software.wheels), "needs": software.needs, "preloaded": dict(software.preloaded),
             "library_path": dict(software.found)}  # fmt: skip
    looks = []
    if len(software.wheels) > 1:
        names = " ".join(f"nvidia-nccl-{cuda}" for cuda, _ in software.wheels)
        shown = ", ".join(f"nvidia-nccl-{cuda} {version}" for cuda, version in software.wheels)
        looks.append(
            Look(host, "software", "NCCL", shown, "warning",
                 "several wheels write the same libnccl.so.2: the last one wins",
                 f"pip uninstall -y {names}; install torch again",
                 facts, rule=NCCL.id)
        )  # fmt: skip
    elif software.wheels and software.needs and software.wheels[0][1] != software.needs:
        looks.append(
            Look(host, "software", "NCCL", f"{software.wheels[0][1]}, torch asks for {software.needs}", "note",
                 "torch was tested with the other version",
                 f"pip install nvidia-nccl-{software.wheels[0][0]}=={software.needs}", facts, rule=NCCL.id)
        )  # fmt: skip
    elif software.nccl:
        looks.append(
            Look(
                host,
                "software",
                "NCCL",
                software.nccl,
                why="the version of torch's wheel" if software.wheels else "",
                facts=facts,
                rule=NCCL.id,
            )
        )
    expected = software.wheels[0][1] if software.wheels else software.needs
    looks += _others(software.preloaded, "LD_PRELOAD", expected, "warning", host)
    looks += _others(software.found, "LD_LIBRARY_PATH", expected, "note", host)
    return looks


def _others(
    libraries: Sequence[tuple[str, str | None]], variable: str, expected: str | None, level: Level, host: str
) -> list[Look]:
    """NCCL from elsewhere: LD_PRELOAD always wins, LD_LIBRARY_PATH over some builds of torch only."""
    looks = []
    for path, version in libraries[:1]:
        if expected is None or version == expected:
            continue
        may = "is loaded in place of" if variable == "LD_PRELOAD" else "may be loaded in place of"
        looks.append(
            Look(host, "software", f"NCCL by {variable}", f"{path} ({version or 'unknown'})", level,
                 f"it {may} torch's {expected}; see which with NCCL_DEBUG=VERSION",
                 f"leave it out of {variable}, if it is not there on purpose", {"path": path, "version": version},
                 rule=NCCL.id)
        )  # fmt: skip
    return looks
