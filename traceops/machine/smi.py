"""Reads GPUs from ``nvidia-smi -q``, as XML (``-x``) or as text, of drivers from 450 on."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from msgspec import Struct

from traceops.fabric.model import Pcie, normal_bus_id

# Reads ``nvidia-smi -q`` as text into the tree that ``nvidia-smi -q -x`` prints as XML.

_COUNT = re.compile(r"^(?:Attached GPUs\s*: |\s{0,8}<attached_gpus>)(\d{1,4})\b", re.M)
_BANNER = re.compile(r"^=+NVSMI LOG=+\s*$", re.M)
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_FABRIC = re.compile(r"^[ \t]{0,20}Fabric[ \t]{0,20}\n[ \t]{0,20}State[ \t]{0,60}: (\w[\w ]{0,30}\w)[ \t]{0,20}$", re.M)
_INDENT = 4

# Where the XML has another name than the text: place in the text -> name in the XML.
_NAMES = {
    "gpu_uuid": "uuid",
    "pci/bus_id": "pci_bus_id",
    "pci/gpu_link_info": "pci_gpu_link_info",
    "pci/gpu_link_info/pcie_generation": "pcie_gen",
    "pci/gpu_link_info/pcie_generation/max": "max_link_gen",
    "pci/gpu_link_info/pcie_generation/current": "current_link_gen",
    "pci/gpu_link_info/link_width": "link_widths",
    "pci/gpu_link_info/link_width/max": "max_link_width",
    "pci/gpu_link_info/link_width/current": "current_link_width",
    "pci/replays_since_reset": "replay_counter",
    "mig_mode/current": "current_mig",
    "mig_mode/pending": "pending_mig",
    "ecc_mode/current": "current_ecc",
    "ecc_mode/pending": "pending_ecc",
    "utilization/gpu": "gpu_util",
    "temperature/gpu_current_temp": "gpu_temp",
    "temperature/gpu_t_limit_temp": "gpu_temp_tlimit",
    "temperature/gpu_slowdown_temp": "gpu_temp_slow_threshold",
    "gpu_power_readings/power_draw": "instant_power_draw",
    "gpu_power_readings/instantaneous_power_draw": "instant_power_draw",
    "clocks/sm": "sm_clock",
    "max_clocks/sm": "sm_clock",
    "applications_clocks/graphics": "graphics_clock",
    "default_applications_clocks/graphics": "graphics_clock",
    "remapped_rows/uncorrectable_error": "remapped_row_unc",
    "remapped_rows/pending": "remapped_row_pending",
    "remapped_rows/remapping_failure_occurred": "remapped_row_failure",
    "retired_pages/single_bit_ecc": "multiple_single_bit_retirement",
    "retired_pages/double_bit_ecc": "double_bit_retirement",
    "retired_pages/pending_page_blacklist": "pending_blacklist",
}
_REASONS = {"clocks_event_reasons": "clocks_event_reason_", "clocks_throttle_reasons": "clocks_throttle_reason_"}
_REASON_NAMES = {"idle": "gpu_idle", "display_clock_setting": "display_clocks_setting"}
# A GPU without one of these was cut off, or printed with -d: what is missing must not count as sound.
_WHOLE = ("product_name", "performance_state", "compute_mode", "ecc_mode", "clocks", "max_clocks")


def smi_tree(text: str, *, cut_off: bool = False) -> ET.Element | None:
    """The last ``nvidia-smi -q`` of a text, as the XML's root; None where there is none. cut_off: GPUs of which parts
    are missing, and no others; else only whole ones."""
    if not (starts := [match.end() for match in _BANNER.finditer(text)]):
        return None
    root, gpu = ET.Element("nvidia_smi_log"), None
    path: list[tuple[str, ET.Element]] = []
    for line in text[starts[-1] :].splitlines():
        if head := _GPU.match(line):
            gpu = ET.SubElement(root, "gpu", id=head[1], index=str(len(root.findall("gpu"))))
            path = []
            continue
        label, colon, value = line.strip().partition(":")
        depth = (len(line) - len(line.lstrip(" "))) // _INDENT
        if gpu is None:
            _add(root, "", label, value if colon else None)
        elif label and (depth == 0 or not label[0].isalpha()):  # what follows in a log of several things
            break
        elif label and depth <= len(path) + 1:
            del path[depth - 1 :]
            parent, place = (path[-1][1], "/".join(name for name, _ in path)) if path else (gpu, "")
            path.append(_add(parent, place, label, value if colon else None))
    root.set("shown", str(len(root.findall("gpu"))))
    for one in root.findall("gpu"):
        _arrange(one)
        if all(one.find(name) is not None for name in _WHOLE) is cut_off:
            root.remove(one)
    return root


def listed_gpus(text: str) -> int:
    """How many GPUs the last ``nvidia-smi -q`` of a text says that there are; 0 where it does not say."""
    counts = _COUNT.findall(text)
    return int(counts[-1]) if counts else 0


def fabric_states(text: str) -> tuple[str, ...]:
    """The states of the fabric in what people cut out of ``nvidia-smi -q`` (``| grep -A5 Fabric``), one a GPU."""
    return tuple(match[1] for match in _FABRIC.finditer(text))


def waiting(states: Iterable[str]) -> list[str]:
    """Those of GPUs that have no place in their fabric yet."""
    return [state for state in states if state in ("In Progress", "Not Started")]


def _add(parent: ET.Element, place: str, label: str, value: str | None) -> tuple[str, ET.Element]:
    """A line's element below its parent's, under the XML's name, and its own name in the text."""
    name = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")
    reason = next((start for section, start in _REASONS.items() if place.startswith(section)), None)
    tag = f"{reason}{_REASON_NAMES.get(name, name)}" if reason else _NAMES.get(f"{place}/{name}".lstrip("/"), name)
    element = ET.SubElement(parent, tag)
    element.text = None if value is None else value.strip()
    return name, element


def _arrange(gpu: ET.Element) -> None:
    """What the text nests in another way than the XML: reasons below reasons, pages, and processes."""
    for section in _REASONS:
        for reasons in gpu.findall(section):
            reasons.extend([below for one in list(reasons) for below in one])
    for pages in gpu.findall("retired_pages/*"):
        ET.SubElement(pages, "retired_count").text = pages.text
    for processes in gpu.findall("processes"):
        for one in processes.findall("process_id"):
            found = ET.SubElement(processes, "process_info")
            for tag, name in (("type", "type"), ("process_name", "name"), ("used_memory", "used_gpu_memory")):
                ET.SubElement(found, tag).text = one.findtext(name)
            ET.SubElement(found, "pid").text = one.text


_ROOT, _END = "<nvidia_smi_log", "</nvidia_smi_log>"
_THROTTLE_REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")  # renamed in driver 535


class GpuProcess(Struct, frozen=True):
    """A program on a GPU. kind: ``C`` computes, ``G`` draws. mib: memory it holds, None where not known."""

    pid: int
    kind: str
    name: str
    mib: int | None


class SmiGpu(Struct, frozen=True):
    """One GPU; None where the driver says N/A or nothing.

    memory and used: MiB. tlimit: degrees left until the GPU slows down. limits in W, clocks in MHz.
    reasons: why its clocks are lowered right now (``hw_thermal_slowdown``). tells_reasons: the driver says whether
    they are. own_clocks: its clocks for applications are the card's default ones. fabric_state and fabric_status:
    what the fabric manager gave it, None without NVSwitch. health: parts of the fabric that are not healthy.
    uncorrectable and uncorrectable_ever: ECC errors since the driver was loaded, and in the GPU's life.
    """

    index: int
    name: str
    uuid: str | None = None
    bus_id: str | None = None
    memory: int | None = None
    used: int | None = None
    bar1: int | None = None
    persistence: bool | None = None
    mig: bool = False
    mig_pending: bool = False
    compute_mode: str = "Default"
    pcie: Pcie | None = None
    replays: int = 0
    idle: bool = True
    utilization: int | None = None
    reasons: tuple[str, ...] = ()
    tells_reasons: bool = False
    own_clocks: bool = False
    temperature: int | None = None
    tlimit: int | None = None
    slowdown_at: int | None = None
    power_draw: float | None = None
    power_limit: float | None = None
    default_power_limit: float | None = None
    clock: int | None = None
    most_clock: int | None = None
    ecc: bool | None = None
    uncorrectable: int = 0
    uncorrectable_ever: int = 0
    broken: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    remapped: int = 0
    retired: int = 0
    recovery: str | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    health: tuple[str, ...] = ()
    virtual: str | None = None
    processes: tuple[GpuProcess, ...] = ()

    @property
    def label(self) -> str:
        return f"GPU{self.index}"


class Smi(Struct, frozen=True):
    """The driver and its GPUs. cuda: the newest CUDA the driver can run."""

    driver: str | None
    cuda: str | None
    gpus: tuple[SmiGpu, ...]


def parse_smi(told: str) -> Smi | None:
    """What ``nvidia-smi -q -x`` or ``nvidia-smi -q`` printed; None where it is neither, or XML that is cut off."""
    begin, end = told.find(_ROOT), told.find(_END)
    try:
        xml = told[begin : end + len(_END)] if end >= 0 else ""
        root = ET.fromstring(xml) if begin >= 0 else smi_tree(told)
    except ET.ParseError:
        return None
    if root is None:
        return None
    elements = root.findall("gpu")
    chosen = len(elements) == int(root.get("shown", len(elements))) < (_number(root, "attached_gpus") or 0)
    gpus = tuple(_gpu(_index(element, place, chosen=chosen), element) for place, element in enumerate(elements))
    return Smi(_text(root, "driver_version"), _text(root, "cuda_version"), gpus)


def parse_parts(told: str) -> tuple[SmiGpu, ...]:
    """GPUs of which ``nvidia-smi -q -d …``, or one that is cut off, tells a part: what lacks has its default."""
    root = None if _ROOT in told else smi_tree(told, cut_off=True)
    return () if root is None else tuple(_gpu(_index(one, 0, chosen=False), one) for one in root.findall("gpu"))


def _index(gpu: ET.Element, place: int, *, chosen: bool) -> int:
    """Its number. chosen: with ``-i``, so that its place does not tell; its device file's number does as a rule."""
    minor = _number(gpu, "minor_number") if chosen else None
    return int(gpu.get("index", place)) if minor is None else minor


def _gpu(index: int, gpu: ET.Element) -> SmiGpu:
    link = "pci/pci_gpu_link_info"
    states = {
        re.sub(r"^clocks_(event|throttle)_reason_", "", element.tag): (element.text or "").strip()
        for block in _THROTTLE_REASONS
        for element in gpu.findall(f"{block}/*")
    }
    reasons = [reason for reason, state in states.items() if state == "Active"]
    # Whether the clocks for applications are the default ones, which older cards have below their highest.
    now, usual = (_number(gpu, f"{which}applications_clocks/graphics_clock") for which in ("", "default_"))
    return SmiGpu(
        index=index, name=_text(gpu, "product_name") or "unknown GPU", uuid=_text(gpu, "uuid"),
        bus_id=normal_bus_id(_text(gpu, "pci/pci_bus_id") or gpu.get("id")),
        memory=_number(gpu, "fb_memory_usage/total"), used=_number(gpu, "fb_memory_usage/used"),
        bar1=_number(gpu, "bar1_memory_usage/total"), persistence=_switch(gpu, "persistence_mode"),
        mig=_switch(gpu, "mig_mode/current_mig") or False,
        mig_pending=_switch(gpu, "mig_mode/pending_mig") != _switch(gpu, "mig_mode/current_mig"),
        compute_mode=_text(gpu, "compute_mode") or "Default",
        pcie=Pcie(
            _number(gpu, f"{link}/pcie_gen/current_link_gen"), _number(gpu, f"{link}/link_widths/current_link_width"),
            _number(gpu, f"{link}/pcie_gen/max_link_gen"), _number(gpu, f"{link}/link_widths/max_link_width"),
        ),
        replays=_number(gpu, "pci/replay_counter") or 0,
        idle="gpu_idle" in reasons or _text(gpu, "performance_state") not in ("P0", "P1", "P2"),
        utilization=_number(gpu, "utilization/gpu_util"),
        reasons=tuple(reason for reason in reasons if reason != "gpu_idle"),
        own_clocks=now is not None and now == usual,
        tells_reasons=not {"Active", "Not Active"}.isdisjoint(states.values()),
        temperature=_number(gpu, "temperature/gpu_temp"), tlimit=_number(gpu, "temperature/gpu_temp_tlimit"),
        slowdown_at=_number(gpu, "temperature/gpu_temp_slow_threshold"),
        power_draw=_first(gpu, "gpu_power_readings/instant_power_draw", "power_readings/power_draw"),
        power_limit=_first(gpu, "gpu_power_readings/current_power_limit", "power_readings/power_limit"),
        default_power_limit=_first(gpu, "gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        clock=_number(gpu, "clocks/sm_clock"), most_clock=_number(gpu, "max_clocks/sm_clock"),
        ecc=_switch(gpu, "ecc_mode/current_ecc"), uncorrectable=_uncorrectable(gpu, "volatile"),
        uncorrectable_ever=_uncorrectable(gpu, "aggregate"), broken=_said(gpu, _BROKEN), pending=_said(gpu, _PENDING),
        remapped=_number(gpu, "remapped_rows/remapped_row_unc") or 0,
        retired=sum(_number(gpu, count) or 0 for count in _RETIRED), recovery=_recovery(gpu),
        fabric_state=_text(gpu, "fabric/state"), fabric_status=_text(gpu, "fabric/status"), health=_health(gpu),
        virtual=_text(gpu, "gpu_virtualization_mode/virtualization_mode"), processes=_read_processes(gpu),
    )  # fmt: skip


_RETIRED = (
    "retired_pages/multiple_single_bit_retirement/retired_count",
    "retired_pages/double_bit_retirement/retired_count",
)
# What a "Yes" means: the GPU is worn out, or waits for a reset.
_BROKEN = {
    "remapped_rows/remapped_row_failure": "a row of memory could not be replaced",
    "ecc_errors/aggregate/sram_threshold_exceeded": "too many errors in its caches",
    "ecc_errors/unrepairable_memory": "memory that cannot be repaired",
}
_PENDING = {
    "remapped_rows/remapped_row_pending": "a row of memory is to be replaced",
    "retired_pages/pending_retirement": "a page of memory is to be retired",
    "retired_pages/pending_blacklist": "a page of memory is to be retired",
    "ecc_errors/channel_repair_pending": "a memory channel is to be repaired",
    "ecc_errors/tpc_repair_pending": "a processor is to be repaired",
}
# Health of the fabric: the values that are none of these are trouble.
_HEALTHY = {
    "bandwidth": ("full",),
    "route_recovery_in_progress": ("false",),
    "route_unhealthy": ("false",),
    "access_timeout_recovery": ("false",),
    "incorrect_configuration": ("none", "false"),
    "summary": ("healthy",),
}


def _uncorrectable(gpu: ET.Element, since: str) -> int:
    """Errors of caches and memory; drivers before 470 have them by single and double bits."""
    if (block := gpu.find(f"ecc_errors/{since}")) is None:
        return 0
    total = sum(_whole(element.text) or 0 for element in block if "_uncorrectable" in element.tag)
    return total + sum(_whole(element.text) or 0 for element in block.findall("double_bit/total"))


def _said(gpu: ET.Element, meanings: dict[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(meaning for path, meaning in meanings.items() if _text(gpu, path) == "Yes"))


def _recovery(gpu: ET.Element) -> str | None:
    """What the driver wants done: ``Reset``, ``Reboot``, ``Drain P2P``, ``Drain and Reset``; None for nothing."""
    action = _text(gpu, "gpu_recovery_action")
    if action is None and _text(gpu, "gpu_reset_status/reset_required") == "Yes":
        return "Reset"
    return None if action in (None, "None") else action


def _health(gpu: ET.Element) -> tuple[str, ...]:
    found = {element.tag: (element.text or "").strip() for element in gpu.findall("fabric/health/*")}
    usual = {tag: ("", "n/a", "not supported", *_HEALTHY.get(tag, (text.lower(),))) for tag, text in found.items()}
    trouble = {tag: text for tag, text in found.items() if text.lower() not in usual[tag]}
    return tuple(f"{tag.replace('_', ' ')}: {text}" for tag, text in trouble.items())


def _read_processes(gpu: ET.Element) -> tuple[GpuProcess, ...]:
    return tuple(
        GpuProcess(
            _number(one, "pid") or 0,
            _text(one, "type") or "C",
            _text(one, "process_name") or "unknown",
            _number(one, "used_memory"),
        )
        for one in gpu.findall("processes/process_info")
    )


def _text(element: ET.Element, path: str) -> str | None:
    found = (element.findtext(path) or "").strip()
    return None if not found or found in ("N/A", "[N/A]", "Unknown Error", "Not Supported") else found


def _switch(element: ET.Element, path: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(_text(element, path) or "")


def _number(element: ET.Element, path: str) -> int | None:
    return _whole(_text(element, path))


def _whole(found: str | None) -> int | None:
    match = re.match(r"-?\d{1,15}", (found or "").strip())
    return int(match[0]) if match else None


def _first(element: ET.Element, *paths: str) -> float | None:
    for path in paths:
        match = re.match(r"\d{1,9}(\.\d+)?", _text(element, path) or "")
        if match:
            return float(match[0])
    return None
