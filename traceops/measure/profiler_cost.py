"""What the profiler itself cost a run's steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traceops.core.shorter_schedule import any_before_window

SLOWED = 1.10  # times the step without the profiler, from which it is told
_APART = 3.0  # times the shortest profiled step: then something comes in some of them
_AS_SHORT = 1.1  # times the unprofiled step


def profiler_slowdown(manifest: dict[str, Any]) -> float | None:
    """Profiled ÷ unprofiled step time of the same run, None where one of them is not known.

    None too where some of the profiled ones are a program's first steps: those take longer without a profiler as well.
    And where some are as short as without it and others far longer: the profiler is in all of them.
    """
    if first_steps_profiled(manifest) or some_profiled_as_short(manifest):
        return None
    profiled, plain = manifest.get("profiled_step_ms"), manifest.get("unprofiled_step_ms")
    if isinstance(profiled, (int, float)) and isinstance(plain, (int, float)) and plain > 0:
        return profiled / plain
    return None


def first_steps_profiled(manifest: dict[str, Any]) -> bool:
    """Whether steps from before the schedule's window are among the profiled ones: of a program that ended early."""
    return any_before_window(manifest.get("schedule"), manifest.get("profiled_steps"))


def some_profiled_as_short(manifest: dict[str, Any]) -> bool:
    """Whether every rank has profiled steps as short as without the profiler beside far longer ones."""
    plain, ranks = manifest.get("unprofiled_step_ms"), list(_profiled(manifest))
    if not isinstance(plain, (int, float)) or not ranks:
        return False
    return all(min(own) <= _AS_SHORT * plain and max(own) >= _APART * min(own) for own in ranks)


def _profiled(manifest: dict[str, Any]) -> Iterator[list[float]]:
    """Each rank's profiled steps, ms."""
    ranks = manifest.get("ranks")
    for rank in ranks if isinstance(ranks, list) else ():
        told = rank.get("profiled_step_ms") if isinstance(rank, dict) else None
        own = [ms for ms in told if isinstance(ms, (int, float)) and ms > 0] if isinstance(told, list) else []
        if own:
            yield own
