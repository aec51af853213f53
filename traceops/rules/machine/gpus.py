"""TO-D001 to TO-D010: memory, clocks, power and modes of GPUs, unlike GPUs, programs of others, and Xids."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from traceops.core.rule import JudgedBy, described
from traceops.machine.look import Level, Look
from traceops.machine.smi import Smi, SmiGpu
from traceops.machine.xids import DriverFailure, DriverLog, Xid
from traceops.rules.machine.limits import BOUNDS, looked
from traceops.words.catalogue import texts

MEMORY = described("machine", "TO-D001", JudgedBy.DOCTOR)
CLOCKS = described("machine", "TO-D003", JudgedBy.DOCTOR)
POWER = described("machine", "TO-D004", JudgedBy.DOCTOR)
RULES = (MEMORY, CLOCKS, POWER)
_REASONS = texts("looks", "slowed")
_HARDWARE = "hw_slowdown"  # said beside each of its own reasons too
_CAPPED = texts("looks", "lowered")


def some_gpus(
    gpus: Sequence[SmiGpu],
    shown: Callable[[SmiGpu], str],
    host: str,
    about: str,
    key: str,
    *,
    level: Level | None = None,
    **facts: Any,
) -> list[Look]:
    """One Look for all GPUs that show something, none where none does."""
    hit = {gpu: text for gpu in gpus if (text := shown(gpu))}
    if not hit:
        return []
    by_text: dict[str, list[str]] = {}
    for gpu, text in hit.items():
        by_text.setdefault(text, []).append(gpu.label)
    found = "; ".join(
        f"{'all GPUs' if len(labels) == len(gpus) > 1 else ', '.join(labels)}: {text}"
        for text, labels in by_text.items()
    )
    indices = [gpu.index for gpu in hit]
    index = ",".join(map(str, indices))
    return [looked(host, about, key, {"gpus": indices}, level=level, found=found, index=index, **facts)]


def memory_looks(gpus: Sequence[SmiGpu], host: str, *, watched: bool) -> list[Look]:
    """What is wrong with the memory and the links of GPUs, or one Look that says their memory is sound. watched: ECC is
    off on none of them."""
    tables: tuple[tuple[str, Callable[[SmiGpu], str]], ...] = (
        ("broken", lambda gpu: ", ".join(gpu.broken)),
        ("new_errors", _new_errors),
        ("pending", lambda gpu: ", ".join(gpu.pending)),
        ("recovery", lambda gpu: gpu.recovery or ""),
        ("past", _past),
    )
    looks = [look for key, shown in tables for look in some_gpus(gpus, shown, host, "gpu_memory", key)]
    sound = watched and not looks
    replays = some_gpus(
        gpus, lambda gpu: f"{gpu.replays} replays" if gpu.replays >= BOUNDS.replays else "", host, "gpu_link", "replays"
    )
    if sound:
        replays.append(looked(host, "gpu_memory", "sound" if all(gpu.ecc for gpu in gpus) else "unknown"))
    return [*looks, *replays]


def _clocks(gpus: Sequence[SmiGpu]) -> str:
    """'345 to 360 MHz of 1980', and nothing where the driver shows no clock."""
    now = sorted({gpu.clock for gpu in gpus if gpu.clock is not None})
    most = max((gpu.most_clock for gpu in gpus if gpu.most_clock is not None), default=None)
    shown = "" if not now else f"{now[0]} MHz" if len(now) == 1 else f"{now[0]} to {now[-1]} MHz"
    return f"{shown}{f' of {most}' if most is not None else ''}" if shown else ""


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


def _slowed(gpu: SmiGpu) -> str:
    own = any(reason.startswith("hw_") and reason != _HARDWARE for reason in gpu.reasons)
    return ", ".join(
        _REASONS[reason] for reason in gpu.reasons if reason in _REASONS and not (own and reason == _HARDWARE)
    )


def _capped(gpu: SmiGpu) -> str:
    """Why its clocks are low on purpose. At the power limit is where a busy GPU belongs, an idle one may report that
    far below it, and clocks that a card has by default were set by no one."""
    draw, limit = gpu.power_draw, gpu.power_limit
    below = draw is not None and limit is not None and draw < BOUNDS.power * limit
    usual = {"sw_power_cap": not gpu.idle or below, "applications_clocks_setting": gpu.own_clocks}
    return ", ".join(_CAPPED[r] for r in gpu.reasons if r in _CAPPED and not usual.get(r))


def _weaker(gpu: SmiGpu, gpus: Sequence[SmiGpu]) -> str:
    most = max(other.power_limit or 0 for other in gpus if other.name == gpu.name)
    low = gpu.power_limit is not None and gpu.power_limit < BOUNDS.power * most
    return f"{gpu.power_limit:g} W, siblings {most:g} W" if low else ""


def _limited(gpu: SmiGpu) -> str:
    if gpu.power_limit is None or gpu.default_power_limit is None:
        return ""
    low = gpu.power_limit < BOUNDS.power * gpu.default_power_limit
    return f"{gpu.power_limit:g} of {gpu.default_power_limit:g} W" if low else ""


def _hot(gpu: SmiGpu) -> str:
    if gpu.tlimit is not None:
        return f"{gpu.temperature} °C, {gpu.tlimit} below its limit" if gpu.tlimit <= BOUNDS.near_c else ""
    near = gpu.slowdown_at and gpu.temperature and gpu.temperature >= gpu.slowdown_at - BOUNDS.near_c
    return f"{gpu.temperature} °C, slows down at {gpu.slowdown_at}" if near else ""


COMPUTE_MODE = described("machine", "TO-D005", JudgedBy.DOCTOR)
MIG = described("machine", "TO-D006", JudgedBy.DOCTOR)
PERSISTENCE = described("machine", "TO-D007", JudgedBy.DOCTOR)
ECC_OFF = described("machine", "TO-D008", JudgedBy.DOCTOR)
OTHERS = described("machine", "TO-D009", JudgedBy.DOCTOR)
UNLIKE_GPUS = described("machine", "TO-D010", JudgedBy.DOCTOR)
GPUS_RULES = (COMPUTE_MODE, MIG, PERSISTENCE, ECC_OFF, OTHERS, UNLIKE_GPUS)
_MPS = "nvidia-cuda-mps-server"
_GIB = 1024


def judge_gpus(smi: Smi, host: str) -> tuple[Look, ...]:
    """One Look each on all GPUs, the driver, memory and clocks, and one for each thing that is wrong with some GPUs."""
    if not smi.gpus:
        return (looked(host, "gpus", "unseen"),)
    driver = looked(host, "driver", "found", {"cuda": smi.cuda}, version=smi.driver or "unknown version", cuda=smi.cuda)
    modes = _modes(smi.gpus, host)
    watched = all(look.rule != ECC_OFF.id for look in modes)
    memory = memory_looks(smi.gpus, host, watched=watched)
    # List what slows GPUs down or is about to; a single Look where nothing lowers their clocks.
    some = partial(some_gpus, smi.gpus, host=host, about="gpu_speed")
    clocks = _clocks([gpu for gpu in smi.gpus if _slowed(gpu)])
    lowered = [*some(_slowed, key="slowed", clocks=clocks), *some(_capped, key="capped")]
    weaker = {gpu: _weaker(gpu, smi.gpus) for gpu in smi.gpus}
    looks = [
        *lowered,
        *some(weaker.__getitem__, key="weaker"),
        *some(lambda gpu: "" if weaker[gpu] else _limited(gpu), key="limited"),
        *some(_hot, key="hot"),
    ]
    if not lowered:
        key = "full" if all(gpu.tells_reasons for gpu in smi.gpus) else "unknown"
        looks.append(looked(host, "gpu_speed", key, clocks=_clocks(smi.gpus), idle=all(gpu.idle for gpu in smi.gpus)))
    return (_all(smi, host), driver, *modes, *memory, *looks)


def _all(smi: Smi, host: str) -> Look:
    names = Counter(gpu.name for gpu in smi.gpus)
    numbers = {
        "gpus": [
            {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "bus_id": gpu.bus_id, "memory_mib": gpu.memory,
             "used_mib": gpu.used, "temperature_c": gpu.temperature, "power_limit_w": gpu.power_limit,
             "sm_clock_mhz": gpu.clock, "max_sm_clock_mhz": gpu.most_clock, "ecc": gpu.ecc, "bar1_mib": gpu.bar1}
            for gpu in smi.gpus
        ]
    }  # fmt: skip
    gib: list[str | None] = [f"{mib / _GIB:.0f}" for mib in sorted(gpu.memory for gpu in smi.gpus if gpu.memory)] or [
        None
    ]
    models = [f"{count} × {name}" for name, count in names.items()]
    look = partial(looked, host, "gpus", numbers=numbers, models=models)
    if len(names) == 1:
        return look("alike", memory=gib[0])
    [(name, most)] = names.most_common(1)
    equal = ",".join(str(gpu.index) for gpu in smi.gpus if gpu.name == name) if most > 1 else None
    return look("unlike", least=gib[0], memory=gib[-1], equal=equal)


def _modes(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    some = partial(some_gpus, gpus, host=host, about="gpu_modes")
    share, busy = BOUNDS.others_share, BOUNDS.busy_pct
    heavily = any((g.used or 0) > share * (g.memory or 1 << 30) or (g.utilization or 0) >= busy for g in gpus)
    return [
        *some(lambda gpu: "off" if gpu.persistence is False else "", key="persistence"),
        *some(lambda gpu: "enabled" if gpu.mig else "", key="mig", level=None if len(gpus) > 1 else "note"),
        *some(lambda gpu: "a change waits" if gpu.mig_pending else "", key="mig_pending"),
        *some(lambda gpu: "Prohibited" if gpu.compute_mode == "Prohibited" else "", key="prohibited"),
        *some(_exclusive, key="exclusive"),
        *some(lambda gpu: "off" if gpu.ecc is False else "", key="no_ecc"),
        *some(_used, key="others", level="warning" if heavily else None),
    ]


def _exclusive(gpu: SmiGpu) -> str:
    """The mode, where one process at a time may use it and no server of MPS shares it out."""
    shared = any(_MPS in one.name for one in gpu.processes)
    return gpu.compute_mode if gpu.compute_mode.startswith("Exclusive") and not shared else ""


def _used(gpu: SmiGpu) -> str:
    """What programs of others use: they take memory and time, and make what is measured here too low."""
    if (gpu.used or 0) < BOUNDS.others_gib * _GIB and (gpu.utilization or 0) < BOUNDS.busy_pct:
        return ""
    compute = [one for one in gpu.processes if "C" in one.kind]
    by = ", ".join(f"{one.name.rpartition('/')[2]} (pid {one.pid})" for one in compute[:3])
    used = f"{(gpu.used or 0) / _GIB:.1f} GiB used, {gpu.utilization or 0} % busy"
    return texts("looks", "gpu_modes")["used.by" if by else "used.unseen"].format(used=used, programs=by)


XID = described("machine", "TO-D002", JudgedBy.DOCTOR)
XID_RULES = (XID,)
_NVLINK_ERRORS = range(144, 151)
_ACTION = 154  # names what the driver wants done: its text decides


def judge_xids(log: DriverLog, problem: str | None, labels: dict[str, str], host: str) -> tuple[Look, ...]:
    """What the kernel's log says of GPUs since boot. labels: ``GPU0`` by bus id. problem: why there is no log."""
    if problem:
        return (looked(host, "xid", "unread", problem=problem),)
    earlier, now = log.earlier, log.now
    looks = [*(_look(xid, labels, host) for xid in now.xids), *(_failure(one, labels, host) for one in now.failures)]
    if not now.xids:
        looks.append(looked(host, "xid", "none"))
    known = {(xid.bus_id, xid.code) for xid in now.xids}
    earlier_boot = texts("looks", "xid")["earlier"]
    past = [_look(xid, labels, host) for xid in earlier.xids if (xid.bus_id, xid.code) not in known]
    past += [_failure(one, labels, host) for one in earlier.failures]
    return (*looks, *(replace(one, found=f"{one.found}, {earlier_boot}", level="note") for one in past))


def _failure(failure: DriverFailure, labels: dict[str, str], host: str) -> Look:
    """What the driver could not do; of a GPU that nvidia-smi lists it can by now."""
    bus_id = failure.bus_id
    look = partial(looked, host, "xid", numbers={"bus_id": bus_id, "text": failure.text}, text=failure.text)
    if failure.kind == "versions":
        return look("versions", level="note" if labels else None)
    label = ", ".join(labels.values()) if bus_id is None else labels.get(bus_id)
    return look("started_since" if label else "not_started", bus_id=bus_id, where=label or bus_id)


def _look(xid: Xid, labels: dict[str, str], host: str) -> Look:
    level: Level | None = None
    key = str(_NVLINK_ERRORS.start if xid.code in _NVLINK_ERRORS else xid.code)
    if (xid.code in _NVLINK_ERRORS and re.search(r"\bFatal\b", xid.text)) or (
        xid.code == _ACTION and re.search(r"Reset|Reboot|Drain", xid.text.rpartition(" to ")[2])
    ):
        level = "error"
    where = labels.get(xid.bus_id or "", xid.bus_id or "a GPU")
    numbers = {"xid": xid.code, "count": xid.count, "bus_id": xid.bus_id, "text": xid.text}
    known = key if key in texts("looks", "xid") else "other"
    look = looked(host, "xid", known, numbers, level=level, code=xid.code, where=where, text=xid.text)
    return replace(look, found=f"{look.found}, {xid.count} times") if xid.count > 1 else look
