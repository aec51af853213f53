"""TO-D101 and TO-D102: NVLink and NVSwitch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from traceops.core.rule import JudgedBy, Rule
from traceops.fabric.model import Path
from traceops.machine.look import Look
from traceops.machine.nvlink import Links
from traceops.machine.smi import SmiGpu
from traceops.rules.machine.pcie import siblings_of

NVLINK = Rule(
    id="TO-D101",
    title="NVLinks are down or slower than those of equal GPUs",
    fires=(
        "Error where a GPU on a board with NVLink has no link up; warning where it has fewer or slower "
        "links than its siblings; info where a PCIe card has no bridge."
    ),
    advice=("End all GPU programs and reset the GPUs (sudo nvidia-smi -r), else reboot. Leave the GPU out until then."),
    judged_by=JudgedBy.DOCTOR,
)
NVSWITCH = Rule(
    id="TO-D102",
    title="NVSwitch is not set up, or not sound",
    fires=(
        "Error where the fabric manager does not run, or did not set up NVSwitch for a GPU; warning where "
        "the driver calls the fabric unhealthy."
    ),
    advice=(
        "sudo systemctl start nvidia-fabricmanager (its version must be that of the driver), then sudo nvidia-smi -r."
    ),
    judged_by=JudgedBy.DOCTOR,
)
RULES = (NVLINK, NVSWITCH)
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
