"""The line of progress: where the ranks are and how fast they go."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from traceops.capture.progress import Progress

_SPAN_S = 10.0


class StepRate:
    """Turns the ranks' records into steps, step time and samples per second of the last seconds."""

    def __init__(self, ranks: int | None, host: str = "") -> None:
        """ranks: None for as many as come. host: which of several nodes these are of, '' where there is one."""
        self._ranks, self._on = ranks, host and f" on {host}"
        self._seen: deque[tuple[int, int, int | None]] = deque()  # (time_ns, step, samples of all ranks)

    def line(self, records: Sequence[Progress], alive: int) -> str:
        """What to show; the step is that of the rank furthest behind."""
        behind = min(records, key=lambda record: record.step, default=None)
        if behind is None and self._ranks is None:
            return "before the first step"
        ranks = len(records) if self._ranks is None else self._ranks
        ended = sum(record.phase == "ended" for record in records)
        people = f"{alive}/{ranks} ranks alive{self._on}"
        if alive < ranks <= ended:  # none of them died
            people = f"{ranks - alive}/{ranks} ranks have ended{self._on}"
        if behind is None or behind.step == 0:
            return f"before the first step · {people}"
        known = [record.samples for record in records if record.samples is not None]
        now = (behind.time_ns, behind.step, sum(known) if known else None)
        if not self._seen or now[1] > self._seen[-1][1]:
            self._seen.append(now)
        while len(self._seen) > 2 and now[0] - self._seen[0][0] > _SPAN_S * 1e9:
            self._seen.popleft()
        parts = [f"step {behind.step} ({behind.phase})"]
        (t0, s0, n0), (t1, s1, n1) = self._seen[0], self._seen[-1]
        if s1 > s0 and t1 > t0:
            parts.append(f"{(t1 - t0) / (s1 - s0) / 1e6:.1f} ms/step")
            if n0 is not None and n1 is not None and n1 > n0:
                parts.append(f"{(n1 - n0) / ((t1 - t0) / 1e9):.0f} samples/s")
        return " · ".join([*parts, people])
