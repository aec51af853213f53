"""Which window of a run is analysed: the latest whole one, unless it was to be better than the first and is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traceops.traces.run_manifest import is_step_time
from traceops.traces.windows import Window, latest_window


def chosen_window(windows: Sequence[Window], manifest: Mapping[str, Any]) -> Window:
    """The latest one that as many ranks hold as any, of the newest job.

    The launcher asks for a second window where the first looks slower than the steps since. If it took no less, by
    what happened to come just then, it shows the run no better. manifest: run.json, {} where there is none.
    """
    windows = of_newest_job(windows)
    latest = latest_window(windows)
    earlier = windows[: windows.index(latest)]
    if not earlier or not any(one.get("why") for _, one in _records(manifest, latest.index)):
        return latest
    first = latest_window(earlier)
    before, now = (_step_ms(manifest, window.index) for window in (first, latest))
    return first if before is not None and now is not None and now >= before else latest


def of_newest_job(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Its windows. Other jobs may have recorded into the same folder."""
    return tuple(own for own in windows if own.job == windows[-1].job)


def _records(manifest: Mapping[str, Any], index: int) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each rank of run.json that recorded the window with this index, and what is said of it there."""
    for entry in manifest.get("ranks") or ():
        windows = entry.get("windows")
        for one in windows if isinstance(windows, list) else ():
            if isinstance(one, dict) and one.get("index") == index:
                yield entry, one


def _step_ms(manifest: Mapping[str, Any], index: int) -> float | None:
    """The mean of a window's recorded steps over all ranks."""
    found = []
    for entry, one in _records(manifest, index):
        steps, numbers, times = (one.get("steps"), entry.get("profiled_steps"), entry.get("profiled_step_ms"))
        if isinstance(steps, list) and isinstance(numbers, list) and isinstance(times, list):
            of_step = dict(zip(map(str, numbers), times, strict=False))
            known: list[Any] = [of_step.get(str(number)) for number in steps]
            found += [ms for ms in known if is_step_time(ms)]
    return sum(found) / len(found) if found else None
