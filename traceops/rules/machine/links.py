"""TO-D103 and TO-D104: direct access between GPUs, and PCIe lanes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from traceops.core.rule import JudgedBy, described
from traceops.fabric.model import Path, Pcie
from traceops.machine.look import Look
from traceops.machine.platform import Links
from traceops.machine.smi import SmiGpu

DIRECT_ACCESS = described("machine", "TO-D103", JudgedBy.DOCTOR)


PCIE_LINK = described("machine", "TO-D104", JudgedBy.DOCTOR)


RULES = (DIRECT_ACCESS, PCIE_LINK)


def siblings_of(gpu: SmiGpu, gpus: Sequence[SmiGpu]) -> list[SmiGpu]:
    """Other GPUs of the same model."""
    return [other for other in gpus if other.name == gpu.name and other is not gpu]


def judge_p2p(
    pairs: Mapping[tuple[int, int], str], paths: Mapping[tuple[str, str], Path], virtual: bool, host: str
) -> tuple[Look, ...]:
    """Whether GPUs may read each other's memory. virtual: what refuses all of them may be out of reach."""
    what = "direct access (P2P)"
    if not pairs:
        return (
            Look(
                host,
                "PCIe",
                what,
                "not known",
                "not_evaluated",
                "nvidia-smi topo -p2p r gave no answer",
                rule=DIRECT_ACCESS.id,
            ),
        )
    bad = {pair: said for pair, said in pairs.items() if said != "OK" and pair[0] < pair[1]}
    if not bad:
        return (Look(host, "PCIe", what, f"all {len(pairs) // 2} pairs", rule=DIRECT_ACCESS.id),)
    shown = ", ".join(f"{one}-{other} {said}" for (one, other), said in list(bad.items())[:8])
    facts = {"pairs": [[*pair, said] for pair, said in bad.items()]}
    linked = [pair for pair in bad if (path := _path(paths, pair)) is not None and path.kind == "NV"]
    if linked:
        return (
            Look(host, "NVLink", what, f"none between {shown}", "error",
                 "NVLink joins them and the driver refuses to use it", "sudo nvidia-smi -r, else reboot", facts,
                 rule=DIRECT_ACCESS.id),
        )  # fmt: skip
    if len(bad) == len(pairs) // 2 and set(bad.values()) == {"GNS"}:
        return (
            Look(host, "PCIe", what, "not on these GPUs", "note",
                 "the driver gives this kind of GPU no direct access: data go through host memory",
                 "nothing to set: NCCL takes shared memory by itself", facts, rule=DIRECT_ACCESS.id),
        )  # fmt: skip
    alike = len(bad) == len(pairs) // 2 and len(set(bad.values())) == 1
    refused = {
        "CNS": "the chipset does not let GPUs reach each other",
        "TNS": "their places do not let them",
        "DR": "a setting of the driver (a registry key) turns it off",
    }
    why = refused.get(next(iter(bad.values())), "data between them go through host memory")
    return (
        Look(host, "PCIe", what, f"none between {shown}", "note" if virtual and alike else "warning", why,
             "place GPUs that talk most under one PCIe switch; on bare metal check ACS and IOMMU in the BIOS", facts,
             rule=DIRECT_ACCESS.id),
    )  # fmt: skip


def _path(paths: Mapping[tuple[str, str], Path], pair: tuple[int, int]) -> Path | None:
    one, other = (f"GPU{index}" for index in pair)
    return paths.get((one, other)) or paths.get((other, one))


def judge_lanes(gpus: Sequence[SmiGpu], host: str) -> tuple[Look, ...]:
    """PCIe lanes and generation of GPUs against siblings; an idle GPU lowers its generation by itself, never width."""
    known = [gpu for gpu in gpus if gpu.pcie is not None and gpu.pcie.width]
    if not known:
        return (
            Look(host, "PCIe", "GPU link", "not known", "not_evaluated", "the driver does not say", rule=PCIE_LINK.id),
        )
    found = sorted({f"gen {_pcie(gpu).most_generation or '?'} x{_pcie(gpu).width}" for gpu in known})
    facts = {
        gpu.label: {"generation": _pcie(gpu).generation, "width": _pcie(gpu).width,
                    "max_generation": _pcie(gpu).most_generation, "max_width": _pcie(gpu).most_width}
        for gpu in known
    }  # fmt: skip
    looks = []
    for gpu in known:
        mine, siblings = _pcie(gpu), [_pcie(other) for other in siblings_of(gpu, known)]
        widest = max((other.width or 0 for other in siblings), default=0)
        newest = max((other.most_generation or 0 for other in siblings), default=0)
        reseat = f"reseat the card, check slot and riser: sudo lspci -vv -s {gpu.bus_id} | grep -i lnksta"
        if (mine.width or 0) < widest:
            looks.append(
                Look(host, "PCIe", f"link of {gpu.label}", f"x{mine.width} of x{mine.most_width or widest}", "warning",
                     f"its siblings have x{widest}", reseat, facts[gpu.label], rule=PCIE_LINK.id)
            )  # fmt: skip
        if mine.most_generation and mine.most_generation < newest:
            looks.append(
                Look(host, "PCIe", f"link of {gpu.label}", f"gen {mine.most_generation} at most", "warning",
                     f"its siblings may run at gen {newest}", reseat, facts[gpu.label], rule=PCIE_LINK.id)
            )  # fmt: skip
        elif not gpu.idle and (gpu.utilization or 0) > 0 and (mine.generation or 9) < (mine.most_generation or 0):
            looks.append(
                Look(host, "PCIe", f"link of {gpu.label}", f"gen {mine.generation} of {mine.most_generation}", "note",
                     "it is at work and its link is still slow", reseat, facts[gpu.label], rule=PCIE_LINK.id)
            )  # fmt: skip
    if looks:
        return tuple(looks)
    narrow = [gpu for gpu in known if (_pcie(gpu).width or 0) < (_pcie(gpu).most_width or 0)]
    if narrow:
        return (
            Look(host, "PCIe", "GPU link", ", ".join(found), "note",
                 f"the GPU could have x{_pcie(narrow[0]).most_width}" if len(known) == 1 else
                 f"the GPUs could have x{_pcie(narrow[0]).most_width}; all are alike, so the board is made so",
                 "nothing, where the server has no wider slots", facts, rule=PCIE_LINK.id),
        )  # fmt: skip
    return (Look(host, "PCIe", "GPU link", ", ".join(found), facts=facts, rule=PCIE_LINK.id),)


def _pcie(gpu: SmiGpu) -> Pcie:
    return gpu.pcie or Pcie()


# TO-D101 and TO-D102: NVLink and NVSwitch.


NVLINK = described("machine", "TO-D101", JudgedBy.DOCTOR)
NVSWITCH = described("machine", "TO-D102", JudgedBy.DOCTOR)
NVLINK_RULES = (NVLINK, NVSWITCH)
_FABRIC_ADVICE = (
    "sudo systemctl start nvidia-fabricmanager (its version must be the driver's, and from B200 on it needs nvlsm), "
    "then: sudo nvidia-smi -r; "
    "in a virtual machine ask who runs the host"
)


def judge_nvlink(
    gpus: Sequence[SmiGpu], links: Mapping[int, Links] | None, paths: Mapping[tuple[str, str], Path], host: str
) -> tuple[Look, ...]:
    """Links of each GPU against its siblings', and whether NVSwitch was set up. links: None where nobody said."""
    looks = _fabric(gpus, host)
    if links is None:
        return (
            *looks,
            Look(
                host,
                "NVLink",
                "NVLink",
                "not known",
                "not_evaluated",
                "no answer of nvidia-smi nvlink -s that can be read",
                rule=NVLINK.id,
            ),
        )
    counts = {gpu: len(links.get(gpu.index, Links((), 0)).up) for gpu in gpus}
    facts = {
        "links": {gpu.label: {"up": list(one.up), "down": one.down} for gpu in gpus if (one := links.get(gpu.index))}
    }
    most = max(counts.values(), default=0)
    if most == 0:
        meshed = [gpu for gpu in gpus if _meshed(gpu)]
        if len(meshed) > 1:
            looks.append(
                Look(host, "NVLink", "NVLink", "no link is up", "error",
                     f"{meshed[0].name} has NVLink to all GPUs of its board", _FABRIC_ADVICE, facts,
                     rule=NVLINK.id)
            )  # fmt: skip
        else:
            looks.append(Look(host, "NVLink", "NVLink", "none", why="GPUs talk over PCIe", facts=facts, rule=NVLINK.id))
        return tuple(looks)
    speed = max(speed for one in links.values() for speed in one.up)
    all_ = len(set(counts.values())) == 1
    found = f"{most} links of {speed:g} GB/s one way on {'each GPU' if all_ else 'most'}"
    wrong = _fewer(gpus, counts, links, paths, host)
    looks += wrong or [Look(host, "NVLink", "NVLink", found, facts=facts, rule=NVLINK.id)]
    slow = [
        gpu.label
        for gpu in gpus
        if (one := links.get(gpu.index)) and one.up and min(one.up) < speed and siblings_of(gpu, gpus)
    ]  # fmt: skip
    if slow and len({gpu.name for gpu in gpus}) == 1:
        looks.append(
            Look(host, "NVLink", "link speed", f"slower links on {', '.join(slow)}", "warning",
                 f"links of the same GPUs run at {speed:g} GB/s", "sudo nvidia-smi -r, else have the board looked at",
                 rule=NVLINK.id)
        )  # fmt: skip
    return tuple(looks)


def _fewer(
    gpus: Sequence[SmiGpu],
    counts: Mapping[SmiGpu, int],
    links: Mapping[int, Links],
    paths: Mapping[tuple[str, str], Path],
    host: str,
) -> list[Look]:
    """GPUs with fewer links than siblings. One with none at all may just have no bridge, as PCIe cards have."""
    looks = []
    for gpu in gpus:
        siblings = siblings_of(gpu, gpus)
        most = max((counts[other] for other in siblings), default=0)
        whole = [other for other in siblings if counts[other] == most]
        if counts[gpu] >= most:
            continue
        meshed = _meshed(gpu) or _all_joined(siblings, paths)
        if counts[gpu] == 0 and not meshed:
            looks.append(
                Look(host, "NVLink", f"NVLink of {gpu.label}", "none", "note",
                     f"other GPUs here are joined by {most} links; this one has no bridge",
                     "for jobs of few GPUs take those that are joined: see nvidia-smi topo -m",
                     rule=NVLINK.id)
            )  # fmt: skip
            continue
        looks.append(
            Look(
                host, "NVLink", f"NVLink of {gpu.label}", f"{counts[gpu]} of {most} links up",
                "error" if counts[gpu] == 0 else "warning",
                f"its siblings have {most}: " + ("all it exchanges goes over PCIe, and so does every ring through it"
                                                 if counts[gpu] == 0 else "rings through it are slower"),
                "end all GPU programs and: sudo nvidia-smi -r; else reboot. Until then use the GPUs with all links: "
                f"CUDA_VISIBLE_DEVICES={','.join(str(other.index) for other in whole)}",
                {"up": counts[gpu], "siblings": most, "down": links.get(gpu.index, Links((), 0)).down},
                rule=NVLINK.id,
            )
        )  # fmt: skip
    return looks


def _meshed(gpu: SmiGpu) -> bool:
    """Whether this GPU sits on a board that joins all of its GPUs."""
    return "SXM" in gpu.name or "HBM3" in gpu.name or gpu.fabric_state is not None


def _all_joined(gpus: Sequence[SmiGpu], paths: Mapping[tuple[str, str], Path]) -> bool:
    pairs = [paths.get((one.label, other.label)) for one, other in combinations(gpus, 2)]
    return len(gpus) > 2 and all(path is not None and path.kind == "NV" for path in pairs)


def judge_waiting(states: Sequence[str], host: str) -> Look:
    """GPUs that wait for the fabric manager, by their states alone."""
    counts = Counter(states)
    shown = (f"{state} on {count} GPU{'' if count == 1 else 's'}" for state, count in counts.items())
    return _waits(", ".join(shown), host, {})


def _waits(found: str, host: str, facts: dict[str, Any]) -> Look:
    return Look(
        host, "NVLink", "NVSwitch fabric", found, "error",
        "the fabric manager has not set up NVSwitch; until it has, CUDA programs end with 'system not yet initialized'",
        _FABRIC_ADVICE, facts, rule=NVSWITCH.id,
    )  # fmt: skip


def _fabric(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    """Whether the fabric manager gave the GPUs their place in NVSwitch: without it CUDA does not start (error 802)."""
    known = [gpu for gpu in gpus if gpu.fabric_state is not None]
    if not known:
        return []
    facts = {gpu.label: f"{gpu.fabric_state}, {gpu.fabric_status}" for gpu in known}
    by_state: dict[str, list[str]] = defaultdict(list)
    for gpu in known:
        if gpu.fabric_state is not None and gpu.fabric_state != "Completed":
            by_state[gpu.fabric_state].append(gpu.label)
    if by_state:
        found = "; ".join(f"{state} on {', '.join(labels)}" for state, labels in by_state.items())
        return [_waits(found, host, facts)]
    failed = [gpu.label for gpu in known if gpu.fabric_status not in (None, "Success")]
    if failed:
        status = next(gpu.fabric_status for gpu in known if gpu.label == failed[0])
        return [
            Look(host, "NVLink", "NVSwitch fabric", f"{status} on {', '.join(failed)}", "error",
                 "NVSwitch could not be set up for these GPUs", _FABRIC_ADVICE, facts, rule=NVSWITCH.id)
        ]  # fmt: skip
    ill = {gpu.label: ", ".join(gpu.health) for gpu in known if gpu.health}
    if ill:
        found = "; ".join(f"{label}: {said}" for label, said in ill.items())
        return [
            Look(host, "NVLink", "NVSwitch fabric", found, "warning", "the driver calls the fabric not healthy",
                 "see nvidia-smi -q | grep -A12 Fabric; sudo nvidia-smi -r", facts, rule=NVSWITCH.id)
        ]  # fmt: skip
    return [Look(host, "NVLink", "NVSwitch fabric", "set up", facts=facts, rule=NVSWITCH.id)]
