"""A capture whose steps end with the optimizer's, for who is told when training begins and ends, but not of steps."""

from __future__ import annotations

import atexit
import sys

from traceops.capture.session import Capture, capture_here
from traceops.capture.settings import CaptureSettings, from_environment
from traceops.capture.steps import on_training_step


class AutomaticCapture:
    """Open from `open` to `close`. Under ``traceops run`` it leaves the work to the capture that is there."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = from_environment(settings)
        self._capture: Capture | None = None

    def open(self) -> None:
        """Begin; does nothing where a capture is open in this process."""
        if capture_here() is not None:
            return
        session = Capture(self._settings, automatic=True).__enter__()
        boundary = on_training_step(session.step, session.guard, session.skipped, self._settings.step_on)
        session.on_failure(boundary.remove)
        session.ends_of_steps = boundary.ends
        self._capture, self._boundary = session, boundary
        atexit.register(self._leave)

    def close(self, error: BaseException | None = None) -> None:
        """End it, because of `error` if there is one."""
        held, self._capture = self._capture, None
        if held is not None:
            atexit.unregister(self._leave)
            self._boundary.remove()
            held.close(error)

    def _leave(self) -> None:
        self.close(getattr(sys, "last_value", None))
