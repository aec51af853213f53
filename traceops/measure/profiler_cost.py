"""What the profiler itself cost a run's steps."""

from __future__ import annotations

from typing import Any


def profiler_slowdown(manifest: dict[str, Any]) -> float | None:
    """Profiled ÷ unprofiled step time of the same run, None where one of them is not known."""
    profiled, plain = manifest.get("profiled_step_ms"), manifest.get("unprofiled_step_ms")
    if isinstance(profiled, (int, float)) and isinstance(plain, (int, float)) and plain > 0:
        return profiled / plain
    return None
