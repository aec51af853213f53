"""TO-D005 to TO-D010: modes of GPUs, unlike GPUs, programs of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from traceops.core.rule import JudgedBy, Rule
from traceops.machine.look import Look
from traceops.machine.smi import Smi, SmiGpu
from traceops.rules.machine.gpu_health import memory_looks, some_gpus, speed_looks
from traceops.rules.machine.platform import DRIVER

COMPUTE_MODE = Rule(
    id="TO-D005",
    title="The compute mode keeps processes off a GPU",
    fires=(
        "Error where it is Prohibited, info where it is Exclusive (one process at a time), and no server of MPS runs "
        "there, which wants that."
    ),
    advice="sudo nvidia-smi -i GPU -c DEFAULT",
    judged_by=JudgedBy.DOCTOR,
)
MIG = Rule(
    id="TO-D006",
    title="A GPU is divided into slices (MIG)",
    fires=(
        "Warning where the host has several GPUs, info where it has one or where a change of MIG waits for a reset."
    ),
    advice="Turn it off for jobs over several GPUs: sudo nvidia-smi -i GPU -mig 0.",
    judged_by=JudgedBy.DOCTOR,
)
PERSISTENCE = Rule(
    id="TO-D007",
    title="The driver unloads GPUs that nobody uses",
    fires="Info where persistence mode is off: starting takes seconds longer.",
    advice="sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1",
    judged_by=JudgedBy.DOCTOR,
)
ECC_OFF = Rule(
    id="TO-D008",
    title="Errors in the memory of a GPU go unnoticed",
    fires="Info where ECC is off.",
    advice="sudo nvidia-smi -i GPU -e 1",
    judged_by=JudgedBy.DOCTOR,
)
OTHERS = Rule(
    id="TO-D009",
    title="Other programs use the GPUs",
    fires=(
        "Info where others hold more than 1 GiB; warning where they hold 20 % of the memory or keep the GPU 50 % busy."
    ),
    advice="End them (nvidia-smi shows them), or take other GPUs with CUDA_VISIBLE_DEVICES.",
    judged_by=JudgedBy.DOCTOR,
)
UNLIKE_GPUS = Rule(
    id="TO-D010",
    title="The GPUs of the host are of different models",
    fires="Info where nvidia-smi shows more than one model.",
    advice="Use equal GPUs in one job: CUDA_VISIBLE_DEVICES with CUDA_DEVICE_ORDER=PCI_BUS_ID.",
    judged_by=JudgedBy.DOCTOR,
)
RULES = (COMPUTE_MODE, MIG, PERSISTENCE, ECC_OFF, OTHERS, UNLIKE_GPUS)
_MPS = "nvidia-cuda-mps-server"
_OTHERS_MIB = 1024  # more than a context, Xorg or a monitor holds
_OTHERS_SHARE = 0.2
_BUSY_PCT = 50
_GIB = 1024


def judge_gpus(smi: Smi, host: str) -> tuple[Look, ...]:
    """One Look each on all GPUs, the driver, memory and clocks, and one for each thing that is wrong with some GPUs."""
    if not smi.gpus:
        return (Look(host, "GPU", "GPUs", "none", "not_evaluated", "nvidia-smi shows no GPU"),)
    looks = [
        _all(smi, host),
        Look(host, "driver", "NVIDIA driver", _driver(smi), facts={"cuda": smi.cuda}, rule=DRIVER.id),
    ]
    modes = _modes(smi.gpus, host)
    watched = all(look.rule != ECC_OFF.id for look in modes)
    return (*looks, *modes, *memory_looks(smi.gpus, host, watched=watched), *speed_looks(smi.gpus, host))


def _all(smi: Smi, host: str) -> Look:
    names = Counter(gpu.name for gpu in smi.gpus)
    found = ", ".join(f"{count} × {name}" for name, count in names.items())
    facts = {
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "bus_id": gpu.bus_id, "memory_mib": gpu.memory,
             "used_mib": gpu.used, "temperature_c": gpu.temperature, "power_limit_w": gpu.power_limit,
             "sm_clock_mhz": gpu.clock, "max_sm_clock_mhz": gpu.most_clock, "ecc": gpu.ecc, "bar1_mib": gpu.bar1}
            for gpu in smi.gpus
        ]
    }  # fmt: skip
    memories = [gpu.memory for gpu in smi.gpus if gpu.memory]
    if len(names) > 1:
        found += f"; {_gib(min(memories))} to {_gib(max(memories))} GiB" if memories else ""
        why = "different GPUs in one job: the slowest sets the pace, and the smallest memory what fits"
        return Look(host, "GPU", "GPUs", found, "note", why, _equal_ones(smi.gpus, names), facts, rule=UNLIKE_GPUS.id)
    found += f", {_gib(min(memories))} GiB" if memories else ""
    return Look(host, "GPU", "GPUs", found, facts=facts, rule=UNLIKE_GPUS.id)


def _gib(mib: int) -> str:
    return f"{mib / _GIB:.0f}"


def _equal_ones(gpus: Sequence[SmiGpu], names: Counter[str]) -> str:
    [(name, most)] = names.most_common(1)
    if most == 1:
        return "no two are equal: train on one of them, or give each the work that fits it"
    equal = ",".join(str(gpu.index) for gpu in gpus if gpu.name == name)
    return f"use equal ones: export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={equal}"


def _driver(smi: Smi) -> str:
    return (smi.driver or "unknown version") + (f" (runs CUDA up to {smi.cuda})" if smi.cuda else "")


def _modes(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    several = len(gpus) > 1
    return [
        *some_gpus(gpus, lambda gpu: "off" if gpu.persistence is False else "", host, "persistence mode", "note",
               "the driver unloads a GPU nobody uses: starting takes seconds longer",
               "sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1", rule=PERSISTENCE),
        *some_gpus(gpus, lambda gpu: "enabled" if gpu.mig else "", host, "MIG", "warning" if several else "note",
               "a rank sees one slice; slices have no NVLink and no direct access to each other",
               "for jobs over several GPUs: sudo nvidia-smi -i {index} -mig 0", rule=MIG),
        *some_gpus(gpus, lambda gpu: "a change waits" if gpu.mig_pending else "", host, "MIG change", "note",
               "MIG is switched at the next reset", "sudo nvidia-smi -i {index} -r", rule=MIG),
        *some_gpus(gpus, lambda gpu: "Prohibited" if gpu.compute_mode == "Prohibited" else "", host, "compute mode",
               "error", "no program may use the GPU", "sudo nvidia-smi -i {index} -c DEFAULT",
               rule=COMPUTE_MODE),
        *some_gpus(gpus, lambda gpu: gpu.compute_mode if gpu.compute_mode.startswith("Exclusive")
               and not any(_MPS in one.name for one in gpu.processes) else "", host, "compute mode", "note",
               "one process at a time: a rank works on a GPU of its own; a second process there, or a rank that opens "
               "another's GPU, ends with 'busy or unavailable'",
               "sudo nvidia-smi -i {index} -c DEFAULT", rule=COMPUTE_MODE),
        *some_gpus(gpus, lambda gpu: "off" if gpu.ecc is False else "", host, "ECC", "note",
               "errors in memory go unnoticed; cards without it show the same", "sudo nvidia-smi -i {index} -e 1",
               rule=ECC_OFF),
        *_others(gpus, host),
    ]  # fmt: skip


def _others(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    """Programs of others: they take memory and time, and make what is measured here too low."""

    def programs(gpu: SmiGpu) -> str:
        compute = [one for one in gpu.processes if "C" in one.kind]
        shown = ", ".join(f"{one.name.rpartition('/')[2]} (pid {one.pid})" for one in compute[:3])
        if (gpu.used or 0) < _OTHERS_MIB and (gpu.utilization or 0) < _BUSY_PCT:
            return ""
        used = f"{(gpu.used or 0) / _GIB:.1f} GiB used, {gpu.utilization or 0} % busy"
        return f"{used} by {shown}" if shown else f"{used}, by whom is not seen from here"

    heavy = [
        gpu for gpu in gpus
        if (gpu.used or 0) > _OTHERS_SHARE * (gpu.memory or 1 << 30) or (gpu.utilization or 0) >= _BUSY_PCT
    ]  # fmt: skip
    return some_gpus(
        gpus, programs, host, "in use by others", "warning" if heavy else "note",
        "other programs take memory and time of these GPUs; what is measured now is too low",
        "see nvidia-smi; end them, or take other GPUs with CUDA_VISIBLE_DEVICES", rule=OTHERS,
    )  # fmt: skip
