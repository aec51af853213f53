"""Reads ``nvidia-smi -q`` as text into the tree that ``nvidia-smi -q -x`` prints as XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator

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
    """The last ``nvidia-smi -q`` of a text, as the XML's root; None where there is none.

    cut_off: GPUs of which parts are missing, and no others; else only whole ones.
    """
    starts = [match.end() for match in _BANNER.finditer(text)]
    if not starts:
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
    counts = re.findall(r"^(?:Attached GPUs\s*: |\s{0,8}<attached_gpus>)(\d{1,4})\b", text, re.M)
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
        processes.extend(list(_processes(processes)))


def _processes(processes: ET.Element) -> Iterator[ET.Element]:
    for one in processes.findall("process_id"):
        told = ET.Element("process_info")
        for tag, name in (("type", "type"), ("process_name", "name"), ("used_memory", "used_gpu_memory")):
            ET.SubElement(told, tag).text = one.findtext(name)
        ET.SubElement(told, "pid").text = one.text
        yield told
