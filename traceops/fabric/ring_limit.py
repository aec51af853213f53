"""What rings over GPUs of one host can carry at most, by the links that join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from traceops.fabric.model import Gpu, Machine, Path, PathKind
from traceops.fabric.reference import LANE_GBS

# What NCCL takes one NVLink to carry one way, by its physical rate, GB/s [NCCL, graph/topo.h]. Of NVLink 5 it is what
# NCCL before 2.26 takes: later ones count 40, and which one made a graph is not always told.
_AS_NCCL_COUNTS = {50.0: 20.0, 25.0: 20.0, 20.0: 18.0, 14.0625: 12.0}
_LEAST_GBS = 18.0  # of one NVLink where nothing tells its rate
_LEAST_BRIDGED_GBS = 12.0  # up to so many links they may be the bridge of a workstation's card
_BRIDGED_LINKS = 4
_MOST_GPUS = 12  # of a mesh: every way to cut it in two is looked at
_OWN_LINKS: tuple[PathKind, ...] = ("NV", "XGMI")


class RingLimit(Struct, frozen=True):
    """What all rings together can carry, GB/s one way, as NCCL counts its links.

    kind: of the links. count: links of a GPU, None where only their bandwidth is told. whole: every two of the GPUs
    have a link of their own; else the limit is that of the narrowest cut, which rings need not reach.
    """

    gbs: float
    kind: PathKind
    count: int | None
    whole: bool
    path: Path


def ring_limit(machine: Machine, gpus: Sequence[Gpu]) -> RingLimit | None:
    """The limit of rings over these GPUs; None where they are not joined by links whose speed is known."""
    pairs = {
        (one.label, other.label): path
        for one, other in combinations(gpus, 2)
        if (path := machine.path(one.label, other.label)) is not None
    }
    linked = {pair: path for pair, path in pairs.items() if path.kind in _OWN_LINKS}
    if linked:
        return _of_links(gpus, linked, len(linked) == len(gpus) * (len(gpus) - 1) // 2)
    wanted = len(gpus) * (len(gpus) - 1) // 2
    if len(pairs) == wanted > 0 and all(path.kind in ("PIX", "PXB") for path in pairs.values()):
        return _of_pcie(gpus, next(iter(pairs.values())))
    return None


def _of_links(gpus: Sequence[Gpu], linked: Mapping[tuple[str, str], Path], whole: bool) -> RingLimit | None:
    by_label = {gpu.label: gpu for gpu in gpus}
    gbs: dict[tuple[str, str], float] = {}
    for pair, path in linked.items():
        told = _link_gbs([by_label[label] for label in pair], path)
        if told is None:
            return None
        gbs[pair] = told
    first = next(iter(linked.values()))
    counts = [path.count for path in linked.values()]
    totals = [gpu.nvlinks for gpu in gpus]
    if whole and not _is_mesh(gpus, linked):
        narrowest = min(gbs.values())
        known = [total for total in totals if total]
        count = min(known) if len(known) == len(totals) else min((one for one in counts if one), default=None)
        return RingLimit(narrowest, first.kind, count, True, first)
    if len(gpus) > _MOST_GPUS:
        return None
    cut = _narrowest_cut([gpu.label for gpu in gpus], gbs)
    return RingLimit(cut, first.kind, None, whole, first) if cut > 0 else None


def _is_mesh(gpus: Sequence[Gpu], linked: Mapping[tuple[str, str], Path]) -> bool:
    """Whether each pair has its links for itself, as all XGMI has; with a switch every path counts the same ones."""
    if all(path.kind == "XGMI" for path in linked.values()):
        return True
    for gpu in gpus:
        counts = [path.count for pair, path in linked.items() if gpu.label in pair]
        if gpu.nvlinks is None or None in counts or sum(one or 0 for one in counts) > gpu.nvlinks:
            return False
    return len(gpus) > 2


def _link_gbs(ends: Sequence[Gpu], path: Path) -> float | None:
    """What all links of a pair carry one way; the narrower way where they differ."""
    if path.gbs is not None:
        return path.gbs * (path.back_share or 1.0)
    if path.count is None:
        return None
    count = path.count * (path.back_share or 1.0)
    rates = [gpu.nvlink_gbs for gpu in ends if gpu.nvlink_gbs is not None]
    if path.kind == "XGMI":
        return count * min(rates) if rates else None
    if not rates:
        return count * (_LEAST_BRIDGED_GBS if path.count <= _BRIDGED_LINKS else _LEAST_GBS)
    return count * min(_AS_NCCL_COUNTS.get(rate, _LEAST_GBS) for rate in rates)


def _narrowest_cut(labels: Sequence[str], gbs: Mapping[tuple[str, str], float]) -> float:
    """Every ring crosses each cut once each way: all of them carry no more than the narrowest gives."""
    first, *rest = labels
    narrowest = float("inf")
    for size in range(len(rest)):
        for some in combinations(rest, size):
            side = {first, *some}
            crossing = sum(one for pair, one in gbs.items() if (pair[0] in side) != (pair[1] in side))
            narrowest = min(narrowest, crossing)
    return narrowest


def _of_pcie(gpus: Sequence[Gpu], path: Path) -> RingLimit | None:
    known = []
    for gpu in gpus:
        pcie = gpu.pcie
        lane = LANE_GBS.get(pcie.most_generation or 0) if pcie is not None else None
        if pcie is None or lane is None or not pcie.most_width:
            return None
        known.append(lane * pcie.most_width)
    return RingLimit(min(known), path.kind, None, True, path)
