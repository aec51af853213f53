"""run.json as it tells of one of several windows: what the profiler cost there, and not in all of them together."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import Any

from traceops.across.before_window import step_before
from traceops.across.whole_run import WholeRun


def of_own_window(
    manifest: dict[str, Any], window: Collection[int], whole: WholeRun | None
) -> dict[str, Any]:
    """`manifest` with the step times of the window with these steps, and of those right before it.

    As it is where the run has one window only: then all are. A later one lies among other steps than the first, so
    that the median of both is neither's, nor are the steps before the first those that it would have without it.
    """
    ranks = manifest.get("ranks") or ()
    if not window or max((_windows(entry) for entry in ranks), default=0) < 2:
        return manifest
    profiled = [ms for entry in ranks for number, ms in _profiled(entry) if number in window]
    return {
        **manifest,
        "profiled_steps": sorted(window),
        "profiled_step_ms": statistics.median(profiled) if profiled else None,
        "unprofiled_step_ms": None if whole is None else step_before(whole, window),
    }


def _windows(entry: dict[str, Any]) -> int:
    windows = entry.get("windows")
    return len(windows) if isinstance(windows, list) else 0


def _profiled(entry: dict[str, Any]) -> list[tuple[int, float]]:
    numbers, times = entry.get("profiled_steps"), entry.get("profiled_step_ms")
    if not isinstance(numbers, list) or not isinstance(times, list):
        return []
    return [
        (number, float(ms))
        for number, ms in zip(numbers, times, strict=False)
        if isinstance(number, int) and isinstance(ms, (int, float)) and not isinstance(ms, bool)
    ]
