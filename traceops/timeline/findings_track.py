"""The track on top of the timeline: what traceops found, over the steps it was found in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traceops.across.cross_rank import CrossRank
from traceops.core.findings import Finding
from traceops.timeline.lanes import Slice, slice_event, spread, track_events, well_formed
from traceops.timeline.processes import title_events
from traceops.timeline.tracks import ShownRank

FINDINGS_PID = 1  # below every rank's


def findings_track(
    run: CrossRank | None, findings: Sequence[Finding], shown: Mapping[int, ShownRank], window: tuple[int, int]
) -> list[dict[str, Any]]:
    """Events of a process of its own, with `finding_slices` in it."""
    bundles = [(own,) for own in finding_slices(run, findings, shown, window)]
    events = title_events(FINDINGS_PID, "traceops findings", 0)
    lanes = spread(bundles, nest=True)
    for lane in range(max(lanes, default=0) + 1):
        events += track_events(FINDINGS_PID, lane + 1, "findings" + (f" {lane + 1}" if lane else ""))
    return events + [slice_event(own, FINDINGS_PID, lane + 1) for (own,), lane in zip(bundles, lanes, strict=True)]


def finding_slices(
    run: CrossRank | None, findings: Sequence[Finding], shown: Mapping[int, ShownRank], window: tuple[int, int]
) -> Iterator[Slice]:
    """A slice for each finding, over the steps it names or else the whole `window` (ns on the timeline).

    One that names steps none of which is shown is left out.
    """
    for finding in findings:
        start, end = _steps_of(finding, run, shown) if finding.steps else window
        start, end = max(start, window[0]), min(end, window[1])
        if start <= end:
            name = well_formed(f"{finding.rule} {finding.title}")
            yield Slice(name, start, end, well_formed(_describe(finding)))


def _describe(finding: Finding) -> dict[str, Any]:
    return {
        "title": finding.title,
        "message": finding.message,
        "advice": finding.advice,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "cause": finding.cause,
        "ranks": list(finding.ranks),
        "steps": list(finding.steps),
        "impact_ms": finding.impact_ms,
    }


def _steps_of(finding: Finding, run: CrossRank | None, shown: Mapping[int, ShownRank]) -> tuple[int, int]:
    """From first to last moment of a finding's steps on its ranks, as far as both are shown; else no time.

    A finding about ranks that are not shown lies over the same steps of those that are.
    """
    bounds: dict[bool, list[int]] = {True: [], False: []}
    for own in run.ranks if run is not None else ():
        summary, rank = own.summary, shown.get(own.summary.rank)
        if rank is None:
            continue
        placed = rank.placement.place(summary.step_edges).tolist()
        for i, number in enumerate(summary.step_numbers.tolist()):
            if number in finding.steps and (rank.steps is None or number in rank.steps):
                bounds[summary.rank in finding.ranks] += placed[i : i + 2]
    found = bounds[True] or bounds[False]
    return (min(found), max(found)) if found else (1, 0)
