"""Chooses the events of some steps: what overlaps their time, and pairs and flows only as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from traceops.measure.activity import find_activity
from traceops.measure.steps import host_steps
from traceops.measure.summary import RankSummary
from traceops.timeline.reader import WholeEvent
from traceops.traces.kineto import load_trace

Timed = tuple[WholeEvent, int, int]  # event, start and duration in ns as the analysis has them
_ABSENT = msgspec.Raw(b"null")
_FLOW = (b'"s"', b'"t"', b'"f"')
_OPENS, _CLOSES = (b'"B"', b'"b"', b'"S"'), (b'"E"', b'"e"', b'"F"')


def step_windows(summary: RankSummary, steps: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """When a rank was at the chosen steps (ns, its own clock): from annotation on the host to the device's end. Reads
    the trace again, for a summary does not hold the annotations. Windows that touch are one."""
    events = load_trace(summary.path).events
    numbers = (*summary.step_numbers.tolist(), *summary.empty_steps)
    found = host_steps(events, find_activity(events), numbers if summary.steps_by == "profiler" else None)
    if found is None:
        return ()
    device_end = dict(zip(summary.step_numbers.tolist(), summary.step_edges[1:].tolist(), strict=True))
    wanted = set(steps)
    # Found steps count from where the rank began to record, until they are put beside those of other ranks.
    shift = max(numbers, default=0) - int(found.number.max(initial=0))
    windows = [
        (start, max(end, device_end.get(number, end)))
        for number, start, end in zip(
            (found.number + shift).tolist(), found.begin.tolist(), found.end.tolist(), strict=True
        )
        if number in wanted
    ]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def overlaps(windows: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    """Whether any of the time from `start` to `end`, or the moment they are, lies in a window."""
    return any(start < last and (end > first or start >= first) for first, last in windows)


class StepFilter:
    """Decides about one rank's events while they pass; those that hang on others it holds back."""

    def __init__(self, windows: Sequence[tuple[int, int]]) -> None:
        self._windows = windows
        self._flows: list[Timed] = []
        self._pairs: list[Timed] = []
        self._early: set[tuple[bytes, bytes, int]] = set()  # slices that began before a window and reach into it

    def keeps(self, timed: Timed, phase: bytes) -> bool:
        """Whether to write the event now; what `held` returns later is not among these."""
        event, start, duration = timed
        if phase in _FLOW:
            self._flows.append(timed)
            return False
        if phase in _OPENS or phase in _CLOSES:
            self._pairs.append(timed)
            return False
        kept = overlaps(self._windows, start, start + duration)
        if kept and not overlaps(self._windows, start, start):
            self._early.add(_anchor(event, start))
        return kept

    def held(self) -> list[Timed]:
        """What of the events held back is to be written, once all have passed."""
        kept: list[Timed] = []
        # Begin and end events of spans that overlap a window
        open_spans: dict[tuple[bytes, ...], list[Timed]] = defaultdict(list)
        for timed in sorted(self._pairs, key=lambda timed: timed[1]):
            event, start, _ = timed
            phase = bytes(event["ph"])
            thread = phase in (b'"B"', b'"E"')
            key = _key(event, "pid", "tid") if thread else _key(event, "cat", "id", "id2", "scope")
            if phase in _OPENS:
                open_spans[key].append(timed)
            elif open_spans[key]:
                begun = open_spans[key].pop()
                if overlaps(self._windows, begun[1], start):
                    kept += [begun, timed]
        never_closed = (timed for own in open_spans.values() for timed in own)
        kept += [timed for timed in never_closed if overlaps(self._windows, timed[1], np.iinfo(np.int64).max)]
        # Flow events at slices that were kept, of flows that both begin and end among them
        by_flow: dict[tuple[bytes, ...], list[Timed]] = defaultdict(list)
        for timed in self._flows:
            event, start, _ = timed
            if overlaps(self._windows, start, start) or _anchor(event, start) in self._early:
                by_flow[_key(event, "cat", "name", "id")].append(timed)
        for own in by_flow.values():
            phases = {bytes(event["ph"]) for event, _, _ in own}
            if b'"s"' in phases and len(phases) > 1:
                kept += own
        return kept


def _anchor(event: WholeEvent, start: int) -> tuple[bytes, bytes, int]:
    return bytes(event.get("pid", _ABSENT)), bytes(event.get("tid", _ABSENT)), start


def _key(event: WholeEvent, *keys: str) -> tuple[bytes, ...]:
    return tuple(bytes(event.get(key, _ABSENT)) for key in keys)
