"""A capture that a trainer's callback holds open while it trains."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from typing import Any

from traceops.capture.guard import say
from traceops.capture.schedule import Schedule
from traceops.capture.session import Capture, capture
from traceops.capture.settings import ENV
from traceops.core.errors import UsageError


class HeldCapture:
    """Opened with the training, closed with it; at the latest as Python ends, where the trainer says no goodbye.

    out, schedule, options: as for `traceops.capture`.
    """

    def __init__(
        self, out: str | os.PathLike[str] | None, schedule: Schedule | None, options: Mapping[str, Any]
    ) -> None:
        self._out, self._schedule, self._options = out, schedule, dict(options)
        self._capture: Capture | None = None
        self._times = 0

    def open(self, training: Mapping[str, Any]) -> None:
        """Begin; does nothing where it is open. training: what run.json keeps about it.

        A second training goes to ``<out>-2``, and so on. `traceops run` has one folder, which keeps the first. Raises
        UsageError where the first cannot be captured; another one trains on without.
        """
        if self._capture is not None:
            return
        self._times += 1
        if self._times > 1 and ENV in os.environ:
            say(f"training {self._times} of this callback is not recorded; the run folder has the first")
            return
        out = self._out if self._out is None or self._times == 1 else f"{os.fspath(self._out)}-{self._times}"
        try:
            self._enter(out, training)
        except UsageError as error:
            if self._times == 1:
                raise
            say(f"training {self._times} of this callback is not recorded: {error}")

    def _enter(self, out: str | os.PathLike[str] | None, training: Mapping[str, Any]) -> None:
        held = capture(out, schedule=self._schedule, manifest=training, **self._options)
        self._capture = held.__enter__()
        atexit.register(self._leave)

    def step(self, samples: int | None = None) -> None:
        """A training step ended."""
        if self._capture is not None:
            self._capture.step(samples)

    def close(self, error: BaseException | None = None) -> None:
        """End the capture, because of `error` if there is one."""
        held, self._capture = self._capture, None
        if held is not None:
            atexit.unregister(self._leave)
            held.close(error)

    def _leave(self) -> None:
        self.close(getattr(sys, "last_value", None))
