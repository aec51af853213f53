"""A profiler for torchtitan's config, in the place of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.tools.profiler import Profiler

from traceops.capture.schedule import Schedule
from traceops.integrations.held_capture import HeldCapture


class TraceopsProfiler(Profiler):  # type: ignore[misc]
    """Profiles torchtitan's steps; in a function of your config registry::

        config = llama3_debugmodel()
        config.profiler = TraceopsProfiler.Config(out="profile/mine")
        return config

    torchtitan's own traces stay off; its memory snapshots work as before.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Profiler.Config):  # type: ignore[misc]
        out: str | None = None
        """Run folder; profile/<script>-<time> where nothing is said."""

        skip_first: int = 2
        """Steps left alone first."""

        unprofiled: int = 6
        """Steps timed before the profiler starts."""

        warmup: int = 2
        """Steps with the profiler on, not recorded."""

        active: int = 4
        """Steps recorded."""

    def __init__(self, config: Any, **runtime: Any) -> None:
        super().__init__(config, **runtime)
        schedule = Schedule(config.skip_first, config.unprofiled, config.warmup, config.active)
        self._held = HeldCapture(config.out, schedule, {})

    def __enter__(self) -> TraceopsProfiler:
        super().__enter__()
        self._held.open({"trainer": "torchtitan"})
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self._held.close(error)
        return bool(super().__exit__(kind, error, trace))

    def step(self) -> None:
        super().step()
        self._held.step()
