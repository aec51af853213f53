"""TO-D103 and TO-D104: direct access between GPUs, and PCIe lanes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from traceops.core.rule import JudgedBy, described
from traceops.fabric.model import Path, Pcie
from traceops.machine.look import Level, Look
from traceops.machine.platform import Links
from traceops.machine.smi import SmiGpu
from traceops.rules.machine.limits import looked

DIRECT_ACCESS = described("machine", "TO-D103", JudgedBy.DOCTOR)
PCIE_LINK = described("machine", "TO-D104", JudgedBy.DOCTOR)
RULES = (DIRECT_ACCESS, PCIE_LINK)
_REFUSALS = ("CNS", "TNS", "DR")  # of nvidia-smi topo -p2p


def siblings_of(gpu: SmiGpu, gpus: Sequence[SmiGpu]) -> list[SmiGpu]:
    """Other GPUs of the same model."""
    return [other for other in gpus if other.name == gpu.name and other is not gpu]


def judge_p2p(
    pairs: Mapping[tuple[int, int], str], paths: Mapping[tuple[str, str], Path], virtual: bool, host: str
) -> tuple[Look, ...]:
    """Whether GPUs may read each other's memory. virtual: what refuses all of them may be out of reach."""
    look = partial(looked, host, "p2p")
    if not pairs:
        return (look("unknown"),)
    bad = {pair: status for pair, status in pairs.items() if status != "OK" and pair[0] < pair[1]}
    if not bad:
        return (look("all", count=len(pairs) // 2),)
    numbers = {"pairs": [[*pair, status] for pair, status in bad.items()]}
    shown = ", ".join(f"{one}-{other} {status}" for (one, other), status in list(bad.items())[:8])
    if any((path := _path(paths, pair)) is not None and path.kind == "NV" for pair in bad):
        return (look("beside_nvlink", numbers, pairs=shown),)
    status = next(iter(bad.values()))
    alike = len(bad) == len(pairs) // 2 and len(set(bad.values())) == 1
    if alike and status == "GNS":
        return (look("by_model", numbers),)
    known = status if status in _REFUSALS else None
    return (look("refused", numbers, level="note" if virtual and alike else None, pairs=shown, status=known),)


def _path(paths: Mapping[tuple[str, str], Path], pair: tuple[int, int]) -> Path | None:
    one, other = (f"GPU{index}" for index in pair)
    return paths.get((one, other)) or paths.get((other, one))


def judge_lanes(gpus: Sequence[SmiGpu], host: str) -> tuple[Look, ...]:
    """PCIe lanes and generation of GPUs against siblings; an idle GPU lowers its generation by itself, never width."""
    look = partial(looked, host, "gpu_link")
    known = [gpu for gpu in gpus if gpu.pcie is not None and gpu.pcie.width]
    if not known:
        return (look("unknown"),)
    numbers = {
        gpu.label: {"generation": _pcie(gpu).generation, "width": _pcie(gpu).width,
                    "max_generation": _pcie(gpu).most_generation, "max_width": _pcie(gpu).most_width}
        for gpu in known
    }  # fmt: skip
    if looks := [one for gpu in known for one in _below_siblings(gpu, known, numbers[gpu.label], host)]:
        return tuple(looks)
    links = sorted({f"gen {_pcie(gpu).most_generation or '?'} x{_pcie(gpu).width}" for gpu in known})
    narrow = [gpu for gpu in known if (_pcie(gpu).width or 0) < (_pcie(gpu).most_width or 0)]
    if narrow:
        most = _pcie(narrow[0]).most_width
        return (look("narrow_board", numbers, links=links, most=most, alone=len(known) == 1),)
    return (look("fine", numbers, links=links),)


def _below_siblings(gpu: SmiGpu, known: Sequence[SmiGpu], numbers: Mapping[str, Any], host: str) -> Iterator[Look]:
    """What is narrower or slower on the link of one GPU than on those of its siblings."""
    look = partial(looked, host, "gpu_link", numbers=numbers, gpu=gpu.label, bus_id=gpu.bus_id or "BUS")
    mine, siblings = _pcie(gpu), [_pcie(other) for other in siblings_of(gpu, known)]
    widest = max((other.width or 0 for other in siblings), default=0)
    newest = max((other.most_generation or 0 for other in siblings), default=0)
    if (mine.width or 0) < widest:
        yield look("fewer_lanes", width=mine.width, most=mine.most_width or widest, siblings=widest)
    if mine.most_generation and mine.most_generation < newest:
        yield look("older", most=mine.most_generation, siblings=newest)
    elif not gpu.idle and (gpu.utilization or 0) > 0 and (mine.generation or 9) < (mine.most_generation or 0):
        yield look("slow_at_work", now=mine.generation, most=mine.most_generation)


def _pcie(gpu: SmiGpu) -> Pcie:
    return gpu.pcie or Pcie()


# TO-D101 and TO-D102: NVLink and NVSwitch.

NVLINK = described("machine", "TO-D101", JudgedBy.DOCTOR)
NVSWITCH = described("machine", "TO-D102", JudgedBy.DOCTOR)
NVLINK_RULES = (NVLINK, NVSWITCH)
_NO_LINKS = Links((), 0)


def judge_nvlink(
    gpus: Sequence[SmiGpu], links: Mapping[int, Links] | None, paths: Mapping[tuple[str, str], Path], host: str
) -> tuple[Look, ...]:
    """Links of each GPU against its siblings', and whether NVSwitch was set up. links: None where nobody said."""
    look = partial(looked, host, "nvlink")
    fabric = _fabric(gpus, host)
    if links is None:
        return (*fabric, look("unknown"))
    counts = {gpu: len(links.get(gpu.index, _NO_LINKS).up) for gpu in gpus}
    numbers = {
        "links": {gpu.label: {"up": list(one.up), "down": one.down} for gpu in gpus if (one := links.get(gpu.index))}
    }
    if (most := max(counts.values(), default=0)) == 0:
        meshed = [gpu for gpu in gpus if _meshed(gpu)]
        down = look("all_down", numbers, model=meshed[0].name) if len(meshed) > 1 else look("none", numbers)
        return (*fabric, down)
    speed = max(speed for one in links.values() for speed in one.up)
    uneven = len(set(counts.values())) > 1
    looks = _fewer(gpus, counts, links, paths, host) or [look("fine", numbers, count=most, speed=speed, uneven=uneven)]
    slow = [
        gpu.label
        for gpu in gpus
        if (one := links.get(gpu.index)) and one.up and min(one.up) < speed and siblings_of(gpu, gpus)
    ]  # fmt: skip
    if slow and len({gpu.name for gpu in gpus}) == 1:
        looks.append(look("slow", gpus=slow, speed=speed))
    return (*fabric, *looks)


def _fewer(
    gpus: Sequence[SmiGpu],
    counts: Mapping[SmiGpu, int],
    links: Mapping[int, Links],
    paths: Mapping[tuple[str, str], Path],
    host: str,
) -> list[Look]:
    """GPUs with fewer links than siblings. One with none at all may just have no bridge, as PCIe cards have."""
    look = partial(looked, host, "nvlink")
    looks = []
    for gpu in gpus:
        siblings = siblings_of(gpu, gpus)
        most = max((counts[other] for other in siblings), default=0)
        if counts[gpu] >= most:
            continue
        cut_off = counts[gpu] == 0
        if cut_off and not (_meshed(gpu) or _all_joined(siblings, paths)):
            looks.append(look("no_bridge", gpu=gpu.label, most=most))
            continue
        numbers = {"up": counts[gpu], "siblings": most, "down": links.get(gpu.index, _NO_LINKS).down}
        whole = ",".join(str(other.index) for other in siblings if counts[other] == most)
        level: Level | None = "error" if cut_off else None
        looks.append(
            look("fewer", numbers, level=level, gpu=gpu.label, up=counts[gpu], most=most, cut_off=cut_off, whole=whole)
        )
    return looks


def _meshed(gpu: SmiGpu) -> bool:
    """Whether this GPU sits on a board that joins all of its GPUs."""
    return "SXM" in gpu.name or "HBM3" in gpu.name or gpu.fabric_state is not None


def _all_joined(gpus: Sequence[SmiGpu], paths: Mapping[tuple[str, str], Path]) -> bool:
    pairs = [paths.get((one.label, other.label)) for one, other in combinations(gpus, 2)]
    return len(gpus) > 2 and all(path is not None and path.kind == "NV" for path in pairs)


def judge_waiting(states: Sequence[str], host: str) -> Look:
    """GPUs that wait for the fabric manager, by their states alone."""
    shown = (f"{state} on {count} GPU{'' if count == 1 else 's'}" for state, count in Counter(states).items())
    return looked(host, "nvswitch", "waits", states=", ".join(shown))


def _fabric(gpus: Sequence[SmiGpu], host: str) -> list[Look]:
    """Whether the fabric manager gave the GPUs their place in NVSwitch: without it CUDA does not start (error 802)."""
    if not (known := [gpu for gpu in gpus if gpu.fabric_state is not None]):
        return []
    numbers = {gpu.label: f"{gpu.fabric_state}, {gpu.fabric_status}" for gpu in known}
    look = partial(looked, host, "nvswitch", numbers=numbers)
    by_state: dict[str, list[str]] = defaultdict(list)
    for gpu in known:
        if gpu.fabric_state is not None and gpu.fabric_state != "Completed":
            by_state[gpu.fabric_state].append(gpu.label)
    if by_state:
        return [
            look("waits", states="; ".join(f"{state} on {', '.join(labels)}" for state, labels in by_state.items()))
        ]
    if failed := [gpu for gpu in known if gpu.fabric_status not in (None, "Success")]:
        return [look("failed", status=failed[0].fabric_status, gpus=[gpu.label for gpu in failed])]
    ill = "; ".join(f"{gpu.label}: {', '.join(gpu.health)}" for gpu in known if gpu.health)
    return [look("ill", found=ill) if ill else look("set_up")]
