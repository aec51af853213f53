"""`traceops.capture`: makes a capture of what a script and its environment ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from traceops.capture.schedule import Schedule
from traceops.capture.session import Capture
from traceops.capture.settings import CaptureSettings, from_environment


def capture(
    out: str | os.PathLike[str] | None = None,
    *,
    schedule: Schedule | None = None,
    settings: CaptureSettings | None = None,
    manifest: Mapping[str, Any] | None = None,
    total_steps: int | None = None,
    **options: Any,
) -> Capture:
    """Profile the steps of the training inside ``with``; call ``.step()`` where each step ends::

        with traceops.capture("profile/mine", schedule=Schedule(active=6)) as profiler:
            for batch in loader:
                train(batch)
                profiler.step(samples=len(batch))

    out: run folder. manifest: what to keep about the training in run.json (its key "strategy" is the run's).
    total_steps: steps the training has; a schedule that needs more is refused. options: further fields of
    `CaptureSettings`. `traceops run` overrides all of them through the environment.

    Raises UsageError for settings that cannot work, before the training starts.
    """
    base = settings or CaptureSettings()
    if schedule is not None:
        base = replace(base, schedule=schedule)
    if out is not None:
        options["out"] = os.fspath(out)
    merged = from_environment(base.merged(options))
    if total_steps is not None:
        merged.schedule.check(total_steps)
        merged = replace(merged, first_window=False)
    return Capture(merged, training=dict(manifest or {}))
