"""What is wrong with GPUs: broken memory, lowered clocks, modes that keep ranks out, programs of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from traceops.machine.look import Level, Look
from traceops.machine.smi import Smi, SmiGpu

_REASONS = {
    "hw_slowdown": "the hardware halves the clocks, for heat or power",
    "hw_thermal_slowdown": "the hardware lowers the clocks: too hot",
    "sw_thermal_slowdown": "the driver lowers the clocks: too hot",
    "hw_power_brake_slowdown": "the server's power supply asks for less power",
}
_CAPPED = {
    "applications_clocks_setting": "somebody set the clocks",
    "sync_boost": "clocks are tied to other GPUs'",
    "sw_power_cap": "the power limit is reached",
}
_OF_MEMORY = ("ECC", "broken memory", "ECC errors", "repair waits", "recovery", "memory repaired")
_OF_CLOCKS = ("throttled", "clocks lowered")
_NEAR_C = 3  # degrees from where a GPU slows itself down
_LESS_POWER = 0.9
_OTHERS_MIB = 1024  # more than a context, Xorg or a monitor holds
_OTHERS_SHARE = 0.2
_BUSY_PCT = 50
_REPLAYS = 1000
_GIB = 1024


def look_at_gpus(smi: Smi, host: str) -> tuple[Look, ...]:
    """One Look each on all GPUs, the driver, memory and clocks, and one for each thing that is wrong with some GPUs."""
    if not smi.gpus:
        return (Look(host, "GPU", "GPUs", "none", "not_evaluated", "nvidia-smi shows no GPU"),)
    looks = [_all(smi, host), Look(host, "driver", "NVIDIA driver", _driver(smi), facts={"cuda": smi.cuda})]
    modes, health, speed = (judge(smi.gpus, host) for judge in (_modes, _health, _speed))
    if not any(look.what in _OF_MEMORY for look in modes + health):
        health.append(_sound_memory(smi.gpus, host))
    if not any(look.what in _OF_CLOCKS for look in speed):
        speed.append(_full_clocks(smi.gpus, host))
    return tuple(looks + modes + health + speed)


def _all(smi: Smi, host: str) -> Look:
    names = Counter(gpu.name for gpu in smi.gpus)
    memory = min((gpu.memory for gpu in smi.gpus if gpu.memory), default=None)
    found = ", ".join(f"{count} × {name}" for name, count in names.items())
    found += f", {memory / _GIB:.0f} GiB" if memory else ""
    facts = {
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "bus_id": gpu.bus_id, "memory_mib": gpu.memory,
             "used_mib": gpu.used, "temperature_c": gpu.temperature, "power_limit_w": gpu.power_limit,
             "sm_clock_mhz": gpu.clock, "max_sm_clock_mhz": gpu.most_clock, "ecc": gpu.ecc, "bar1_mib": gpu.bar1}
            for gpu in smi.gpus
        ]
    }  # fmt: skip
    if len(names) > 1:
        return Look(
            host, "GPU", "GPUs", found, "note", "different GPUs in one job: the slowest sets the pace",
            "use equal ones: export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES="
            + ",".join(str(gpu.index) for gpu in smi.gpus if gpu.name == names.most_common(1)[0][0]), facts,
        )  # fmt: skip
    return Look(host, "GPU", "GPUs", found, facts=facts)


def _driver(smi: Smi) -> str:
    return (smi.driver or "unknown version") + (f" (runs CUDA up to {smi.cuda})" if smi.cuda else "")


def _some(
    gpus: Sequence[SmiGpu],
    said: Callable[[SmiGpu], str],
    host: str,
    what: str,
    level: Level,
    why: str,
    advice: str,
) -> list[Look]:
    """One Look for all GPUs of which something is said, none where nothing is; `{index}` in advice is the first's."""
    hit = {gpu: text for gpu in gpus if (text := said(gpu))}
    if not hit:
        return []
    by_text: dict[str, list[str]] = {}
    for gpu, text in hit.items():
        by_text.setdefault(text, []).append(gpu.label)
    found = "; ".join(
        f"{'all GPUs' if len(labels) == len(gpus) > 1 else ', '.join(labels)}: {text}"
        for text, labels in by_text.items()
    )
    first = ",".join(str(gpu.index) for gpu in hit)
    return [
        Look(
            host,
            "GPU",
            what,
            found,
            level,
            why,
            advice.replace("{index}", first),
            {"gpus": [g.index for g in hit]},
        )
    ]


def _modes(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    several = len(gpus) > 1
    return [
        *_some(gpus, lambda gpu: "off" if gpu.persistence is False else "", host, "persistence mode", "note",
               "the driver unloads a GPU nobody uses: starting takes seconds longer",
               "sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1"),
        *_some(gpus, lambda gpu: "enabled" if gpu.mig else "", host, "MIG", "warning" if several else "note",
               "a rank sees one slice; slices have no NVLink and no direct access to each other",
               "for jobs over several GPUs: sudo nvidia-smi -i {index} -mig 0"),
        *_some(gpus, lambda gpu: "a change waits" if gpu.mig_pending else "", host, "MIG change", "note",
               "MIG is switched at the next reset", "sudo nvidia-smi -i {index} -r"),
        *_some(gpus, lambda gpu: "Prohibited" if gpu.compute_mode == "Prohibited" else "", host, "compute mode",
               "error", "no program may use the GPU", "sudo nvidia-smi -i {index} -c DEFAULT"),
        *_some(gpus, lambda gpu: gpu.compute_mode if gpu.compute_mode.startswith("Exclusive") else "", host,
               "compute mode", "warning",
               "one process only: a second one on the same GPU (another rank, evaluation) ends with an error",
               "sudo nvidia-smi -i {index} -c DEFAULT"),
        *_some(gpus, lambda gpu: "off" if gpu.ecc is False else "", host, "ECC", "note",
               "errors in memory go unnoticed; cards without it show the same", "sudo nvidia-smi -i {index} -e 1"),
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
    return _some(
        gpus, programs, host, "in use by others", "warning" if heavy else "note",
        "other programs take memory and time of these GPUs; what is measured now is too low",
        "see nvidia-smi; end them, or take other GPUs with CUDA_VISIBLE_DEVICES",
    )  # fmt: skip


def _health(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    reset = "end what runs on it and: sudo nvidia-smi -i {index} -r (or reboot)"
    return [
        *_some(gpus, lambda gpu: ", ".join(gpu.broken), host, "broken memory", "error",
               "the GPU can no longer repair itself", "take GPU {index} out of the job and have it replaced"),
        *_some(gpus, lambda gpu: f"{gpu.uncorrectable} uncorrectable" if gpu.uncorrectable else "", host,
               "ECC errors", "warning", "since the driver was loaded, and not corrected: the job that met them died",
               f"{reset}; if it comes again, have it replaced"),
        *_some(gpus, lambda gpu: ", ".join(gpu.pending), host, "repair waits", "warning",
               "until the reset a job may meet the bad place", reset),
        *_some(gpus, lambda gpu: gpu.recovery or "", host, "recovery", "error",
               "the driver says that the GPU needs this before it works again", reset),
        *_some(gpus, _past, host, "memory repaired", "note",
               "errors of the past: replaced, and of no consequence unless the number grows",
               "watch it: nvidia-smi -q -d ROW_REMAPPER,ECC -i {index}"),
        *_some(gpus, lambda gpu: f"{gpu.replays} replays" if gpu.replays >= _REPLAYS else "", host, "PCIe replays",
               "note", "packets on PCIe had to be sent again since the driver was loaded",
               "if it grows: reseat the card, check riser and cables"),
    ]  # fmt: skip


def _sound_memory(gpus: Sequence[SmiGpu], host: str) -> Look:
    """What is said where nothing is wrong with the memory of any GPU."""
    if not all(gpu.ecc for gpu in gpus):
        why = "nvidia-smi does not tell it of every GPU"
        return Look(host, "GPU", "memory errors", "not known", "not_evaluated", why)
    return Look(host, "GPU", "memory errors", "none; ECC is on")


def _full_clocks(gpus: Sequence[SmiGpu], host: str) -> Look:
    """What is said where nothing lowers the clocks of any GPU."""
    if not all(gpu.tells_reasons for gpu in gpus):
        why = "nvidia-smi does not tell of every GPU whether its clocks are lowered"
        return Look(host, "GPU", "clocks", "not known", "not_evaluated", why)
    now = sorted({gpu.clock for gpu in gpus if gpu.clock is not None})
    most = max((gpu.most_clock for gpu in gpus if gpu.most_clock is not None), default=None)
    shown = "" if not now else f"{now[0]} MHz" if len(now) == 1 else f"{now[0]} to {now[-1]} MHz"
    shown += f" of {most}" if shown and most is not None else ""
    shown += ", idle" if shown and all(gpu.idle for gpu in gpus) else ""
    return Look(host, "GPU", "clocks", f"{shown}; not lowered" if shown else "not lowered")


def _past(gpu: SmiGpu) -> str:
    parts = [
        f"{gpu.remapped} rows replaced" if gpu.remapped else "",
        f"{gpu.retired} pages retired" if gpu.retired else "",
        f"{gpu.uncorrectable_ever} uncorrectable errors ever"
        if gpu.uncorrectable_ever > gpu.uncorrectable else "",
    ]  # fmt: skip
    return ", ".join(part for part in parts if part)


def _speed(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    def slowed(gpu: SmiGpu) -> str:
        return ", ".join(_REASONS[reason] for reason in gpu.reasons if reason in _REASONS)

    def capped(gpu: SmiGpu) -> str:
        # at the power limit is where a busy GPU belongs
        return ", ".join(
            _CAPPED[r] for r in gpu.reasons if r in _CAPPED and (gpu.idle or r != "sw_power_cap")
        )

    def weaker(gpu: SmiGpu) -> str:
        most = max(other.power_limit or 0 for other in gpus if other.name == gpu.name)
        low = gpu.power_limit is not None and gpu.power_limit < _LESS_POWER * most
        return f"{gpu.power_limit:g} W, siblings {most:g} W" if low else ""

    def limited(gpu: SmiGpu) -> str:
        if weaker(gpu) or gpu.power_limit is None or gpu.default_power_limit is None:
            return ""
        low = gpu.power_limit < _LESS_POWER * gpu.default_power_limit
        return f"{gpu.power_limit:g} of {gpu.default_power_limit:g} W" if low else ""

    def hot(gpu: SmiGpu) -> str:
        if gpu.tlimit is not None:
            return f"{gpu.temperature} °C, {gpu.tlimit} below its limit" if gpu.tlimit <= _NEAR_C else ""
        near = gpu.slowdown_at and gpu.temperature and gpu.temperature >= gpu.slowdown_at - _NEAR_C
        return f"{gpu.temperature} °C, slows down at {gpu.slowdown_at}" if near else ""

    return [
        *_some(gpus, slowed, host, "throttled", "warning", "the slowest GPU makes all ranks wait",
               "check cooling and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {index}"),
        *_some(gpus, capped, host, "clocks lowered", "note", "compute is slower than the card could",
               "if nobody wants that: sudo nvidia-smi -i {index} -rac, sudo nvidia-smi -i {index} -rgc"),
        *_some(gpus, weaker, host, "power limit", "warning", "a GPU with less power makes the others wait",
               "as its siblings have: sudo nvidia-smi -i {index} -pl WATTS"),
        *_some(gpus, limited, host, "power limit below default", "note", "compute is slower than the card could",
               "if nobody wants that: sudo nvidia-smi -i {index} -pl WATTS"),
        *_some(gpus, hot, host, "temperature", "warning", "it is about to lower its clocks",
               "check cooling: nvidia-smi -q -d TEMPERATURE -i {index}"),
    ]  # fmt: skip
