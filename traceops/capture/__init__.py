"""The part of traceops that runs inside the training: schedule, profiler, step times and manifest."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from traceops.capture.schedule import Phase, Schedule
from traceops.capture.session import Capture, capture
from traceops.capture.settings import CaptureSettings

__all__ = ["Capture", "CaptureSettings", "Phase", "Schedule", "capture"]


class _CallableModule(ModuleType):
    # Importing this package binds it to the name `traceops.capture`, over the function of that name:
    # `traceops.capture(...)` has to work whichever of the two a process ends up with.
    def __call__(self, *args: Any, **kwargs: Any) -> Capture:
        return capture(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
