"""Exposed copies between host and device, rank by rank, and what is left of them from pinned memory beside kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from msgspec import Struct

from traceops.across.replay.graph import StepGraph
from traceops.across.replay.simulate import Scenario, simulate
from traceops.across.replay.what_if import Prediction
from traceops.core.arrays import Mask, mean_ms
from traceops.fabric.fabric import Fabric
from traceops.fabric.reference import HostLink, link_by_name, link_of_machine
from traceops.measure.copies import CopyKind, Direction
from traceops.measure.program import NEVER
from traceops.measure.summary import RankSummary

Purpose = Literal["input", "output", "offload"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
CHANGES: Mapping[Purpose, str] = {
    "input": "copies to the device beside kernels",
    "output": "copies to the host beside kernels",
    "offload": "offloaded tensors in pinned memory",
}
_LEAST_PCT = 4.0  # of the step: less is not replayed


class ExposedCopies(Struct, frozen=True):
    """One rank's copies of one purpose, ms per step, means over the typical ones; kinds: of these, most exposed first.
    exposed_ms: only they run. saved_ms: what their cure takes away, were the rank alone: from pinned memory, beside
    kernels where that is possible. blocked_ms: the host's time in them. host_ms: what the host does of its own a step,
    None where that is not known."""

    rank: int
    purpose: Purpose
    kinds: tuple[CopyKind, ...]
    exposed_ms: float
    blocked_ms: float
    saved_ms: float
    memory_ms: float
    step_ms: float
    host_ms: float | None
    steps: int
    link: HostLink | None


def exposed_copies(
    ranks: Sequence[RankSummary], typical: Mapping[int, Mask], device: str | None, fabric: Fabric | None
) -> tuple[ExposedCopies, ...]:
    """Of each rank and purpose what is exposed."""
    links = {way: _link(ranks, way, device, fabric) for way in ("to_device", "to_host")}
    found = (_of_rank(one, purpose, typical[one.rank], links) for one in ranks for purpose in PURPOSES)
    return tuple(exposed for exposed in found if exposed is not None)


def _link(ranks: Sequence[RankSummary], way: Direction, device: str | None, fabric: Fabric | None) -> HostLink | None:
    """By what large pinned copies reached, by the machines' facts, or by the GPU's name."""
    reached = [gbs for summary in ranks for known, gbs in summary.copies.best_gbs if known == way]
    told = link_of_machine(fabric.machines) if fabric is not None else None
    told = told or link_by_name(device)
    measured = HostLink(max(reached), "trace") if reached else None
    if measured is not None and (told is None or measured.gbs >= told.gbs):
        return measured
    return told


def _of_rank(
    summary: RankSummary, purpose: Purpose, typical: Mask, links: Mapping[str, HostLink | None]
) -> ExposedCopies | None:
    own = [kind.of_steps(typical) for kind in summary.copies.kinds if kind.purpose == purpose]
    own = [kind for kind in own if np.count_nonzero(kind.count)]
    kinds = tuple(sorted(own, key=lambda kind: -int(kind.exposed_ns.sum())))
    steps = int(typical.sum())
    if not kinds:
        return None
    exposed = sum(float(kind.exposed_ns.sum()) for kind in kinds) / steps / 1e6
    step = mean_ms(summary.ledger.duration[typical])
    memory = mean_ms(summary.ledger.buckets["memory"][typical])
    device = sum(float(kind.device_ns.sum()) for kind in kinds) / steps / 1e6
    blocked = sum(float(kind.blocked_ns.sum()) for kind in kinds) / steps / 1e6
    gbs = {way: link.gbs for way, link in links.items() if link is not None}
    at_link = sum(kind.at_link_ns(gbs.get(kind.direction)) for kind in kinds) / steps / 1e6
    if purpose == "offload":  # where it can be overlapped is up to the algorithm: only its memory is cured
        left = exposed * min(at_link / device, 1.0) if device else exposed
    else:
        left = min(max(at_link - (step - memory), 0.0), exposed)
    # What the host does between the launches of what ends the steps, without waiting for the device.
    edges = summary.program.host[-(len(typical) + 1) :]
    took = (edges[1:] - edges[:-1])[typical[: len(edges) - 1]]
    known = (edges[1:] > NEVER // 2) & (edges[:-1] > NEVER // 2)
    took = took[known[typical[: len(edges) - 1]]]
    return ExposedCopies(
        rank=summary.rank,
        purpose=purpose,
        kinds=kinds,
        exposed_ms=exposed,
        blocked_ms=blocked,
        saved_ms=exposed - left,
        memory_ms=memory,
        step_ms=step,
        host_ms=float(took.mean()) / 1e6 if len(took) else None,
        steps=steps,
        link=links[kinds[0].direction],
    )


def predict_copies(graph: StepGraph, copies: Sequence[ExposedCopies]) -> list[Prediction]:
    """The steps without what the cure of each purpose takes away, where that is not next to nothing."""
    found = []
    for purpose in PURPOSES:
        own = [one for one in copies if one.purpose == purpose and one.rank in graph.ranks]
        if not any(100 * one.exposed_ms >= _LEAST_PCT * one.step_ms for one in own):
            continue
        part = {one.rank: min(one.saved_ms / one.memory_ms, 1.0) for one in own if one.memory_ms > 0}
        steps = simulate(graph, Scenario(without=("memory",), part=part)).step_ns()
        found.append(Prediction(CHANGES[purpose], (), steps))
    return found
