"""Judges what programs printed about a host, from saved files: what the files do not hold is said to be unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import PurePath

from traceops.core.rule import Rule
from traceops.fabric.model import Path
from traceops.machine.look import Look
from traceops.machine.saved import Apart, SavedOutputs
from traceops.machine.saved_programs import Outputs
from traceops.machine.smi import SmiGpu
from traceops.machine.xids import DriverLog
from traceops.rules.machine.gpu_health import RULES as HEALTH
from traceops.rules.machine.gpus import OTHERS, RULES, judge_gpus
from traceops.rules.machine.nvlink import NVLINK, NVSWITCH, judge_nvlink, judge_waiting
from traceops.rules.machine.pcie import DIRECT_ACCESS, PCIE_LINK, judge_lanes, judge_p2p
from traceops.rules.machine.platform import IOMMU_ACS, judge_failed, judge_lost
from traceops.rules.machine.saved_table import judge_list, judge_parts, judge_table
from traceops.rules.machine.saved_torch import judge_environment
from traceops.rules.machine.xids import XID, judge_xids

# What tells of a rule: the field of Outputs, and how to print it. Of a rule with "" nothing saved tells.
_TOLD_BY: tuple[tuple[str, str, str, tuple[Rule, ...]], ...] = (
    ("smi", "GPU", "nvidia-smi -q", tuple(rule for rule in (*HEALTH, *RULES) if rule is not OTHERS)),
    ("log", "GPU", "dmesg", (XID,)),
    ("nvlink", "NVLink", "nvidia-smi nvlink -s", (NVLINK,)),
    ("smi", "NVLink", "nvidia-smi -q", (NVSWITCH,)),
    ("p2p", "PCIe", "nvidia-smi topo -p2p r", (DIRECT_ACCESS,)),
    ("smi", "PCIe", "nvidia-smi -q", (PCIE_LINK,)),
)
_NOT_SAVED = "these files do not tell: save {} too"


def judge_outputs(saved: SavedOutputs, paths: Mapping[tuple[str, str], Path] | None = None) -> tuple[Look, ...]:
    """What the outputs say of the host, and what of it they leave open. paths: between its GPUs, where known."""
    told, host, ways = saved.outputs, saved.name, paths or {}
    gpus: Sequence[SmiGpu] = told.smi.smi.gpus if told.smi else ()
    looks, decided = _of_gpus(told, host)
    if told.smi is not None:
        looks += judge_lanes(gpus, host)
    if told.nvlink is not None:  # a paste may be cut off: GPUs that it lacks are not judged
        links = told.nvlink.links
        listed = gpus or [SmiGpu(index, name, uuid) for index, name, uuid in told.nvlink.named]
        looks += judge_nvlink([gpu for gpu in listed if gpu.index in links], links, ways, host)
    elif gpus:
        looks += [look for look in judge_nvlink(gpus, None, ways, host) if look.rule == NVSWITCH.id]
    if told.parts is not None:
        found, by_it = judge_parts(told.parts, host)
        looks += [look for look in found if look.rule not in decided]
        decided |= by_it
    if told.fabric is not None:
        looks.append(judge_waiting(told.fabric, host))
        decided.add(NVSWITCH.id)
    if told.p2p is not None:
        bare = bool(gpus) and all(gpu.virtual == "None" for gpu in gpus)
        looks += judge_p2p(told.p2p, ways, not bare, host)
    if told.log is not None:
        looks += _xids(told.log, {gpu.bus_id: gpu.label for gpu in gpus if gpu.bus_id}, host)
    if told.environment is not None:
        table = told.table.table if told.table else None
        shown = gpus or (table.smi.gpus if table else told.listed or ())
        looks += judge_environment(told.environment, len(shown), host)
    return (*([_told_apart(saved.apart, host)] if saved.apart else []), *looks, *_open(saved, decided))


def _of_gpus(told: Outputs, host: str) -> tuple[list[Look], set[str]]:
    """What the fullest of the outputs says of the GPUs, and the rules that it decides."""
    looks = judge_lost(told.table.lost if told.table else (), host)
    if told.table is not None and told.table.failed is not None and told.smi is None:
        looks.append(judge_failed(told.table.failed, host))
    decided = {look.rule for look in looks}
    if told.smi is not None:
        return [*looks, *(look for look in judge_gpus(told.smi.smi, host) if look.rule != OTHERS.id)], decided
    listed = told.listed or ()
    if told.table is not None and told.table.table is not None:
        found, by_it = judge_table(told.table.table, listed, host)
    else:
        found, by_it = judge_list(listed, host) if listed else ([], set())
    return [*looks, *found], decided | by_it


def _told_apart(apart: Apart, host: str) -> Look:
    """Two files that cannot be of one machine: nothing is said across them."""
    file, other = (PurePath(path).name for path in (apart.file, apart.other))
    why = apart.why
    gpu = f"GPU{why.gpu}"
    if why.kind == "count":
        ours, theirs = (
            f"a {gpu}" if number is None else f"{number} GPU{'' if number == 1 else 's'}"
            for number in (why.ours, why.theirs)
        )
        found = f"{file} has {ours}, {other} has {theirs}"
    elif why.kind == "bus_id":
        found = f"the GPUs of {file} have other PCIe addresses than those of {other}"
    else:
        what = "is of another model" if why.kind == "model" else "has another UUID"
        found = f"{gpu} of {file} {what} than in {other}"
    return Look(
        host, "GPU", "files", found, "warning",
        "they are of two machines, or a GPU was lost or replaced in between: each is judged by itself",
        "give the files of one machine and one time",
    )  # fmt: skip


def _xids(log: DriverLog, labels: Mapping[str, str], host: str) -> list[Look]:
    """Xids of the log; where it holds none, no more is said than that."""
    found = judge_xids(log, None, dict(labels), host)
    return [replace(look, found="none in this log") if look.level == "ok" else look for look in found]


def _open(saved: SavedOutputs, told: AbstractSet[str]) -> list[Look]:
    """A look for each rule that the files leave open. told: rules that something else decides."""
    looks = [
        Look(saved.name, area, rule.title, "not known", "not_evaluated", _NOT_SAVED.format(program), rule=rule.id)
        for output, area, program, rules in _TOLD_BY
        if output not in saved.outputs.programs
        for rule in rules
        if rule.id not in told
    ]
    why = "a saved file does not tell which programs were the job's own"
    looks.append(Look(saved.name, "GPU", OTHERS.title, "not known", "not_evaluated", why, rule=OTHERS.id))
    why = "traceops doctor reads it on the host itself"
    looks.append(Look(saved.name, "PCIe", IOMMU_ACS.title, "not known", "not_evaluated", why, rule=IOMMU_ACS.id))
    return looks
