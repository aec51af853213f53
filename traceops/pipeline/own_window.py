"""run.json as it tells of one of several windows: what the profiler cost there, and not in all of them together."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from typing import Any

import numpy as np

from traceops.across.before_window import steps_before
from traceops.across.plain_step import PlainStep
from traceops.across.run_steps import WholeRun
from traceops.core.shorter_schedule import steps_needed, timed_before_first
from traceops.traces.run_manifest import is_step_time


def of_own_window(
    manifest: dict[str, Any], window: Collection[int], whole: WholeRun | None, *, on_gpu: bool
) -> dict[str, Any]:
    """`manifest` with the step times of the window with these steps, and of those right before it.

    The schedule's windows count together, with the steps that it times before the first; before each where no profiler
    stays behind a window, which is so without GPUs. One that was asked for later lies among other steps: the median of
    both is neither's, nor are the steps of the beginning those that it would have without the profiler.
    """
    ranks = manifest.get("ranks") or ()
    end = steps_needed(manifest.get("schedule"))
    if not window or end is None or max((_windows(entry) for entry in ranks), default=0) < 2:
        return manifest
    is_later = asked_for_later(manifest, window)
    own = {
        number: ms
        for rank, entry in enumerate(ranks)
        for number, ms in _profiled(rank, entry)
        if (number[1] in window if is_later else number[1] < end)
    }
    told = {
        **manifest,
        "profiled_steps": sorted({number for _, number in own}),
        "profiled_step_ms": statistics.median(own.values()) if own else None,
    }
    if is_later:
        return told | _before(ranks, window, whole)
    early = timed_before_first(manifest.get("schedule"))
    return told | _median_of_first(ranks, early) if on_gpu and early is not None else told


def without_profiler_ms(
    manifest: dict[str, Any], window: Collection[int], whole: WholeRun | None, plain: PlainStep | None
) -> float | None:
    """The step without the profiler that is told everywhere, ms: the typical one of the whole run, where that is known.

    Of steps before the first window where torch's profiler slows those behind it, and of those right before a window
    that was asked for later. manifest: of this window.
    """
    told = manifest.get("unprofiled_step_ms")
    known = float(told) if isinstance(told, (int, float)) and is_step_time(told) else None
    if whole is None or asked_for_later(manifest, window):
        return known
    return whole.typical_ms if plain is None or plain.before is None else plain.ms


def asked_for_later(manifest: dict[str, Any], window: Collection[int]) -> bool:
    """Whether the window with these steps lies behind all of the schedule's."""
    end = steps_needed(manifest.get("schedule"))
    return end is not None and bool(window) and min(window) >= end


def _median_of_first(ranks: Collection[dict[str, Any]], early: int) -> dict[str, Any]:
    """The median of the steps that each rank timed before any window; nothing without them."""
    told = (entry.get("unprofiled_step_ms") for entry in ranks)
    times = [ms for own in told if isinstance(own, list) for ms in own[:early] if is_step_time(ms)]
    return {"unprofiled_step_ms": float(statistics.median(times))} if times else {}


def _before(ranks: Collection[dict[str, Any]], window: Collection[int], whole: WholeRun | None) -> dict[str, Any]:
    at = np.zeros(0, dtype=np.int64) if whole is None else steps_before(whole, window)
    times = {} if whole is None else dict(zip(whole.ranks, whole.took_ms[:, at].tolist(), strict=True))
    return {
        "unprofiled_step_ms": float(np.median(whole.step_ms[at])) if whole is not None and len(at) else None,
        "ranks": [
            {**entry, "unprofiled_step_ms": [ms for ms in times.get(entry.get("rank", -1), ()) if ms > 0]}
            for entry in ranks
        ],
    }


def _windows(entry: dict[str, Any]) -> int:
    windows = entry.get("windows")
    return len(windows) if isinstance(windows, list) else 0


def _profiled(rank: int, entry: dict[str, Any]) -> list[tuple[tuple[int, int], float]]:
    numbers, times = entry.get("profiled_steps"), entry.get("profiled_step_ms")
    if not isinstance(numbers, list) or not isinstance(times, list):
        return []
    return [
        ((rank, number), float(ms))
        for number, ms in zip(numbers, times, strict=False)
        if isinstance(number, int) and isinstance(ms, (int, float)) and not isinstance(ms, bool)
    ]
