"""TO-D005 to TO-D010: modes of GPUs, unlike GPUs, programs of others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from traceops.core.rule import JudgedBy, Rule, described
from traceops.machine.look import Level, Look
from traceops.machine.smi import Smi, SmiGpu
from traceops.machine.xids import DriverFailure, DriverLog, Xid
from traceops.rules.machine.links import PCIE_LINK
from traceops.rules.machine.platform import DRIVER

# TO-D001, TO-D003 and TO-D004: memory, clocks and power of GPUs.


MEMORY = described("machine", "TO-D001", JudgedBy.DOCTOR)


CLOCKS = described("machine", "TO-D003", JudgedBy.DOCTOR)


POWER = described("machine", "TO-D004", JudgedBy.DOCTOR)
RULES = (MEMORY, CLOCKS, POWER)


_REASONS = {
    "hw_slowdown": "the hardware cuts the clocks to half or less, for heat or power",
    "hw_thermal_slowdown": "the hardware cuts the clocks to half or less for heat",
    "sw_thermal_slowdown": "the driver lowers the clocks for heat",
    "hw_power_brake_slowdown": "the hardware cuts the clocks to half or less: a power brake from outside is on",
}
_HARDWARE = "hw_slowdown"  # said beside each of its own reasons too


_CAPPED = {
    "applications_clocks_setting": "somebody set the clocks",
    "sync_boost": "clocks are tied to other GPUs'",
    "sw_power_cap": "the power limit is reached",
}


_NEAR_C = 3  # degrees from where a GPU slows itself down


_LESS_POWER = 0.9


_REPLAYS = 1000


def some_gpus(
    gpus: Sequence[SmiGpu],
    said: Callable[[SmiGpu], str],
    host: str,
    what: str,
    level: Level,
    why: str,
    advice: str,
    *,
    rule: Rule,
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
            rule=rule.id,
        )
    ]


def memory_looks(gpus: Sequence[SmiGpu], host: str, *, watched: bool) -> list[Look]:
    """What is wrong with the memory and the links of GPUs, or one Look that says their memory is sound.

    watched: ECC is off on none of them.
    """
    looks = _health(gpus, host)
    if watched and not any(look.rule == MEMORY.id for look in looks):
        looks.append(_sound_memory(gpus, host))
    return looks


def _health(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    reset = "end what runs on it and: sudo nvidia-smi -i {index} -r (or reboot)"
    return [
        *some_gpus(gpus, lambda gpu: ", ".join(gpu.broken), host, "broken memory", "error",
               "the GPU can no longer repair itself", "take GPU {index} out of the job and have it replaced",
               rule=MEMORY),
        *some_gpus(gpus, _new_errors, host, "ECC errors", "warning",
               "since the driver was loaded: a program that meets such an error ends",
               f"{reset}; if it comes again, have it replaced", rule=MEMORY),
        *some_gpus(gpus, lambda gpu: ", ".join(gpu.pending), host, "repair waits", "warning",
               "until the reset a job may meet the bad place", reset, rule=MEMORY),
        *some_gpus(gpus, lambda gpu: gpu.recovery or "", host, "recovery", "error",
               "the driver says that the GPU needs this before it works again", reset, rule=MEMORY),
        *some_gpus(gpus, _past, host, "memory repaired", "note",
               "errors of the past: replaced, and of no consequence unless the number grows",
               "watch it: nvidia-smi -q -d ROW_REMAPPER,ECC -i {index}", rule=MEMORY),
        *some_gpus(gpus, lambda gpu: f"{gpu.replays} replays" if gpu.replays >= _REPLAYS else "", host, "PCIe replays",
               "note", "packets on PCIe had to be sent again since the driver was loaded",
               "if it grows: reseat the card, check riser and cables", rule=PCIE_LINK),
    ]  # fmt: skip


def _sound_memory(gpus: Sequence[SmiGpu], host: str) -> Look:
    """What is said where nothing is wrong with the memory of any GPU."""
    if not all(gpu.ecc for gpu in gpus):
        why = "nvidia-smi does not tell it of every GPU"
        return Look(host, "GPU", "memory errors", "not known", "not_evaluated", why, rule=MEMORY.id)
    return Look(host, "GPU", "memory errors", "none; ECC is on", rule=MEMORY.id)


def _full_clocks(gpus: Sequence[SmiGpu], host: str) -> Look:
    """What is said where nothing lowers the clocks of any GPU."""
    if not all(gpu.tells_reasons for gpu in gpus):
        why = "nvidia-smi does not tell of every GPU whether its clocks are lowered"
        return Look(host, "GPU", "clocks", "not known", "not_evaluated", why, rule=CLOCKS.id)
    shown = _clocks(gpus).rstrip("; ")
    shown += ", idle" if shown and all(gpu.idle for gpu in gpus) else ""
    return Look(host, "GPU", "clocks", f"{shown}; not lowered" if shown else "not lowered", rule=CLOCKS.id)


def _clocks(gpus: Sequence[SmiGpu]) -> str:
    """'345 to 360 MHz of 1980; ', and nothing where the driver tells no clock."""
    now = sorted({gpu.clock for gpu in gpus if gpu.clock is not None})
    most = max((gpu.most_clock for gpu in gpus if gpu.most_clock is not None), default=None)
    shown = "" if not now else f"{now[0]} MHz" if len(now) == 1 else f"{now[0]} to {now[-1]} MHz"
    return f"{shown}{f' of {most}' if most is not None else ''}; " if shown else ""


def _new_errors(gpu: SmiGpu) -> str:
    ever = f" ({gpu.uncorrectable_ever} ever)" if gpu.uncorrectable_ever > gpu.uncorrectable else ""
    return f"{gpu.uncorrectable} uncorrectable{ever}" if gpu.uncorrectable else ""


def _past(gpu: SmiGpu) -> str:
    """What was repaired, of a GPU that needs no repair now: else it is not of the past alone."""
    if gpu.broken or gpu.uncorrectable or gpu.pending:
        return ""
    parts = [
        f"{gpu.remapped} rows replaced" if gpu.remapped else "",
        f"{gpu.retired} pages retired" if gpu.retired else "",
        f"{gpu.uncorrectable_ever} uncorrectable errors ever"
        if gpu.uncorrectable_ever > gpu.uncorrectable else "",
    ]  # fmt: skip
    return ", ".join(part for part in parts if part)


def speed_looks(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    """What makes GPUs slower than they could be, or is about to; one Look where nothing lowers their clocks."""

    def slowed(gpu: SmiGpu) -> str:
        own = any(reason.startswith("hw_") and reason != _HARDWARE for reason in gpu.reasons)
        return ", ".join(
            _REASONS[reason] for reason in gpu.reasons if reason in _REASONS and not (own and reason == _HARDWARE)
        )

    def capped(gpu: SmiGpu) -> str:
        # at the power limit is where a busy GPU belongs, an idle one may say so far below it, and nobody set the
        # clocks that a card has by default
        draw, limit = gpu.power_draw, gpu.power_limit
        below = draw is not None and limit is not None and draw < _LESS_POWER * limit
        usual = {"sw_power_cap": not gpu.idle or below, "applications_clocks_setting": gpu.own_clocks}
        return ", ".join(_CAPPED[r] for r in gpu.reasons if r in _CAPPED and not usual.get(r))

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

    lowered = [
        *some_gpus(gpus, slowed, host, "throttled", "warning",
               f"{_clocks([gpu for gpu in gpus if slowed(gpu)])}the slowest GPU makes all ranks wait",
               "check cooling and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {index}",
               rule=CLOCKS),
        *some_gpus(gpus, capped, host, "clocks lowered", "note", "compute is slower than it could be",
               "if nobody wants that: sudo nvidia-smi -i {index} -rac, sudo nvidia-smi -i {index} -rgc",
               rule=CLOCKS),
    ]  # fmt: skip
    return [
        *lowered,
        *some_gpus(gpus, weaker, host, "power limit", "warning", "a GPU with less power makes the others wait",
               "as its siblings have: sudo nvidia-smi -i {index} -pl WATTS", rule=POWER),
        *some_gpus(gpus, limited, host, "power limit below default", "note", "compute is slower than it could be",
               "if nobody wants that: sudo nvidia-smi -i {index} -pl WATTS", rule=POWER),
        *some_gpus(gpus, hot, host, "temperature", "warning", "it is about to lower its clocks",
               "check cooling: nvidia-smi -q -d TEMPERATURE -i {index}", rule=CLOCKS),
        *([] if lowered else [_full_clocks(gpus, host)]),
    ]  # fmt: skip


COMPUTE_MODE = described("machine", "TO-D005", JudgedBy.DOCTOR)
MIG = described("machine", "TO-D006", JudgedBy.DOCTOR)
PERSISTENCE = described("machine", "TO-D007", JudgedBy.DOCTOR)
ECC_OFF = described("machine", "TO-D008", JudgedBy.DOCTOR)
OTHERS = described("machine", "TO-D009", JudgedBy.DOCTOR)
UNLIKE_GPUS = described("machine", "TO-D010", JudgedBy.DOCTOR)
GPUS_RULES = (COMPUTE_MODE, MIG, PERSISTENCE, ECC_OFF, OTHERS, UNLIKE_GPUS)
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


XID = described("machine", "TO-D002", JudgedBy.DOCTOR)
XID_RULES = (XID,)
_REPLACE = "take this GPU out of the job; if a reset (sudo nvidia-smi -r) or reboot does not help, have it replaced"
_RESET = "end what runs on it and: sudo nvidia-smi -r -i GPU (or reboot)"
_PROGRAM = "a program's mistake as a rule: run it with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer"

# Code: how bad, what it says, what to do [docs.nvidia.com/deploy/xid-errors]. Codes that are not here are notes.
_CODES: dict[int, tuple[Level, str, str]] = {
    13: ("note", "a kernel failed (illegal instruction or address)", _PROGRAM),
    31: ("note", "a kernel used memory it may not", _PROGRAM),
    32: ("note", "a broken command reached the GPU", _PROGRAM),
    43: ("note", "a program was stopped after its own error", _PROGRAM),
    45: ("note", "a program was ended and its work removed", "look for the error before it"),
    48: ("error", "memory error that could not be corrected", _REPLACE),
    61: ("warning", "the GPU's microcontroller stopped", _RESET),
    62: ("warning", "the GPU's microcontroller stopped", _RESET),
    63: ("warning", "a row or page of memory is to be replaced: needs a reset", _RESET),
    64: ("error", "a row or page of memory could not be replaced", _REPLACE),
    68: ("note", "the video unit failed", _PROGRAM),
    69: ("note", "a kernel failed (graphics engine class error)", _PROGRAM),
    74: ("error", "NVLink error", "nvidia-smi nvlink -s, nvidia-smi nvlink -e; reset the GPUs"),
    79: ("error", "the GPU fell off the bus", "power the host off and on; check power cables, riser and card"),
    92: ("warning", "many corrected memory errors", "watch it: nvidia-smi -q -d ECC"),
    94: ("warning", "memory error that hit one program only", _RESET),
    95: ("error", "memory error that hit all programs on the GPU", _RESET),
    109: ("warning", "the GPU did not switch between programs in time", "update the driver if it comes again"),
    110: ("warning", "security fault", _RESET),
    119: ("error", "the GPU's firmware (GSP) did not answer", f"{_RESET}; update the driver if it comes again"),
    120: ("error", "the GPU's firmware (GSP) failed", f"{_RESET}; update the driver if it comes again"),
    140: ("error", "memory error that was not recovered", _REPLACE),
    143: ("error", "the GPU did not start up", _REPLACE),
    **dict.fromkeys(range(144, 151), ("warning", "NVLink error", "check with nvidia-smi nvlink -s and -e")),
    155: ("note", "NVLink went down for a software reason", "look for the error before it"),
    156: ("note", "a resource of the GPU was retired", "watch it: nvidia-smi -q -d ECC"),
    158: ("warning", "GPU timeout", _RESET),
    160: ("warning", "a memory channel is to be repaired", _RESET),
    171: ("warning", "a memory error was corrected by a spare", _RESET),
}  # fmt: skip
_ACTION = 154  # says what the driver wants done: its text decides


def judge_xids(log: DriverLog, problem: str | None, labels: dict[str, str], host: str) -> tuple[Look, ...]:
    """What the kernel's log says of GPUs since boot. labels: ``GPU0`` by bus id. problem: why there is no log."""
    if problem:
        return (
            Look(host, "GPU", "Xid errors", "not known", "not_evaluated", f"the kernel's log cannot be read: {problem}",
                 "sudo dmesg | grep -i xid", rule=XID.id),
        )  # fmt: skip
    earlier, now = log.earlier, log.now
    looks = [*(_look(xid, labels, host) for xid in now.xids), *(_failure(one, labels, host) for one in now.failures)]
    if not now.xids:
        looks.append(Look(host, "GPU", "Xid errors", "none since boot", rule=XID.id))
    known = {(xid.bus_id, xid.code) for xid in now.xids}
    past = [_look(xid, labels, host) for xid in earlier.xids if (xid.bus_id, xid.code) not in known]
    past += [_failure(one, labels, host) for one in earlier.failures]
    return (*looks, *(replace(one, found=f"{one.found}, before the last boot", level="note") for one in past))


def _failure(failure: DriverFailure, labels: dict[str, str], host: str) -> Look:
    """What the driver could not do; of a GPU that nvidia-smi lists it can by now."""
    facts = {"bus_id": failure.bus_id, "text": failure.text}
    why = f"the kernel's log says: {failure.text}"
    if failure.kind == "versions":
        level: Level = "note" if labels else "error"
        found = "the kernel's part of the driver and a program's library are of different versions"
        advice = "after an update of the driver reboot, or load its modules again; in a container update the image"
        return Look(host, "GPU", "driver", found, level, why, advice, facts, rule=XID.id)
    label = ", ".join(labels.values()) if failure.bus_id is None else labels.get(failure.bus_id)
    which = "the GPU" if failure.bus_id is not None else "GPUs"
    where = label or failure.bus_id
    found = f"{f'{where}: ' if failure.bus_id is not None else ''}the driver could not start {which}"
    advice = "power the host off and on; if it comes again, update the driver or have the GPU looked at"
    if label:
        listed = "lists it by now" if failure.bus_id is not None else f"lists {label} by now"
        found, advice = f"{found}, and {listed}", "nothing, unless it comes again or a GPU is missing"
    level = "note" if label else "error"
    return Look(host, "GPU", "driver", found, level, why, advice, facts, rule=XID.id)


def _look(xid: Xid, labels: dict[str, str], host: str) -> Look:
    level, meaning, advice = _CODES.get(xid.code, ("note", "see the driver's list of Xids", "nvidia-bug-report.sh"))
    if xid.code == _ACTION:
        wanted = re.search(r"Reset|Reboot|Drain", xid.text.rpartition(" to ")[2]) is not None
        level, meaning, advice = ("error" if wanted else "note", "the driver wants something done", _RESET)
    if xid.code in range(144, 151) and re.search(r"\bFatal\b", xid.text):
        level = "error"
    where = labels.get(xid.bus_id or "", xid.bus_id or "a GPU")
    times = f", {xid.count} times" if xid.count > 1 else ""
    return Look(
        host, "GPU", f"Xid {xid.code}", f"{where}: {meaning}{times}", level, f"the kernel's log says: {xid.text}"
        if xid.text else "the kernel's log says so", advice,
        {"xid": xid.code, "count": xid.count, "bus_id": xid.bus_id, "text": xid.text}, rule=XID.id,
    )  # fmt: skip
