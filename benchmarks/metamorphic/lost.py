"""Changes that take something away: ranks, ends of files, arguments, kinds of events."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.metamorphic.change import Changed, Make, copied, each
from benchmarks.metamorphic.traces import Event, Trace, Traces


def without_rank(last: bool) -> Make:
    def change(run: Traces, rng: random.Random) -> Changed | None:
        if len(run.traces) < 2:
            return None
        at = len(run.traces) - 1 if last else 0
        kept = copied(run)
        gone = kept.traces.pop(at)
        return Changed(kept, without=(gone.rank,))

    return change


def damaged(how: Callable[[Trace], None]) -> Make:
    def change(run: Traces, rng: random.Random) -> Changed | None:
        if len(run.traces) < 2:
            return None
        run = copied(run)
        how(run.traces[-1])
        return Changed(run, without=(run.traces[-1].rank,), named=run.traces[-1].file)

    return change


def alone(run: Traces, rng: random.Random) -> Changed:
    """One rank's trace, cut off: nothing may be said of what it lost."""
    run = copied(run)
    run.traces = run.traces[-1:]
    cut(run.traces[0])
    return Changed(run, without=(run.traces[0].rank,), named=run.traces[0].file)


def cut(trace: Trace) -> None:
    trace.cut_at = 0.6


def cut_gz(trace: Trace) -> None:
    trace.cut_at, trace.file = 0.6, trace.file + ".gz"


def empty(trace: Trace) -> None:
    trace.cut_at = 0.0


def without_args(*keys: str) -> Make:
    def change(run: Traces, rng: random.Random) -> Changed | None:
        if not any(key in (e.get("args") or {}) for t in run.traces for e in t.events for key in keys):
            return None

        def drop(trace: Trace) -> None:
            for event in trace.events:
                for key in keys:
                    if isinstance(event.get("args"), dict):
                        event["args"].pop(key, None)

        return each(run, drop)

    return change


def without_events(drop: Callable[[Event], bool]) -> Make:
    def change(run: Traces, rng: random.Random) -> Changed | None:
        if not any(drop(e) for t in run.traces for e in t.events):
            return None

        def left(trace: Trace) -> None:
            trace.events = [e for e in trace.events if not drop(e)]

        return each(run, left)

    return change


def without_header(key: str) -> Make:
    def change(run: Traces, rng: random.Random) -> Changed | None:
        if not any(key in t.document for t in run.traces):
            return None

        def drop(trace: Trace) -> None:
            trace.document.pop(key, None)

        return each(run, drop)

    return change


def kind(*cats: str) -> Callable[[Event], bool]:
    return lambda event: event.get("cat") in cats
