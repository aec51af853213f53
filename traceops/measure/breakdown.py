"""Idle, compute and non-compute share and overlap of one rank, by HTA's definitions and HTA's values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceops.core.intervals import clip, intersect
from traceops.measure.activity import COMM, COMPUTE, MEMORY, Activity
from traceops.measure.hta_rows import hta_kinds
from traceops.measure.hta_tables import HtaTables
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events


@dataclass(frozen=True)
class Breakdown:
    """Percent of the rank's device time; None where it cannot be said (no communication, no activity).

    `source` is 'hta', or 'traceops' with the reason why HTA's value is not used.
    """

    idle_pct: float | None
    compute_pct: float | None
    non_compute_pct: float | None
    overlap_pct: float | None
    source: str
    why_not_hta: str = ""


def measure_breakdown(events: Events, activity: Activity, steps: StepBounds, hta: HtaTables) -> Breakdown:
    """HTA's temporal breakdown and overlap, or ours by the same definitions where HTA is wrong or fails."""
    reason = hta_is_wrong(events, activity) or _failed(hta)
    if not reason and hta.temporal is not None and hta.overlap is not None:
        return Breakdown(
            idle_pct=hta.temporal["idle_time_pctg"][0],
            compute_pct=hta.temporal["compute_time_pctg"][0],
            non_compute_pct=hta.temporal["non_compute_time_pctg"][0],
            overlap_pct=hta.overlap["comp_comm_overlap_pctg"][0],
            source="hta",
        )
    return own_breakdown(activity, steps, reason)


def own_breakdown(activity: Activity, steps: StepBounds, why_not_hta: str) -> Breakdown:
    """The same four numbers over the device time of all steps, CPU runs included."""
    first, last = int(steps.edges[0]), int(steps.edges[-1])
    kernel_time = last - first
    if kernel_time <= 0:
        return Breakdown(None, None, None, None, "traceops", why_not_hta)
    compute = clip(activity.union_of(COMPUTE), first, last)
    comm = clip(activity.union_of(COMM), first, last)
    idle = kernel_time - clip(activity.union_of(COMPUTE, COMM, MEMORY), first, last).total
    return Breakdown(
        idle_pct=_pct(idle, kernel_time),
        compute_pct=_pct(compute.total, kernel_time),
        non_compute_pct=_pct(kernel_time - idle - compute.total, kernel_time),
        overlap_pct=_pct(intersect(comm, compute).total, comm.total) if comm.total else None,
        source="traceops",
        why_not_hta=why_not_hta,
    )


def hta_is_wrong(events: Events, activity: Activity) -> str:
    """Why HTA would count something as what it is not in this trace; empty where it would not."""
    if not activity.on_gpu:
        return "HTA has no answer for a trace without GPU activity"
    if activity.through_host:
        return "HTA counts no collective that the hosts run (gloo)"
    counted = (events.stream != -1) & (events.correlation >= 0)
    counted[activity.row] = False
    others = np.flatnonzero(counted)
    if len(others):
        cat = events.cats[events.cat[others[0]]]
        return f"HTA counts {len(others)} events of category '{cat}' as GPU work"
    name = events.name[activity.row]
    wrong = np.flatnonzero(hta_kinds(events.names, name)[name] != activity.kind)
    if len(wrong):
        first = events.names[name[wrong[0]]]
        return f"HTA takes {len(wrong)} kernels for another kind, such as {first[:80]}"
    return ""


def _failed(hta: HtaTables) -> str:
    for name, error in hta.failed:
        if name in ("all", "temporal breakdown", "communication-computation overlap"):
            return error if name == "all" else f"HTA's {name} failed: {error}"
    return ""


def _pct(part: int, whole: int) -> float:
    return round(100.0 * part / whole, 2)
