"""TO-D502 and TO-D503: versions of torch and NCCL that do not fit the machine or each other."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.rule import JudgedBy, Rule
from traceops.machine.look import Level, Look
from traceops.machine.software import Software
from traceops.machine.variable import version_of

TORCH = Rule(
    id="TO-D502",
    title="torch does not fit this machine",
    fires=(
        "On a host with GPUs: error where torch is not installed, is built for the CPU only, or is built for a "
        "newer major CUDA than the driver runs; info where its CUDA is newer by a minor version. On a host "
        "without GPUs: warning where torch is not installed."
    ),
    advice=("Install a torch built for the driver's CUDA or older (pytorch.org, 'Get started'), or update the driver."),
    judged_by=JudgedBy.DOCTOR,
)
NCCL = Rule(
    id="TO-D503",
    title="NCCL is not the one that torch was built with",
    fires=(
        "Warning where several wheels of NCCL are installed or LD_PRELOAD loads another version; info where "
        "the version differs from what torch asks for, or LD_LIBRARY_PATH holds another one."
    ),
    advice=("Install the version that torch asks for, and leave others out of LD_PRELOAD and LD_LIBRARY_PATH."),
    judged_by=JudgedBy.DOCTOR,
)
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
