"""Judges what programs printed about a host, from saved files: what the files do not hold is said to be unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import combinations
from pathlib import PurePath

from msgspec.structs import replace

from traceops.core.rule import Rule
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Path, same_host
from traceops.fabric.nccl import NcclLog
from traceops.machine.look import HostContext, Look
from traceops.machine.platform import Software
from traceops.machine.saved import Apart, SavedOutputs
from traceops.machine.saved_programs import Outputs, TorchEnvironment
from traceops.machine.smi import Smi, SmiGpu
from traceops.machine.smi_table import CUT, ListedGpu, SmiTable
from traceops.machine.variables import version_of
from traceops.machine.xids import DriverLog
from traceops.rules.machine.gpus import (
    CLOCKS,
    COMPUTE_MODE,
    ECC_OFF,
    GPUS_RULES,
    MEMORY,
    MIG,
    OTHERS,
    PERSISTENCE,
    UNLIKE_GPUS,
    XID,
    judge_gpus,
    judge_xids,
)
from traceops.rules.machine.gpus import RULES as HEALTH
from traceops.rules.machine.judge import AREAS
from traceops.rules.machine.limits import looked
from traceops.rules.machine.links import (
    DIRECT_ACCESS,
    NVLINK,
    NVSWITCH,
    PCIE_LINK,
    judge_lanes,
    judge_nvlink,
    judge_p2p,
    judge_waiting,
)
from traceops.rules.machine.network import judge_gdr_logged
from traceops.rules.machine.platform import DRIVER, TORCH, judge_failed, judge_iommu_warning, judge_lost, judge_software
from traceops.rules.machine.variables import check_variables
from traceops.words.catalogue import texts

_LINKS = ("NV", "XGMI")


def judge_log(fabric: Fabric, others: Sequence[Look]) -> list[Look]:
    """A look for each thing that the log tells of a host, and for the rest of their areas, that it does not. others:
    what other files told; what they judged is not judged again."""
    if fabric.log is None:
        return []
    known = {look.rule for look in others if look.level != "not_evaluated"}
    logged = (*_warnings(fabric, fabric.log), *_gpudirect(fabric, fabric.log))
    new = [look for look in logged if look.rule not in known]
    return [*new, *_not_logged(new, others)]


def _warnings(fabric: Fabric, log: NcclLog) -> list[Look]:
    """By RCCL's own warnings; one GPU reaches no other, whatever the IOMMU does."""
    looks = []
    for remark in log.host_remarks:
        host = remark.host or log.files[0]
        places = [place for one in log.communicators for place in one.places.values() if place.host == remark.host]
        gpus = {place.bus_id or (place.pid, place.cuda_device) for place in places}  # none where the log does not tell
        if remark.kind == "numa_balancing":
            looks.append(looked(host, "numa", "balancing"))
        elif len(gpus) != 1:
            looks.append(judge_iommu_warning(_all_linked(fabric, remark.host), host))
    return looks


def _all_linked(fabric: Fabric, host: str) -> bool:
    """Whether NVLink or XGMI joins each pair of its GPUs, where a topology tells."""
    for machine in fabric.machines:
        if same_host(machine.host, host) or (machine.host is None and len(fabric.machines) == 1):
            paths = [machine.path(one.label, other.label) for one, other in combinations(machine.gpus, 2)]
            return bool(paths) and all(path is not None and path.kind in _LINKS for path in paths)
    return False


def _gpudirect(fabric: Fabric, log: NcclLog) -> list[Look]:
    """Of each host once: all its processes see the same cards."""
    devices: dict[tuple[str, str], dict[str, bool]] = {}
    for network in log.networks:
        own = devices.setdefault((network.host, network.plugin), {})
        for name, on in network.gdr.items():
            own[name] = own.get(name, True) and on
    looks = []
    for (host, plugin), logged in devices.items():
        # Models of the host's GPUs, as far as topologies and nccl-tests tell
        gpus = [gpu for machine in fabric.machines if same_host(machine.host, host) for gpu in machine.gpus]
        models = [gpu.name for gpu in gpus if gpu.name]
        models += [rank.gpu for one in fabric.benchmarks for rank in one.ranks if same_host(rank.host, host)]
        looks.append(judge_gdr_logged(plugin, logged, list(dict.fromkeys(models)), host or log.files[0]))
    return [look for look in looks if look is not None]


def _not_logged(logged: Sequence[Look], others: Sequence[Look]) -> list[Look]:
    """Rules of the same areas of which nothing tells: a look in their area must not clear them."""
    first: Mapping[str, Look] = {look.area: look for look in reversed(logged)}
    judged = {look.rule for look in (*logged, *others)}
    seen = {look.area for look in others}
    return [
        looked(first[area].host, "open", "not_logged", area=area, title=rule.title, rule=rule.id)
        for area, rules in AREAS
        if area in first and area not in seen
        for rule in rules
        if rule.id not in judged
    ]


_WHOLE = (COMPUTE_MODE, MIG, ECC_OFF, UNLIKE_GPUS, DRIVER)  # what a table tells all of
_OF_PARTS = (MEMORY.id, CLOCKS.id, COMPUTE_MODE.id)


def judge_table(table: SmiTable, listed: Sequence[ListedGpu], host: str) -> tuple[list[Look], set[str]]:
    """What a table says of the GPUs, and the rules that it decides. listed: by nvidia-smi -L, with whole names."""
    smi = replace(table.smi, gpus=_with_names(table.smi.gpus, listed))
    decided = {rule.id for rule in _WHOLE}
    if all(gpu.persistence is not None for gpu in smi.gpus):
        decided.add(PERSISTENCE.id)
    found = [look for look in judge_gpus(smi, host) if look.rule != OTHERS.id]
    looks = [look for look in found if look.rule in decided or look.level not in ("ok", "not_evaluated")]
    if len(smi.gpus) > 1 and any(CUT in gpu.name for gpu in smi.gpus):
        # GPUs whose names are alike as far as they are shown may be of two models
        alike = {look.rule for look in looks if look.level == "ok"} & {UNLIKE_GPUS.id}
        why = texts("looks", "gpus")["names_cut.why"]
        looks = [replace(one, level="not_evaluated", why=why) if one.rule in alike else one for one in looks]
    return looks, decided | {look.rule for look in looks}


def judge_parts(gpus: Sequence[SmiGpu], host: str) -> tuple[list[Look], set[str]]:
    """What is wrong with GPUs of which a part is told, by rules that need no other part, nor their models."""
    found = judge_gpus(Smi(None, None, tuple(gpus)), host)
    looks = [look for look in found if look.rule in _OF_PARTS and look.level in ("warning", "error")]
    return looks, {look.rule for look in looks}


def judge_list(listed: Sequence[ListedGpu], host: str) -> tuple[list[Look], set[str]]:
    """What nvidia-smi -L says of the GPUs, and the rules that it decides: their models, and slices that there are."""
    gpus = tuple(SmiGpu(gpu.index, gpu.name, gpu.uuid, mig=gpu.mig) for gpu in listed)
    decided = {UNLIKE_GPUS.id} | ({MIG.id} if any(gpu.mig for gpu in listed) else set())
    return [look for look in judge_gpus(Smi(None, None, gpus), host) if look.rule in decided], decided


def _with_names(gpus: Sequence[SmiGpu], listed: Sequence[ListedGpu]) -> tuple[SmiGpu, ...]:
    """The GPUs with whole names, where the list is of the same ones."""
    names = {gpu.index: gpu.name for gpu in listed}
    same = len(gpus) == len(names)
    for gpu in gpus:
        shown, cut, _ = gpu.name.partition(CUT)
        whole = names.get(gpu.index, "")
        same = same and (whole.startswith(shown.rstrip()) if cut else whole == shown)
    return tuple(replace(gpu, name=names[gpu.index]) for gpu in gpus) if same else tuple(gpus)


# The oldest driver for Linux that runs programs of a CUDA: from 11 on by major version (CUDA Compatibility, "Minor
# Version Compatibility", table 1), before by version (CUDA Toolkit Release Notes, toolkit driver versions).
_OLDEST_DRIVER = {
    (13,): "580", (12,): "525", (11,): "450", (10, 2): "440.33", (10, 1): "418.39", (10, 0): "410.48",
}  # fmt: skip


def judge_environment(environment: TorchEnvironment, gpus: int, host: str) -> list[Look]:
    """gpus: how many the host has, 0 where that is not known."""
    software = Software("", environment.torch, environment.cuda, environment.hip, environment.wheels)
    found = judge_software(software, None, gpus, host)
    looks = [look for look in found if look.rule != TORCH.id]
    if environment.torch is not None:
        looks += [_torch(look, environment, gpus, host) for look in found if look.rule == TORCH.id]
    if not environment.wheels:
        looks.append(looked(host, "nccl", "not_saved"))
    if environment.variables is not None:
        context = HostContext(gpus=gpus or None, nccl=software.nccl, torch=environment.torch)
        looks += check_variables(environment.variables, host, context)
    return looks


def _torch(look: Look, environment: TorchEnvironment, gpus: int, host: str) -> Look:
    """Of a torch built for CUDA: it fits where it sees GPUs itself, else the driver may be too old for it."""
    if look.level != "ok" or environment.cuda is None or environment.sees_gpus:
        return look
    again = partial(looked, host, "torch", numbers=look.facts, found=look.found)
    version = version_of(environment.cuda)
    oldest = _OLDEST_DRIVER.get(version[:1]) or _OLDEST_DRIVER.get(version[:2])
    if environment.driver and oldest and version_of(environment.driver)[:2] < version_of(oldest):
        return again("old_driver", driver=environment.driver, oldest=oldest)
    return again("no_cause" if gpus and environment.sees_gpus is False else "not_saved")


# What tells of a rule: the field of Outputs, and how to print it. Of a rule with "" nothing saved tells.
_TOLD_BY: tuple[tuple[str, str, str, tuple[Rule, ...]], ...] = (
    ("smi", "GPU", "nvidia-smi -q", tuple(rule for rule in (*HEALTH, *GPUS_RULES) if rule is not OTHERS)),
    ("log", "GPU", "dmesg", (XID,)),
    ("nvlink", "NVLink", "nvidia-smi nvlink -s", (NVLINK,)),
    ("smi", "NVLink", "nvidia-smi -q", (NVSWITCH,)),
    ("p2p", "PCIe", "nvidia-smi topo -p2p r", (DIRECT_ACCESS,)),
    ("smi", "PCIe", "nvidia-smi -q", (PCIE_LINK,)),
)


def judge_outputs(saved: SavedOutputs, paths: Mapping[tuple[str, str], Path] | None = None) -> tuple[Look, ...]:
    """What the outputs say of the host, and what of it they leave open. paths: between its GPUs, where known."""
    outputs, host, ways = saved.outputs, saved.name, paths or {}
    gpus: Sequence[SmiGpu] = outputs.smi.smi.gpus if outputs.smi else ()
    looks, decided = _of_gpus(outputs, host)
    looks += _of_links(outputs, gpus, ways, host)
    if outputs.parts is not None:
        found, by_it = judge_parts(outputs.parts, host)
        looks += [look for look in found if look.rule not in decided]
        decided |= by_it
    if outputs.fabric is not None:
        looks.append(judge_waiting(outputs.fabric, host))
        decided.add(NVSWITCH.id)
    if outputs.p2p is not None:
        bare = bool(gpus) and all(gpu.virtual == "None" for gpu in gpus)
        looks += judge_p2p(outputs.p2p, ways, not bare, host)
    if outputs.log is not None:
        looks += _xids(outputs.log, {gpu.bus_id: gpu.label for gpu in gpus if gpu.bus_id}, host)
    if outputs.environment is not None:
        table = outputs.table.table if outputs.table else None
        shown = gpus or (table.smi.gpus if table else outputs.listed or ())
        looks += judge_environment(outputs.environment, len(shown), host)
    return (*([_apart(saved.apart, host)] if saved.apart else []), *looks, *_open(saved, decided))


def _of_links(
    outputs: Outputs, gpus: Sequence[SmiGpu], ways: Mapping[tuple[str, str], Path], host: str
) -> Iterator[Look]:
    """What the outputs say of PCIe and NVLink."""
    if outputs.smi is not None:
        yield from judge_lanes(gpus, host)
    if outputs.nvlink is not None:  # a paste may be cut off: GPUs that it lacks are not judged
        links = outputs.nvlink.links
        listed = gpus or [SmiGpu(index, name, uuid) for index, name, uuid in outputs.nvlink.named]
        yield from judge_nvlink([gpu for gpu in listed if gpu.index in links], links, ways, host)
    elif gpus:
        yield from (look for look in judge_nvlink(gpus, None, ways, host) if look.rule == NVSWITCH.id)


def _of_gpus(outputs: Outputs, host: str) -> tuple[list[Look], set[str]]:
    """What the fullest of the outputs says of the GPUs, and the rules that it decides."""
    looks = judge_lost(outputs.table.lost if outputs.table else (), host)
    if outputs.table is not None and outputs.table.failed is not None and outputs.smi is None:
        looks.append(judge_failed(outputs.table.failed, host))
    decided = {look.rule for look in looks}
    if outputs.smi is not None:
        return [*looks, *(look for look in judge_gpus(outputs.smi.smi, host) if look.rule != OTHERS.id)], decided
    listed = outputs.listed or ()
    if outputs.table is not None and outputs.table.table is not None:
        found, by_it = judge_table(outputs.table.table, listed, host)
    else:
        found, by_it = judge_list(listed, host) if listed else ([], set())
    return [*looks, *found], decided | by_it


def _apart(apart: Apart, host: str) -> Look:
    """Two files that cannot be of one machine: nothing is said across them."""
    file, other = (PurePath(path).name for path in (apart.file, apart.other))
    why = apart.why
    gpu, look = f"GPU{why.gpu}", partial(looked, host, "gpu_modes", "two_machines", kind_of=why.kind)
    ours, theirs = (
        f"a {gpu}" if number is None else f"{number} GPU{'' if number == 1 else 's'}"
        for number in (why.ours, why.theirs)
    )
    return look(file=file, other=other, gpu=gpu, ours=ours, theirs=theirs)


def _xids(log: DriverLog, labels: Mapping[str, str], host: str) -> list[Look]:
    """Xids of the log; where it holds none, no more is said than that."""
    found = judge_xids(log, None, dict(labels), host)
    return [replace(look, found=texts("looks", "xid")["none_saved"]) if look.level == "ok" else look for look in found]


def _open(saved: SavedOutputs, decided: AbstractSet[str]) -> list[Look]:
    """A look for each rule that the files leave open. decided: rules that something else decides."""
    looks = [
        looked(saved.name, "open", "not_saved", area=area, title=rule.title, program=program, rule=rule.id)
        for output, area, program, rules in _TOLD_BY
        if output not in saved.outputs.programs
        for rule in rules
        if rule.id not in decided
    ]
    return [*looks, looked(saved.name, "gpu_modes", "others_unsaved"), looked(saved.name, "pcie_ways", "unread")]
