"""What a GPU's link to its host carries from pinned memory, by what the machine or the GPU's name says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from traceops.fabric.model import Machine

# GB/s of a lane, one way, in large copies: as NCCL counts them. On H200 (16 lanes of generation 5) pinned copies reach
# 54 to 55 in place of 48 [docs/metrics.md].
LANE_GBS = {1: 0.2, 2: 0.4, 3: 0.75, 4: 1.5, 5: 3.0, 6: 6.0}
_LANES = 16
# By the makers' data sheets, the first that fits. Not of superchips, whose link to the CPU is another.
_GENERATIONS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"\bG[BH]\d00\b"), 0),
    (re.compile(r"\bMIG\b"), 0),
    (re.compile(r"\b(H[128]00|H20|B200|MI300X|MI325X|RTX 50[0-9]0)\b"), 5),
    (re.compile(r"\b(A[18]00|A[34]0|A10G?|L40S?|L4|RTX A\d000|RTX [34]0[0-9]0|6000 Ada|MI2[15]0X?)\b"), 4),
    (re.compile(r"\b([VP]100|T4|RTX 20[0-9]0|TITAN RTX)\b"), 3),
)


@dataclass(frozen=True)
class HostLink:
    """GB/s from pinned memory, one way. source: what pinned copies of the trace reached, the machine's facts, or what
    the GPU's data sheet says. generation: of PCIe, None where it was measured."""

    gbs: float
    source: Literal["trace", "machine", "table"]
    generation: int | None = None
    lanes: int | None = None


def link_of_machine(machines: tuple[Machine, ...]) -> HostLink | None:
    """The narrowest link of the GPUs of all machines; None where one is not known."""
    known = []
    for machine in machines:
        for gpu in machine.gpus:
            pcie = gpu.pcie
            lane = LANE_GBS.get(pcie.most_generation or 0) if pcie is not None else None
            if pcie is None or lane is None or not pcie.most_width:
                return None
            known.append(HostLink(lane * pcie.most_width, "machine", pcie.most_generation, pcie.most_width))
    return min(known, key=lambda link: link.gbs, default=None)


def link_by_name(device: str | None) -> HostLink | None:
    """The link by the GPU's name; None where it is not listed."""
    for pattern, generation in _GENERATIONS if device else ():
        if pattern.search(device or ""):
            return HostLink(_LANES * LANE_GBS[generation], "table", generation, _LANES) if generation else None
    return None
