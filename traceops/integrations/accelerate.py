"""A tracker for accelerate."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from accelerate.tracking import GeneralTracker

from traceops.capture.schedule import Schedule
from traceops.capture.settings import CaptureSettings
from traceops.integrations.held_capture import AutomaticCapture


class TraceopsTracker(GeneralTracker):  # type: ignore[misc]
    """Profiles what lies between ``init_trackers`` and ``end_training``; steps end with the optimizer's::

        accelerator = Accelerator(log_with=TraceopsTracker("profile/mine"))
        accelerator.init_trackers("mine")
        ...
        accelerator.end_training()

    out, schedule, options: as for `traceops.capture`.
    """

    name = "traceops"
    requires_logging_directory = False
    main_process_only = False  # every rank is profiled

    def __init__(
        self, out: str | os.PathLike[str] | None = None, *, schedule: Schedule | None = None, **options: Any
    ) -> None:
        super().__init__()
        settings = CaptureSettings().merged(options)
        if schedule is not None:
            settings = replace(settings, schedule=schedule)
        self._automatic = AutomaticCapture(settings if out is None else replace(settings, out=os.fspath(out)))

    @property
    def tracker(self) -> AutomaticCapture:
        return self._automatic

    def start(self) -> None:
        """Called by ``init_trackers``."""
        self._automatic.open()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Nothing of it is kept."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Nothing of it is kept."""

    def finish(self) -> None:
        """Called by ``end_training``."""
        self._automatic.close()
