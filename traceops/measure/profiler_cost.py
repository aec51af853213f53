"""What the profiler itself cost a run's steps."""

from __future__ import annotations

from typing import Any

from traceops.core.shorter_schedule import any_before_window


def profiler_slowdown(manifest: dict[str, Any]) -> float | None:
    """Profiled ÷ unprofiled step time of the same run, None where one of them is not known.

    None too where some of the profiled ones are a program's first steps: those take longer without a profiler as well.
    """
    if first_steps_profiled(manifest):
        return None
    profiled, plain = manifest.get("profiled_step_ms"), manifest.get("unprofiled_step_ms")
    if isinstance(profiled, (int, float)) and isinstance(plain, (int, float)) and plain > 0:
        return profiled / plain
    return None


def first_steps_profiled(manifest: dict[str, Any]) -> bool:
    """Whether steps from before the schedule's window are among the profiled ones: of a program that ended early."""
    return any_before_window(manifest.get("schedule"), manifest.get("profiled_steps"))
