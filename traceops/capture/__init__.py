"""The part of traceops that runs inside the training: schedule, profiler, step times and manifest."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceops.capture.schedule import Phase, Schedule
    from traceops.capture.session import Capture, capture
    from traceops.capture.settings import CaptureSettings

__all__ = ["Capture", "CaptureSettings", "Phase", "Schedule", "capture"]

# Loaded on first use: who only analyses needs a module or two of this package, and not the session.
_HOME = {
    "Capture": "session",
    "CaptureSettings": "settings",
    "Phase": "schedule",
    "Schedule": "schedule",
    "capture": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'traceops.capture' has no attribute {name!r}")
    return getattr(import_module(f"traceops.capture.{_HOME[name]}"), name)


class _CallableModule(ModuleType):
    # Importing this package binds it to the name `traceops.capture`, over the function of that name:
    # `traceops.capture(...)` has to work whichever of the two a process ends up with.
    def __call__(self, *args: Any, **kwargs: Any) -> Capture:
        from traceops.capture.session import capture

        return capture(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
