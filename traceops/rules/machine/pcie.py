"""TO-D103 and TO-D104: direct access between GPUs, and PCIe lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceops.core.rule import JudgedBy, Rule
from traceops.fabric.model import Path, Pcie
from traceops.machine.look import Look
from traceops.machine.smi import SmiGpu

DIRECT_ACCESS = Rule(
    id="TO-D103",
    title="GPUs cannot reach each other directly (P2P)",
    fires=(
        "Error where NVLink joins two GPUs and the driver refuses to use it; warning where the chipset or "
        "the place of the GPUs refuses; info where the kind of GPU, or a virtual machine, has no P2P."
    ),
    advice=("Place GPUs that talk most under one PCIe switch; on bare metal check ACS and IOMMU in the BIOS."),
    judged_by=JudgedBy.DOCTOR,
)


PCIE_LINK = Rule(
    id="TO-D104",
    title="A PCIe link runs below what it could",
    fires=(
        "Warning where a GPU or a network card has fewer lanes or a lower generation than its siblings; "
        "info where all could have more lanes, a busy GPU runs a lower generation, or packets are often "
        "sent again (1,000 times)."
    ),
    advice="Reseat the card, check slot and riser: sudo lspci -vv -s BUS | grep -i lnksta.",
    judged_by=JudgedBy.DOCTOR,
)


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
